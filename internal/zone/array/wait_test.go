package array_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// slow makes every call of a kind on the memory device take its time; 0 is a second.
func slow(d *zone.Mem, times map[zone.OpKind]time.Duration) {
	d.SetHook(func(op zone.Op) error {
		if op.After {
			return nil
		}
		if n := times[op.Kind]; n > 0 {
			time.Sleep(n)
		} else {
			time.Sleep(time.Second)
		}
		return nil
	})
}

// No lock is held over a call of a member: under synctest time would stand still if one were waited
// for while a member sleeps.
func TestNoLockOverDeviceCalls(t *testing.T) {
	for name, sets := range map[string][][]array.Place{"pairs": mirrored(6), "single": append(single(0, 3), single(1, 3)...)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newStand(t, geometries["zns"], 2, sets)
				for i, d := range b.mems {
					slow(d, nil)
					b.devs[i].FailAppend(1, 1, faultdev.MovedAll) // a probe as well
				}
				var wg sync.WaitGroup
				for z := range sets {
					for range 3 {
						wg.Go(func() {
							_, _ = b.Append(z, vec(pattern(z, 1)))
							_ = b.ReadAt(z, 0, make([]byte, blk))
							_ = b.Flush()
							_ = b.Open(z)
							_ = b.CloseZone(z)
							_ = b.Finish(z)
							_ = b.Torn(z)
							_ = b.Reset(z)
							_ = b.Release(z)
						})
					}
					wg.Go(func() {
						for range 20 {
							time.Sleep(300 * time.Millisecond)
							_, _ = b.Report(0, -1)
							_ = b.Members()
							_ = b.Stats()
							b.SetPlaces(z, b.Places(z))
							_ = b.Copies(z)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// How long things take says what waits for what.
func TestWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStand(t, geometries["zns"], 2, mirrored(6))
		b.add(0, 0, 2, 1)
		for _, d := range b.mems {
			slow(d, map[zone.OpKind]time.Duration{zone.OpWrite: time.Hour, zone.OpFlush: time.Minute})
		}
		start := time.Now()
		took := func(what string, want time.Duration, f func()) {
			f()
			if got := time.Since(start); got != want {
				t.Errorf("%s was done after %v, want %v", what, got, want)
			}
		}
		var wg sync.WaitGroup
		for i := range 2 { // one after the other, each on both at once
			wg.Go(func() {
				time.Sleep(time.Duration(i))
				took("an append", time.Duration(1+i)*time.Hour, func() { b.add(0, 2+i, 1, 3) })
			})
		}
		wg.Go(func() { took("an append elsewhere", time.Hour, func() { b.add(1, 0, 1, 3) }) })
		wg.Go(func() {
			time.Sleep(time.Second)
			took("a flush of both", time.Minute+time.Second, func() { b.ok(b.Flush()) })
		})
		// Reads wait for no append, and the second goes to the other copy.
		for copy := range 2 {
			wg.Go(func() {
				time.Sleep(time.Duration(copy))
				took("a read", time.Second+time.Duration(copy), func() { b.holds(0, 0, 2, 1, copy) })
			})
		}
		wg.Go(func() {
			time.Sleep(2 * time.Second)
			took("a read alone", 3*time.Second, func() { b.holds(0, 0, 2, 1, 0) })
		})
		wg.Wait()
	})
}

// No call returns before its owner has heard which places are stale for it, whoever found out.
func TestNewsComesBeforeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStand(t, geometries["zns"], 2, mirrored(6))
		b.add(0, 0, 1, 1)
		var heard []string
		b.OnStale(func(z int) {
			time.Sleep(time.Hour)
			heard = append(heard, fmt.Sprint("zone ", z))
		})
		b.OnFail(func(n int, _ error) {
			time.Sleep(time.Hour)
			heard = append(heard, fmt.Sprint("device ", n))
		})
		b.mems[1].CutPower()
		start := time.Now()
		took := func(what string, want time.Duration) {
			if got := time.Since(start); got != want {
				t.Errorf("%s after %v, want %v", what, got, want)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			b.add(1, 0, 1, 1)
			took("the append that found out", 3*time.Hour)
		})
		wg.Go(func() {
			time.Sleep(time.Minute)
			b.ok(b.Flush()) // of what was appended to both
			took("a flush that knows", 3*time.Hour)
		})
		wg.Go(func() {
			time.Sleep(time.Minute)
			b.holds(0, 0, 1, 1, 0)
			took("a read", time.Minute)
		})
		wg.Wait()
		if want := []string{"zone 0", "device 1", "zone 1"}; !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q", heard, want)
		}
	})
}

// A set of one place takes appends side by side.
func TestSingleAppendsGoSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStand(t, geometries["zns"], 1, single(0, 2))
		slow(b.mems[0], nil)
		start := time.Now()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := b.Append(0, vec(pattern(1, 1))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != time.Second {
			t.Errorf("8 appends took %v", took)
		}
		if st := b.Stats(); st.Appends != 8 || st.Writes != 0 {
			t.Errorf("%+v", st)
		}
	})
}
