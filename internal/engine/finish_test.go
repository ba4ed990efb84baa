package engine

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// TestFinishBesideFailedChange finishes replaces in batches whose transactions come to nothing,
// because another change of the batch fails half way: each part is then committed by itself, and
// the data must not be taken for that of a file that is gone.
func TestFinishBesideFailedChange(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		ctx := context.Background()
		deep := strings.Repeat("d/", 254)
		if _, err := e.Create(ctx, CreateRequest{Name: deep + "f"}); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					// The parent is made before the last component is found too deep.
					_, err := e.Create(ctx, CreateRequest{Name: deep + "d/d", Directory: true})
					if !errdefs.Is(err, errdefs.InvalidArgument) {
						t.Errorf("a path too deep: %v", err)
						return
					}
				}
			})
		}
		data := noise(1, 20_000)
		for range 20 {
			f := put(t, e, "f", data)
			if f.ContentCRC == nil {
				t.Error("a replaced file has no checksum")
			}
			sameFile(t, e, "f", data)
			if f = put(t, e, "none", nil); f.Size != 0 {
				t.Errorf("an empty file has size %d", f.Size)
			}
		}
		close(stop)
		wg.Wait()
		syncAll(t, e)
		checkQuiet(t, e)
		e = b.reopen()
		sameFile(t, e, "f", data)
	})
}
