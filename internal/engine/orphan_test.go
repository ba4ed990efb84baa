package engine

import (
	"context"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
)

// TestDeleteBesideOpen deletes a file between a reader's reading its record and having it open:
// the bytes stay until the reader has gone.
func TestDeleteBesideOpen(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	data := noise(1, 300_000)
	id := put(t, e, "f", data).ID
	// As openFile, in slow motion.
	e.files.load.Lock()
	f := e.newFile(id, e.codec)
	f.mu.size, f.mu.durable, f.mu.persisted = int64(len(data)), int64(len(data)), true
	deleteFile(t, e, "f")
	time.Sleep(50 * time.Millisecond)
	e.files.add(f)
	e.files.load.Unlock()
	if got, err := e.contentCRC(context.Background(), f); err != nil || got != csum.Sum(data) {
		t.Errorf("the reader's bytes are gone: %08x, %v", got, err)
	}
	e.release(f)
	eventually(t, "all is free", func() bool { return e.Usage().Used == 0 && e.orphans.Load() == 0 })
}
