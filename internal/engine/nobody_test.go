package engine

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// TestNobodysFailureEnds fails the appends of data that nobody can rewrite or delete any more: the
// error, the space and the memory go with the file, and other files' syncs hear nothing of it.
func TestNobodysFailureEnds(t *testing.T) {
	ctx := context.Background()
	data := noise(1, 200_000)
	clean := func(t *testing.T, e *Engine) {
		t.Helper()
		e.orphanKick.set()
		eventually(t, "nothing is left of it", func() bool {
			u := e.Usage()
			return u.Used == 0 && u.Reserved == 0 && e.stuck.Load() == 0 && e.arena.InUse() == 0
		})
		syncAll(t, e)
		checkQuiet(t, e)
	}
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprintf("unfinished replace/first=%t", first), func(t *testing.T) {
			b := newFaultBench(t, faultZNS, Options{})
			e := b.open()
			b.failing(zone.OpAppend)
			o := WriterOptions{Name: "f", Mode: Replace, WriteID: "w"}
			w := openWriter(t, e, o)
			mustWrite(t, w, data)
			if !first {
				w.Close()
			}
			if _, err := e.Sync(ctx, nil, nil); err != nil && !errdefs.Is(err, errdefs.Device) {
				t.Fatal(err)
			}
			if first {
				w.Close()
			}
			clean(t, e)
			w = openWriter(t, e, o)
			if r, _ := w.Position(); r != 0 {
				t.Errorf("the next stream is at %d", r)
			}
			w.Close()
		})
		t.Run(fmt.Sprintf("deleted beside a reader/first=%t", first), func(t *testing.T) {
			b := newFaultBench(t, faultZNS, Options{})
			e := b.open()
			b.failing(zone.OpAppend)
			writeAt(t, e, "f", 0, data)
			if first {
				_, err := e.Sync(ctx, nil, nil)
				wantError(t, err, errdefs.Device, errdefs.ReasonSyncFailed)
			}
			r, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: "f"}})
			if err != nil {
				t.Fatal(err)
			}
			deleteFile(t, e, "f")
			if _, err := e.Sync(ctx, nil, nil); err == nil {
				t.Error("what a reader can see was dropped")
			}
			if p, err := r.Next(ctx); err != nil || !bytes.Equal(p.Data, data[:min(len(data), smallWindow)]) {
				t.Errorf("the reader gets %d bytes, %v", len(p.Data), err)
			}
			r.Close()
			clean(t, e)
		})
	}
}
