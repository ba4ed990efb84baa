package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// doubt is what casts doubt on data that has been appended and is not committed: a failed device
// flush, after which no later flush can tell what is there, and zones that went offline.
//
// A range passes from appended to placed while it shares the lock, and what raises a doubt holds
// it alone. So a range is either seen in its file's queue by who raises the doubt, or finds the
// doubt raised itself. Taken before a file's mutex.
type doubt struct {
	sync.RWMutex
	epoch atomic.Uint64       // + 1 a failed flush
	lost  map[uint32]struct{} // slots whose zones cannot be read any more; they never come back
}

// loseZone casts doubt on what was appended to the slot: its zone cannot be read.
func (d *doubt) loseZone(slot uint32) {
	d.Lock()
	defer d.Unlock()
	if d.lost == nil {
		d.lost = map[uint32]struct{}{}
	}
	d.lost[slot] = struct{}{}
}

// hitsLocked reports whether a part of the placed range lies in a zone that cannot be read.
func (d *doubt) hitsLocked(o *ordered) bool {
	if len(d.lost) == 0 {
		return false
	}
	for _, x := range o.out.extents {
		if _, lost := d.lost[x.slot]; lost {
			return true
		}
	}
	return false
}

// placeUntilSound places the range and then runs seen, which makes it visible to the committer;
// again if what was appended came into doubt meanwhile. On an error nothing of it is placed and
// seen did not run.
func (e *Engine) placeUntilSound(o *ordered, seen func()) error {
	for {
		epoch := e.doubt.epoch.Load()
		if err := e.place(o); err != nil {
			return err
		}
		e.doubt.RLock()
		if o.inline != nil || e.doubt.epoch.Load() == epoch && !e.doubt.hitsLocked(o) {
			seen()
			e.doubt.RUnlock()
			return nil
		}
		e.doubt.RUnlock()
		e.unplace(o)
		if o.redone++; o.redone > redoTries {
			return flushGivenUp(o)
		}
	}
}

// suspect handles a failed device flush: everything appended since the last good one may be
// gone, and no later flush can tell. The zones written to are finished, the ranges are placed
// again from memory, and ranges being placed right now find out by the epoch. Runs in the
// group commit's goroutine.
func (e *Engine) suspect(cause error) {
	e.o.Logger.Error("device flush failed; appending everything since the last good flush again", "error", cause)
	e.count.flushErrors.Add(1)
	e.doubt.Lock()
	e.al.SuspectAll()
	e.doubt.epoch.Add(1)
	again := e.takeBack(func(*ordered) bool { return true })
	e.doubt.Unlock()
	e.redo(again)
	e.retireClosing()
}

// dropLost has ranges that are placed, but in part in zones that went offline since, placed again.
// It reports whether there were any. Runs in the group commit's goroutine.
func (e *Engine) dropLost() bool {
	e.doubt.Lock()
	var again []*ordered
	if len(e.doubt.lost) > 0 {
		again = e.takeBack(e.doubt.hitsLocked)
	}
	e.doubt.Unlock()
	e.redo(again)
	return len(again) > 0
}

// takeBack turns placed ranges with appended data that match back into ranges being placed, each
// with a reference to its file. The caller holds doubt.
func (e *Engine) takeBack(match func(*ordered) bool) (again []*ordered) {
	for _, f := range e.busyFiles() {
		f.mu.Lock()
		for _, o := range f.mu.queue {
			if o.state == placed && o.inline == nil && match(o) {
				o.state = placing
				again = append(again, o)
				e.files.mu.Lock()
				f.refs++
				e.files.mu.Unlock()
			}
		}
		f.mu.Unlock()
		e.release(f)
	}
	return again
}

// redo places the ranges that takeBack returned again, or gives up those that were placed too
// often.
func (e *Engine) redo(again []*ordered) {
	for _, o := range again {
		e.unplace(o)
		if o.redone++; o.redone > redoTries {
			e.giveUp(o, flushGivenUp(o))
		} else {
			e.count.rangesInFlight.Add(1)
			e.redone.Go(func() { e.runRange(o) })
		}
		e.release(o.f)
	}
}

// giveUp makes the error stick to the range: its bytes stay readable and its space reserved until
// they are rewritten or deleted, and Syncs that cover it answer the error.
func (e *Engine) giveUp(o *ordered, err error) {
	e.o.Logger.Error("data cannot be made durable", "file_id", o.f.id, "offset", o.rng.Off, "end", o.end, "error", err)
	f := o.f
	f.mu.Lock()
	later := f.mu.queue
	for i, q := range f.mu.queue {
		if q == o {
			later = append([]*ordered(nil), f.mu.queue[i+1:]...)
			f.mu.queue = append(f.mu.queue[:i:i], later...)
			break
		}
	}
	o.err = syncFailed(o, err)
	o.left = []extent.Range{{Off: o.rng.Off, End: o.rng.End()}}
	f.mu.failed = append(f.mu.failed, o)
	e.stuck.Add(o.rng.Len())
	// What has been written over it meanwhile has ended the error there already.
	var overlaid int64
	for _, q := range later {
		overlaid += e.overlayLocked(f, o, q.rng.Off, q.rng.End())
	}
	for off := o.rng.Off; ; {
		start, end, ok := f.dirty.Next(off)
		if !ok || start >= o.rng.End() {
			break
		}
		overlaid += e.overlayLocked(f, o, start, end)
		off = end
	}
	f.wakeLocked()
	f.mu.Unlock()
	e.unreserve(overlaid)
	if o.direct {
		e.waiting.Add(-o.rng.Len())
	}
	e.settle(f)
	e.orphanKick.set() // the file may be nobody's any more
	e.placedFile(f)    // what came after it may be published now
	e.group.Kick()
}

func flushGivenUp(o *ordered) error {
	return errdefs.New(errdefs.Device, errdefs.ReasonSyncFailed, "engine.place", fmt.Sprintf("file %d range [%d, %d)", o.f.id, o.rng.Off, o.end),
		fmt.Sprintf("the device failed %d times to keep what was appended; the data cannot be made durable", o.redone))
}
