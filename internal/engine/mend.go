package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

const (
	// mendQueue bounds the blocks that reads have met and that wait to be mended. What is met beyond is met
	// again.
	mendQueue = 1024
	// mendSome is how many bad blocks are moved out of a block group one by one; where there are more, all of
	// it is moved.
	mendSome = 256
)

// mendLater has a block mended that a read has met.
func (e *Engine) mendLater(at extent.Addr, want uint32, bad []badCopy) {
	if len(bad) == 0 || e.writable("engine.mend") != nil {
		return
	}
	select {
	case e.mends <- spareCopy{at, want, bad}:
	default:
	}
}

// mender mends what reads have met.
func (e *Engine) mender() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		var due []spareCopy
		select {
		case c := <-e.mends:
			due = append(due, c)
		case <-e.stop:
			return
		}
		for len(due) < mendSome && len(e.mends) > 0 {
			due = append(due, <-e.mends)
		}
		slices.SortFunc(due, func(a, b spareCopy) int { return cmp.Compare(a.at, b.at) })
		due = slices.CompactFunc(due, func(a, b spareCopy) bool { return a.at == b.at })
		for len(due) > 0 {
			slot, _ := e.split(due[0].at)
			n := 1
			for n < len(due) {
				if s, _ := e.split(due[n].at); s != slot {
					break
				}
				n++
			}
			done, err := e.mend(ctx, slot, due[:n])
			if err != nil {
				e.o.Logger.Warn("bad copies were not mended", "place", e.placeName(slot), "blocks", n, "error", err)
			}
			e.mended(done)
			due = due[n:]
		}
	}
}

// mended counts what was mended, and tells a scrub that runs.
func (e *Engine) mended(cs []spareCopy) {
	for _, c := range cs {
		e.count.mended.Add(uint64(len(c.bad)))
		for _, b := range c.bad {
			e.scrubMet(c.at, b, c.want, true)
		}
	}
}

// mend puts blocks of one slot right that are bad in one copy and good in another, by moving them, with the
// frames they are in, to where both are good. It returns those that it found still to be there and has put
// right; an error says that others may be as they were.
func (e *Engine) mend(ctx context.Context, slot uint32, cs []spareCopy) (done []spareCopy, err error) {
	if len(cs) > mendSome {
		if err := e.mendGroup(ctx, slot); err != nil {
			return nil, err
		}
		return cs, nil
	}
	if !e.al.Keep(slot) {
		return nil, nil // nothing lives there any more
	}
	defer func() {
		e.al.Unpin(slot)
		e.resetKick.set()
	}()
	select {
	case e.rc.turn <- struct{}{}:
		defer func() { <-e.rc.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.stop:
		return nil, e.writable("engine.mend")
	}
	for tries := 0; ; tries++ {
		parts, alive, err := e.unitsOf(cs)
		if err != nil {
			return nil, err
		}
		for len(parts) > 0 {
			n := stepOf(parts)
			good, met := e.readParts(parts[:n])
			if met.bad > 0 {
				return nil, errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, "engine.mend", e.placeName(slot), "a block in the same frame is good in no copy")
			}
			if _, _, err = e.relocate(ctx, good); err != nil {
				break
			}
			parts = parts[n:]
		}
		if err == nil {
			return alive, nil
		}
		if !errors.Is(err, errSuspect) || tries >= redoTries {
			return nil, err
		}
	}
}

// stepOf is how many of the parts are read and moved together.
func stepOf(parts []livePart) (n int) {
	room := int64(moveBytes / extent.BlockSize)
	for n < len(parts) && n < moveParts && (n == 0 || parts[n].blocks <= room) {
		room -= parts[n].blocks
		n++
	}
	return n
}

// unitsOf looks up the blocks, which are in the order of their addresses, or the frames that they are in, as far as they still live: alive.
func (e *Engine) unitsOf(cs []spareCopy) (parts []livePart, alive []spareCopy, err error) {
	err = e.st.View(func(tx *store.Tx) error {
		parts, alive = nil, nil
		end := extent.Addr(0) // of what has been taken
		for _, c := range cs {
			if c.at < end {
				alive = append(alive, c)
				continue
			}
			var bad error
			err := tx.ExtentsIn(c.at, c.at+extent.BlockSize, func(x store.Extent) bool {
				p := livePart{addr: x.Addr, blocks: x.Blocks, frames: x.Frames}
				before, unit := int64(c.at-x.Addr)/extent.BlockSize, int64(1)
				if p.frames != nil {
					first := int64(0)
					for _, fr := range p.frames {
						if unit = fr.Blocks(); first+unit > before {
							break
						}
						first += unit
					}
					before = first
				}
				p = p.after(before).upTo(unit)
				if p.sums, bad = tx.Checksums(p.addr, p.blocks); bad == nil {
					parts, end, alive = append(parts, p), p.end(), append(alive, c)
				}
				return false
			})
			if err = cmp.Or(err, bad); err != nil {
				return err
			}
		}
		return nil
	})
	return parts, alive, err
}

// mendGroup moves all that lives in a block group.
func (e *Engine) mendGroup(ctx context.Context, slot uint32) error {
	if bg, _ := e.al.BlockGroup(slot); bg.State == alloc.Active {
		e.al.Suspect(slot)
		e.retireClosing()
	}
	m := mover{e: e, rest: e.restUnless}
	out, err := m.empty(ctx, slot)
	if err == nil && !out.emptied {
		if bg, _ := e.al.BlockGroup(slot); bg.Live > 0 {
			err = errdefs.New(errdefs.Unavailable, "", "engine.mend", e.placeName(slot), "not all of it could be moved")
		}
	}
	return err
}

// mendLabel writes a label of this run to the label zone of a device that holds none. Where the device has no
// active zone left for it, a block group that is written to gives its own up.
func (e *Engine) mendLabel(number uint32, dev zone.Device) error {
	above := uint32(0)
	for _, m := range e.dev.Members() {
		above = max(above, uint32(m.Number)+1)
	}
	l := e.labelOf(number, above, dev)
	err := label.Mend(dev, l)
	for tries := 0; tries < placeTries && (errors.Is(err, zone.ErrTooManyActive) || errors.Is(err, zone.ErrTooManyOpen)) && e.closeOne(); tries++ {
		err = label.Mend(dev, l)
	}
	return err
}

// closeOne finishes the zones of a block group that takes appends, if there is one with none on its way.
func (e *Engine) closeOne() bool {
	for slot := range uint32(e.slots()) {
		if bg, _ := e.al.BlockGroup(slot); bg.State == alloc.Active && !bg.Conventional && bg.Pending == 0 && bg.AllocOffset > 0 {
			e.al.Suspect(slot)
			return e.retireClosing() == nil
		}
	}
	return false
}

// Mend implements scrub.Space.
func (s *scrubSpace) Mend(ctx context.Context, fs []scrub.Finding) error {
	e := s.e
	due := map[uint32][]spareCopy{}
	whole := map[uint32]bool{}
	for i := range fs {
		f := &fs[i]
		if !f.Mend {
			continue
		}
		slot, _ := e.split(extent.Addr(f.Address))
		if f.Super {
			whole[slot] = true
		} else {
			due[slot] = append(due[slot], spareCopy{at: extent.Addr(f.Address), want: f.Expected})
		}
	}
	fixed := map[uint32]bool{}
	for slot := range whole {
		if fixed[slot] = e.mendGroup(ctx, slot) == nil; fixed[slot] {
			e.count.mended.Add(uint64(len(due[slot])) + 1)
		}
	}
	for slot, cs := range due {
		// Findings come as the reads that met them ended.
		slices.SortFunc(cs, func(a, b spareCopy) int { return cmp.Compare(a.at, b.at) })
		cs = slices.CompactFunc(cs, func(a, b spareCopy) bool { return a.at == b.at })
		if !fixed[slot] {
			done, err := e.mend(ctx, slot, cs)
			fixed[slot] = err == nil
			e.count.mended.Add(uint64(len(done)))
		}
	}
	for i := range fs {
		f := &fs[i]
		if slot, _ := e.split(extent.Addr(f.Address)); f.Mend && fixed[slot] && (!f.Super || whole[slot]) {
			f.Outcome = scrub.Repaired
			if f.Super {
				e.cond.clear("CORRUPTION", f.Object)
			}
		}
	}
	return ctx.Err()
}
