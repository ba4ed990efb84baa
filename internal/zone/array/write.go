package array

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// atWP stands for the offset of an append.
const atWP = -1

// Append implements zone.Device: AppendEach of the same bytes.
func (a *Array) Append(z int, bufs [][]byte) (int64, error) {
	return a.AppendEach(z, func(int, Place) [][]byte { return bufs })
}

// AppendEach appends at the write pointer of each place that is not Stale what bufs says for it: as
// many bytes for each, so that they can differ where copies do (zone headers). bufs is called once a
// place, with its index in Places, before anything is written; what it returns is the caller's again
// when AppendEach returns. The answer is the offset, which is the same on all.
//
// Success means that every place took the bytes or is Stale from now on. A refusal (too large, no
// room, too many zones) that is the same on every place changes nothing. After any other error the
// set is torn: it is refused with ErrMedia until Finish or Reset, unless one place only is left.
func (a *Array) AppendEach(z int, bufs func(copy int, p Place) [][]byte) (off int64, err error) {
	const op = "zone.Append"
	s, only, err := a.set(op, z)
	if err != nil {
		return 0, err
	}
	if only.member != nil {
		off, err = only.dev.Append(only.Zone, bufs(only.copy, only.Place))
		return off, only.alone(op, z, err)
	}
	return a.put(op, z, s, atWP, bufs)
}

// Write implements zone.Device. A set of several places takes it as it takes an append; the blocks
// of a conventional one may differ between its places after an error.
func (a *Array) Write(z int, off int64, bufs [][]byte) error {
	const op = "zone.Write"
	s, only, err := a.set(op, z)
	if err != nil {
		return err
	}
	if only.member != nil {
		return only.alone(op, z, only.dev.Write(only.Zone, off, bufs))
	}
	if off < 0 {
		err := errdefs.Invalid(op, "off", fmt.Sprintf("offset %d is negative", off))
		err.Object = object(z)
		return err
	}
	_, err = a.put(op, z, s, off, func(int, Place) [][]byte { return bufs })
	return err
}

// alone is the outcome of a call that changed the only place of a set: a member that was taken out
// meanwhile takes what it took with it.
func (t target) alone(op string, z int, err error) error {
	switch {
	case err != nil:
		return t.name(err)
	case t.out.Load():
		return refuse(op, z, zone.ErrZoneOffline)
	}
	return nil
}

// put writes to all places of the set that are not Stale.
func (a *Array) put(op string, z int, s *set, off int64, bufs func(int, Place) [][]byte) (int64, error) {
	defer a.tell()
	w := write{op: op, zone: z, set: s, off: off}
	if a.ordered(s) {
		a.enter(s)
		defer a.leave(s)
	}
	if err := a.aim(&w); err != nil {
		return 0, err
	}
	vecs := make([][][]byte, len(w.ts))
	for i, t := range w.ts {
		vecs[i] = bufs(t.copy, t.Place)
		n := zone.TotalLen(vecs[i])
		if i > 0 && n != w.n {
			err := errdefs.Invalid(op, "bufs", fmt.Sprintf("copies of %d and of %d bytes", w.n, n))
			err.Object = object(z)
			return 0, err
		}
		w.n = n
	}
	if err := a.check(&w); err != nil {
		return 0, err
	}
	errs := each(w.ts, func(i int, t target) error {
		if err := t.dev.Write(t.Zone, w.off, vecs[i]); err != nil {
			return err
		}
		if w.sequential && w.off+w.n == w.capacity && w.capacity < t.geo.CapacityOf(t.Zone) {
			return t.dev.Finish(t.Zone) // the set is full, so it may hold no slot here either
		}
		return nil
	})
	took, moved, failed := a.settle(op, z, w.ts, errs)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case failed == nil:
		s.wp = w.off + w.n
		if s.tookLocked(took) {
			a.missedLocked(z)
		}
	case w.sequential && (moved || len(took) > 0):
		s.torn, s.known = true, false
	}
	return w.off, failed
}

// ordered reports whether the calls that change a set are taken one after another: not those of a
// conventional one, which has no write pointer to agree on.
func (a *Array) ordered(s *set) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, p := range s.places {
		if p.m != nil && p.m.dev != nil {
			return p.m.geo.IsSequential(p.Zone)
		}
	}
	return true
}

// write is a write of a set of several places, whose turn the caller has if it is sequential.
type write struct {
	op         string
	zone       int
	set        *set
	ts         []target // at least one
	sequential bool
	capacity   int64 // of the set
	off        int64
	n          int64
}

// aim finds the places that a write goes to, and for an append the offset. A member whose report
// fails is probed as after a failed write.
func (a *Array) aim(w *write) error {
	for {
		a.mu.RLock()
		w.ts = w.set.targetsLocked(false)
		_, w.capacity = w.set.sizeLocked(&a.geo)
		a.mu.RUnlock()
		if len(w.ts) == 0 {
			return refuse(w.op, w.zone, zone.ErrZoneOffline)
		}
		w.sequential = w.ts[0].geo.IsSequential(w.ts[0].Zone)
		if !w.sequential {
			return nil
		}
		bad, err := a.survey(w.set, w.ts)
		if err == nil {
			break
		}
		a.suspect(bad, err)
		if !bad.out.Load() {
			return bad.name(err)
		}
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	if w.set.torn && len(w.ts) > 1 {
		return &errdefs.Error{
			Kind: errdefs.Device, Reason: errdefs.ReasonDeviceIO, Op: w.op, Object: object(w.zone), Err: zone.ErrMedia,
			Msg: "a write failed on one copy, and the copies may differ in length: the zone takes no more until it is finished or reset",
		}
	}
	if w.off == atWP {
		w.off = w.set.wp
	}
	return nil
}

// check refuses what one place alone could not know to refuse; the rest is left to the members.
func (a *Array) check(w *write) error {
	if w.n <= 0 || w.n%extent.BlockSize != 0 {
		if w.off == atWP { // of a conventional set: no offset to be wrong about
			w.off = 0
		}
		return nil
	}
	a.mu.RLock()
	limit := a.geo.AppendLimit
	a.mu.RUnlock()
	switch {
	case w.op == "zone.Append" && !w.sequential:
		return refuse(w.op, w.zone, zone.ErrConventional)
	case w.op == "zone.Append" && limit > 0 && w.n > limit:
		return refuse(w.op, w.zone, zone.ErrAppendTooLarge)
	case w.off+w.n > w.capacity && w.off < w.capacity && w.uneven():
		return refuse(w.op, w.zone, zone.ErrBoundary)
	}
	return nil
}

// uneven reports whether a place could hold more than the set.
func (w *write) uneven() bool {
	for _, t := range w.ts {
		if t.geo.CapacityOf(t.Zone) > w.capacity {
			return true
		}
	}
	return false
}
