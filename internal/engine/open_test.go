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
