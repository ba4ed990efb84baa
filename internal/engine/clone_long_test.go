package engine

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

var longZNS = zone.Geometry{Dialect: zone.ZNS, ZoneSize: 4 << 20, ZoneCapacity: 4 << 20, Zones: 24, MaxOpen: 4, MaxActive: 5}

// putLong makes a file of more extents than a transaction clones, and returns its content.
func putLong(t testing.TB, e *Engine, name string) []byte {
	t.Helper()
	const extents = 2*cloneBatch + 100
	data := make([]byte, 2*4096*extents)
	w := openWriter(t, e, WriterOptions{Name: name})
	defer w.Close()
	for i := range extents {
		at := int64(2 * i * 4096)
		data[at], data[at+1] = byte(i), byte(i>>8)
		if err := w.Write(context.Background(), &at, [][]byte{data[at : at+2]}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := e.Truncate(context.Background(), name, int64(len(data)), Preconditions{}); err != nil {
		t.Fatal(err)
	}
	return data
}

// unfinishedClones counts the nodes that a clone in the making, or given up, has.
func unfinishedClones(t testing.TB, e *Engine) (n int) {
	t.Helper()
	if err := e.st.View(func(tx *store.Tx) error {
		n = 0
		return tx.Orphans(0, func(_ uint64, k store.OrphanKind, _ time.Time) bool { n++; return true })
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// duringLongClones returns a bench whose commits call fn, once for each, with how many
// transactions a clone in the making has behind it.
func duringLongClones(t *testing.T) (b *faultBench, during *atomic.Pointer[func(step int) error]) {
	b = newFaultBench(t, longZNS, Options{})
	during = &atomic.Pointer[func(int) error]{}
	step := 0
	b.opts.before = func(before beforeCommit) beforeCommit {
		return func() (store.Change, func(error), error) {
			fn := during.Load()
			if fn == nil {
				step = 0
				return before()
			}
			if b.e != nil && unfinishedClones(t, b.e) > 0 {
				step++
			}
			if err := (*fn)(step); err != nil {
				return nil, nil, err
			}
			return before()
		}
	}
	return b, during
}

// TestLongClone clones a file in several transactions, with a writer that wants to change the
// source meanwhile: the clone is the source as it was, and the writer comes after it.
func TestLongClone(t *testing.T) {
	alone(t)
	t.Parallel()
	b, during := duringLongClones(t)
	e := b.open()
	data := putLong(t, e, "src")
	var once sync.Once
	var wg sync.WaitGroup
	var steps atomic.Int64
	fn := func(step int) error {
		steps.Store(int64(max(step, int(steps.Load()))))
		if step == 1 {
			once.Do(func() {
				for _, at := range []int64{0, int64(len(data)) - 8192} {
					wg.Go(func() { writeAt(t, e, "src", at, bytes.Repeat([]byte{7}, 4096)) })
				}
				wg.Go(func() {
					if _, _, err := e.Truncate(context.Background(), "src", 4096, Preconditions{}); err != nil {
						t.Error(err)
					}
				})
			})
			missing(t, e, "dst")
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	}
	used := e.Usage().Used
	during.Store(&fn)
	f := cloneFile(t, e, "src", "dst")
	during.Store(nil)
	wg.Wait()
	if steps.Load() != 2 {
		t.Errorf("the clone took %d transactions before its last", steps.Load())
	}
	sameFile(t, e, "dst", data)
	if f.Size != int64(len(data)) || f.Stored != used {
		t.Errorf("the clone is %+v", f)
	}
	syncAll(t, e)
	eventually(t, "nothing is unfinished", func() bool { return unfinishedClones(t, e) == 0 && e.orphans.Load() == 0 })
	if got := readAll(t, e, "src"); len(got) < 4096 {
		t.Errorf("the source has %d bytes", len(got))
	}
	deleteFile(t, e, "src")
	eventually(t, "the source is freed", func() bool { return e.orphans.Load() == 0 && e.Usage().Used == used })
	writeAt(t, e, "dst", 0, []byte("written"))
	copy(data, "written")
	e = b.reopen()
	sameFile(t, e, "dst", data)
	b.shut()
	b.checkClean()
}

// TestLongCloneGivenUp: whatever ends a clone before its last transaction, nothing stays of it.
func TestLongCloneGivenUp(t *testing.T) {
	b, during := duringLongClones(t)
	e := b.open()
	data := putLong(t, e, "src")
	put(t, e, "other", noise(1, 5000))
	syncAll(t, e)
	used := e.Usage().Used
	ctx, cancel := context.WithCancel(context.Background())
	for _, c := range []struct {
		name   string
		ctx    context.Context
		do     func() error
		kind   errdefs.Kind
		reason errdefs.Reason
	}{
		{"somebody takes the name", context.Background(), func() error {
			_, err := tryPut(e, "dst", noise(2, 100))
			return err
		}, errdefs.AlreadyExists, ""},
		{"the caller goes away", ctx, func() error { cancel(); return nil }, errdefs.Canceled, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var once sync.Once
			var wg sync.WaitGroup
			fn := func(step int) error {
				if step == 1 {
					once.Do(func() {
						wg.Go(func() {
							if err := c.do(); err != nil {
								t.Error(err)
							}
						})
						time.Sleep(100 * time.Millisecond)
					})
				}
				return nil
			}
			during.Store(&fn)
			_, _, err := e.Clone(c.ctx, CloneRequest{Name: "src", NewName: "dst"})
			during.Store(nil)
			wg.Wait()
			wantError(t, err, c.kind, c.reason)
			eventually(t, "it is freed", func() bool { return unfinishedClones(t, e) == 0 && e.orphans.Load() == 0 })
			if u := e.Usage(); u.Used != used {
				t.Errorf("used is %d, was %d", u.Used, used)
			}
			sameFile(t, e, "src", data)
			if _, err := e.Delete(context.Background(), DeleteRequest{Name: "dst", AllowMissing: true}); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("the source is deleted", func(t *testing.T) {
		var once sync.Once
		fn := func(step int) error {
			if step == 1 {
				once.Do(func() { go func() { _, _ = e.Delete(context.Background(), DeleteRequest{Name: "src"}) }() })
				time.Sleep(20 * time.Millisecond)
			}
			return nil
		}
		during.Store(&fn)
		cloneFile(t, e, "src", "dst") // it was there when the call began
		during.Store(nil)
		sameFile(t, e, "dst", data)
		missing(t, e, "src")
	})
	eventually(t, "the source is freed", func() bool { return e.orphans.Load() == 0 })
	b.shut()
	b.checkClean()
}

// TestLongCloneCrashes cuts the power before each transaction of a clone, and after the last: the
// name stands for nothing or for the whole clone, and what was begun is freed.
func TestLongCloneCrashes(t *testing.T) {
	alone(t)
	b, during := duringLongClones(t)
	e := b.open()
	data := putLong(t, e, "src")
	syncAll(t, e)
	used := e.Usage().Used
	for cut := range 4 {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			commits := 0
			fn := func(int) error {
				if commits++; commits > cut {
					b.mem.CutPower()
					return errCut
				}
				return nil
			}
			during.Store(&fn)
			_, _, err := e.Clone(context.Background(), CloneRequest{Name: "src", NewName: "dst"})
			during.Store(nil)
			b.mem.CutPower()
			e.vanish()
			b.mem.PowerOn(rand.New(rand.NewPCG(uint64(cut), 0)))
			e = b.open()
			if (err == nil) != (cut == 3) {
				t.Errorf("the clone answers %v", err)
			}
			if cut < 3 {
				missing(t, e, "dst")
			} else {
				sameFile(t, e, "dst", data)
			}
			sameFile(t, e, "src", data)
			eventually(t, "what was begun is freed", func() bool { return unfinishedClones(t, e) == 0 && e.orphans.Load() == 0 })
			if u := e.Usage(); u.Used != used {
				t.Errorf("used is %d, was %d", u.Used, used)
			}
			checkTotals(t, e)
		})
	}
	b.shut()
	b.checkClean()
}
