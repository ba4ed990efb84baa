package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// Once nothing waits to be finished any more the resetter must rest: it kept itself awake, and a
// processor busy, for as long as the store was open.
func TestResetterRests(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	put(t, e, "f", noise(1, 100_000))
	e.retireClosing()
	if e.closing.Load() {
		t.Error("nothing is closing")
	}
	var slot uint32
	err := e.st.View(func(tx *store.Tx) error {
		return tx.Extents(0, func(x store.Extent) bool {
			slot, _ = e.split(x.Addr)
			return true
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	e.al.Suspect(slot)
	e.retireClosing()
	if e.closing.Load() || e.al.AnyClosing() {
		t.Error("the zone was finished, nothing is left")
	}
}

// TestResetWaitsForTheCommit overwrites a file while other changes make the transactions long: no zone
// is reset before what it held is off the record, durably.
func TestResetWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, zns(24, 256<<10), o)
		e := b.open()
		slots := map[int]uint32{}
		for slot := range uint32(e.slots()) {
			slots[e.zoneOf(slot)] = slot
		}
		var resets atomic.Int64
		b.mem.SetHook(func(op zone.Op) error {
			slot, ok := slots[op.Zone]
			if op.Kind != zone.OpReset || op.After || !ok {
				return nil
			}
			resets.Add(1)
			// What is on record now is what a crash would leave.
			err := e.st.View(func(tx *store.Tx) error {
				x, ok, err := tx.LastExtent(e.addr(slot, 0), e.addr(slot+1, 0))
				if ok {
					t.Errorf("zone %d is reset with %d blocks on record in it", op.Zone, x.Blocks)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			return nil
		})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := e.group.Do(context.Background(), func(*store.Tx) error {
					time.Sleep(10 * time.Millisecond)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		size := int(extent.RoundDown(zns(24, 256<<10).ZoneCapacity)) * 3
		var want []byte
		for round := uint64(1); resets.Load() < 10 && round < 40; round++ {
			want = noise(round, size)
			writeAt(t, e, "f", 0, want)
			syncAll(t, e)
		}
		close(stop)
		wg.Wait()
		if resets.Load() < 10 {
			t.Errorf("%d zones were reset", resets.Load())
		}
		sameFile(t, e, "f", want)
		b.mem.SetHook(nil)
		b.checkLimits()
	})
}
