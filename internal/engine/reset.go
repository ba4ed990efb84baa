package engine

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

// bgRecord is what the next commit records of a block group whose zone was reset, finished, or
// both in this order.
type bgRecord struct {
	generation uint64      // after the reset; 0: it was not reset
	class      alloc.Class // of who opened it since; 0: nobody
	readOnly   bool        // its medium is failing; for good
	finished   bool        // before it was full, so that the next open is not surprised by its write pointer
	// places are where it lies from now on, nil: where it did; capacity is what it holds there, 0: as before.
	places   []store.Place
	capacity int64
}

// note merges what happened to a block group into what the next commit records.
func (e *Engine) note(slot uint32, r bgRecord) {
	e.records.Lock()
	defer e.records.Unlock()
	old := e.records.m[slot]
	r.keepPlaces(old)
	if r.generation == 0 {
		r.generation = old.generation
		if r.class == 0 {
			r.class = old.class
		}
		r.readOnly = r.readOnly || old.readOnly
	}
	e.records.m[slot] = r
}

// keepPlaces takes over where an older record said the block group lies, unless this one does.
func (r *bgRecord) keepPlaces(old bgRecord) {
	if r.places == nil {
		r.places = old.places
	}
	if r.capacity == 0 {
		r.capacity = old.capacity
	}
}

// resetter finishes zones that left allocation early and resets those with nothing live. alloc
// hands a block group out only after the transaction that freed its last part is durable; the
// epochs add that no read still looks at it.
func (e *Engine) resetter() {
	for {
		select {
		case <-e.resetKick:
		case <-e.stop:
			return
		}
		if e.closing.Load() {
			e.retireClosing()
		}
		for e.resetOne() {
		}
	}
}

func (e *Engine) resetOne() bool {
	select {
	case <-e.stop:
		return false
	default:
	}
	bg, ok := e.al.BeginReset()
	if !ok {
		return false
	}
	e.resetting.Add(1)
	defer e.resetting.Add(-1)
	if !e.epochs.wait(e.stop) {
		return false // closing: the zone is reset after the next open
	}
	if e.resetZone(bg) == nil {
		e.al.FinishReset(bg.Slot, true)
	}
	return true
}

// resetZone resets the zone of a block group that is Resetting and notes the record: before
// FinishReset, for extents of the new generation may be published at once. A zone that cannot be
// reset is not used any more.
func (e *Engine) resetZone(bg alloc.BlockGroup) error {
	capacity, err := e.renewPlaces(bg.Slot, bg.Capacity, func(n int64) bool { return e.al.Resize(bg.Slot, n) })
	if err != nil {
		e.o.Logger.Warn("a block group stays where it is", "place", e.placeName(bg.Slot), "error", err)
	}
	if capacity > 0 {
		err = e.dev.Reset(int(bg.Slot))
	}
	if err != nil {
		e.giveSlotBack(bg.Slot)
		e.al.FinishReset(bg.Slot, false)
		e.cond.set(Condition{
			Reason: "ZONE_FAILED", Severity: Warning, Object: e.placeName(bg.Slot), Since: e.o.Now(),
			Message: fmt.Sprintf("zone %d cannot be reset and is not used any more: %v", e.zoneOf(bg.Slot), err),
		})
		return err
	}
	e.note(bg.Slot, bgRecord{generation: bg.Generation + 1, places: e.recordedPlaces(bg.Slot), capacity: recordedCapacity(capacity)})
	e.markHalf(bg.Slot)
	if e.haveSpares() {
		e.rebuild.kick.set()
	}
	return nil
}

// recordedCapacity is a capacity as a bgRecord has it.
func recordedCapacity(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}

// takeRecords hands over what the next commit is to record.
func (e *Engine) takeRecords() map[uint32]bgRecord {
	e.records.Lock()
	defer e.records.Unlock()
	m := e.records.m
	e.records.m = map[uint32]bgRecord{}
	return m
}

// returnRecords undoes takeRecords after a failed commit.
func (e *Engine) returnRecords(m map[uint32]bgRecord) {
	e.records.Lock()
	defer e.records.Unlock()
	for slot, r := range m {
		if cur, ok := e.records.m[slot]; !ok {
			e.records.m[slot] = r
			continue
		} else if cur.keepPlaces(r); cur.generation == 0 { // opened or finished after what the commit was to record
			cur.generation = r.generation
			if cur.class == 0 {
				cur.class = r.class
			}
			cur.readOnly = cur.readOnly || r.readOnly
			e.records.m[slot] = cur
		} else {
			e.records.m[slot] = cur
		}
	}
}

func (e *Engine) putRecords(tx *store.Tx, m map[uint32]bgRecord) error {
	for slot, r := range m {
		bg, err := tx.BlockGroup(slot)
		if errdefs.Is(err, errdefs.NotFound) && r.places != nil {
			bg, err = store.BlockGroup{Slot: slot, Kind: store.KindSequential, Class: uint8(alloc.ClassData), Generation: 1}, nil
		}
		if err != nil {
			return err
		}
		if r.generation > 0 {
			bg.Generation, bg.AllocOffset, bg.Flags = r.generation, 0, 0
		}
		if r.class > 0 {
			bg.Class = uint8(r.class)
		}
		if r.readOnly {
			bg.Flags |= store.BGReadOnly
		}
		if r.finished {
			bg.Flags = bg.Flags&^store.BGTrimmed | store.BGFinished
		}
		if r.places != nil {
			bg.Places = r.places
		}
		if r.capacity != 0 {
			bg.Capacity = max(0, r.capacity)
		}
		if err := tx.PutBlockGroup(bg); err != nil {
			return err
		}
	}
	return nil
}
