package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// TestOneMakesTheFile has streams race for a name that must not exist.
func TestOneMakesTheFile(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	for i := range 50 {
		var made atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				w, err := e.OpenWriter(context.Background(), WriterOptions{Name: fmt.Sprint(i), If: Preconditions{Generation: ptr(int64(0))}})
				if err == nil {
					made.Add(1)
					w.Close()
				} else if !errdefs.Is(err, errdefs.Precondition) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := made.Load(); n != 1 {
			t.Fatalf("round %d: %d streams made the file", i, n)
		}
	}
}

// TestRefusedWriteOfSmallFile refuses a message for a file whose data is inline: neither generation
// nor checksum may change.
func TestRefusedWriteOfSmallFile(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		want := put(t, e, "f", []byte("small"))
		w := openWriter(t, e, WriterOptions{Name: "f"})
		defer w.Close()
		err := w.Write(context.Background(), nil, [][]byte{[]byte("other")}, ptr(uint32(7)))
		wantError(t, err, errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum)
		for range 2 {
			f, err := e.Get(context.Background(), Ref{Name: "f"})
			if err != nil {
				t.Fatal(err)
			}
			if f.Generation != want.Generation || !f.Updated.Equal(want.Updated) || f.ContentCRC == nil {
				t.Errorf("the refused message made %+v of %+v", f, want)
			}
			sameFile(t, e, "f", []byte("small"))
			syncAll(t, e)
		}
	})
}
