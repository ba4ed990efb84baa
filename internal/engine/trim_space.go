package engine

import (
	"context"
	"errors"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
)

// trimSpace is the store as a trim sees it. It implements trim.Space; what concerns conventional
// zones is in trim_runs.go.
type trimSpace struct {
	e        *Engine
	device   zone.Discarder  // nil: the device has no discard
	patience <-chan struct{} // closed when what is under way is not waited for any more
	known    knownRuns
}

func (e *Engine) newTrimSpace() *trimSpace {
	over := make(chan struct{})
	time.AfterFunc(e.apart(trimPatience), func() { close(over) })
	s := &trimSpace{e: e, patience: over}
	if e.dev.CanDiscard() {
		s.device = e.dev
	}
	return s
}

func (s *trimSpace) Layout() (slots int, size int64) { return s.e.slots(), s.e.geo.ZoneSize }

// passing reports whether the block group is on its way to another state by itself.
func passing(b alloc.BlockGroup) bool {
	return !b.Conventional && (b.State == alloc.Resetting || b.State == alloc.Closing || b.State == alloc.Active && b.AllocOffset == 0)
}

func (s *trimSpace) Group(slot uint32) trim.Group {
	b := s.settled(slot)
	g := trim.Group{Capacity: b.Capacity}
	if b.Conventional {
		g.Kind = trim.Conventional
	}
	switch {
	case b.State == alloc.ReadOnly || b.State == alloc.Quarantined:
		g.Condition = trim.Failed
	case b.Conventional:
	case passing(b):
		g.Condition = trim.Busy
	case b.State == alloc.Empty:
		g.Empty = true
		if s.device == nil || s.e.trimmed.has(slot) {
			g.Condition = trim.Trimmed // without a discard there is nothing to tell of an empty zone
		}
	case b.Live > 0 || b.Pending > 0:
		g.Condition, g.Used = trim.InUse, alloc.HeaderSize+b.Live+b.Pending
	}
	return g
}

// settled describes the block group when it is in no passing state, or patience is over.
func (s *trimSpace) settled(slot uint32) alloc.BlockGroup {
	for {
		changed := s.e.al.Changed()
		b, _ := s.e.al.BlockGroup(slot)
		if !passing(b) {
			return b
		}
		s.e.resetKick.set()
		select {
		case <-changed:
		case <-s.patience:
			return b
		case <-s.e.stop:
			return b
		}
	}
}

// LiveIn adds up what is on record of a part of a zone. It looks at the extents there only.
func (s *trimSpace) LiveIn(slot uint32, from, to int64) (n int64, err error) {
	n = extent.Range{Off: from, End: to}.Intersect(extent.Range{End: alloc.HeaderSize}).Len()
	part := extent.Range{Off: int64(s.e.addr(slot, from)), End: int64(s.e.addr(slot, to))}
	err = s.e.st.View(func(tx *store.Tx) error {
		first := part.Off
		x, ok, err := tx.LastExtent(s.e.addr(slot, 0), extent.Addr(part.Off)+1)
		if err != nil {
			return err
		}
		if ok {
			first = int64(x.Addr)
		}
		return tx.Extents(extent.Addr(first), func(x store.Extent) bool {
			at := int64(x.Addr)
			n += part.Intersect(extent.Range{Off: at, End: at + x.Blocks*extent.BlockSize}).Len()
			return at < part.End
		})
	})
	return n, err
}

// GiveBack resets and releases the zone. It is marked before it can be opened again. The background
// may be quicker with the reset.
func (s *trimSpace) GiveBack(ctx context.Context, slot uint32) (reset bool, err error) {
	for range 3 {
		b := s.settled(slot)
		switch {
		case b.State == alloc.Empty:
			if s.e.al.HoldEmpty(b) {
				defer s.e.al.ReleaseEmpty(slot)
				return false, s.release(b, b.Generation)
			}
		case b.State != alloc.Full && b.State != alloc.Active || b.Live+b.Pending > 0:
			return false, trim.ErrBusy
		default:
			if done, err := s.reset(ctx, b); done || err != nil {
				return done, err
			}
		}
	}
	return false, trim.ErrBusy
}

// reset resets and releases a zone that holds nothing. False: it is not what it was any more.
func (s *trimSpace) reset(ctx context.Context, b alloc.BlockGroup) (done bool, err error) {
	e := s.e
	// Nothing in it is on record, so only reads that are under way can look at it. Nothing was
	// granted since either, or BeginResetOf refuses.
	if !s.readersGone(ctx) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		return false, trim.ErrBusy
	}
	if !e.al.BeginResetOf(b) {
		return false, nil
	}
	e.resetting.Add(1)
	defer e.resetting.Add(-1)
	if err := e.resetZone(b); err != nil {
		return false, err
	}
	err = s.release(b, b.Generation+1)
	e.al.FinishReset(b.Slot, true)
	return true, err
}

// release gives up what the device keeps for an empty zone that nobody can open.
func (s *trimSpace) release(b alloc.BlockGroup, generation uint64) error {
	if s.device == nil {
		return nil
	}
	if err := s.device.Release(int(b.Slot)); err != nil && !errors.Is(err, zone.ErrNoDiscard) {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Trim", s.e.placeName(b.Slot), err)
	}
	if s.e.trimmed.mark(b.Slot, generation) >= manyMarks {
		s.e.group.Kick()
	}
	return nil
}

// readersGone waits for the reads under way, for a while.
func (s *trimSpace) readersGone(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.e.apart(readerPatience))
	defer cancel()
	return s.e.epochs.wait(ctx.Done())
}
