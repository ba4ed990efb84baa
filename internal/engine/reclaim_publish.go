package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/reclaim"
	"github.com/shingle-store/shingle/internal/store"
)

// relocate stores the parts elsewhere and remaps what is still live of them then. An error is
// errSuspect (try again from the look-up on), errNoRoom, or why the transaction failed.
func (e *Engine) relocate(ctx context.Context, parts []livePart) (moved, dropped int64, err error) {
	if len(parts) == 0 {
		return 0, 0, nil
	}
	j := &relocation{e: e, pending: map[uint32]int64{}, epoch: e.doubt.epoch.Load()}
	defer func() {
		for slot, n := range j.pending {
			if n > 0 {
				e.rc.copies.Add(-n)
				e.al.Discard(slot, n, false)
				e.rc.discarded.Add(uint64(n))
			}
		}
	}()
	if err := j.append(ctx, parts); err != nil {
		return 0, 0, err
	}
	if err := j.publish(); err != nil {
		return j.published, 0, err
	}
	e.rc.moved.Add(uint64(j.published))
	dropped = max(0, j.copied-j.published)
	e.rc.dropped.Add(uint64(dropped))
	return j.published, dropped, nil
}

// relocation is one step's worth of copies.
type relocation struct {
	e         *Engine
	epoch     uint64 // of doubt when it began
	moves     []store.Move
	pending   map[uint32]int64 // slot -> bytes granted and not published
	copied    int64
	published int64
}

// append stores the parts in block groups of relocation's.
func (j *relocation) append(ctx context.Context, parts []livePart) error {
	e := j.e
	for tries := 0; len(parts) > 0; {
		pieces := make([]reclaim.Piece, len(parts))
		for i := range parts {
			pieces[i].Blocks = parts[i].blocks
			if parts[i].frames != nil {
				pieces[i].Units = parts[i].unitBlocks()
			}
		}
		most := min(e.maxExtent, moveRead)
		take, left := reclaim.Fit(pieces, most/extent.BlockSize)
		if len(take) == 0 {
			return errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, "engine.relocate", fmt.Sprintf("address %d", parts[0].addr), "a frame is larger than an extent may be")
		}
		grant, err := e.allocateRelocation(ctx, most-left*extent.BlockSize)
		if err != nil {
			return err
		}
		// Less was granted: the end of a zone. What nothing fits of it is filled up, so that the zone is
		// full and its active slot free.
		take, left = reclaim.Fit(pieces, grant.Length/extent.BlockSize)
		bufs := make([][]byte, 0, len(take)+1)
		for _, t := range take {
			bufs = append(bufs, parts[t.Piece].data[:t.Blocks*extent.BlockSize])
		}
		if left > 0 {
			bufs = append(bufs, e.padding(left))
		}
		e.rc.copies.Add(grant.Length)
		at, err := e.append(grant, bufs)
		if err != nil {
			e.rc.copies.Add(-grant.Length)
			if tries++; tries >= placeTries {
				return err
			}
			continue
		}
		j.pending[grant.Slot] += grant.Length
		if left > 0 {
			e.note(grant.Slot, bgRecord{finished: true})
		}
		for _, t := range take {
			p := &parts[t.Piece]
			j.moves = append(j.moves, store.Move{From: p.addr, To: at, Blocks: t.Blocks})
			at += extent.Addr(t.Blocks * extent.BlockSize)
			j.copied += t.Blocks * extent.BlockSize
			*p = p.after(t.Blocks)
		}
		rest := parts[:0]
		for _, p := range parts {
			if p.blocks > 0 {
				rest = append(rest, p)
			}
		}
		parts = rest
	}
	return nil
}

// padding returns zeros of so many blocks; less than a frame's.
func (e *Engine) padding(blocks int64) []byte { return make([]byte, blocks*extent.BlockSize) }

// allocateRelocation is allocate for reclaim, which has the reserve and waits for resets only.
func (e *Engine) allocateRelocation(ctx context.Context, want int64) (alloc.Grant, error) {
	for tries := 0; ; {
		if err := e.writable("engine.relocate"); err != nil {
			return alloc.Grant{}, err
		}
		changed := e.al.Changed()
		grant, outcome := e.al.Allocate(alloc.ClassRelocation, want)
		switch outcome {
		case alloc.Granted:
			return grant, nil
		case alloc.NeedsOpen:
			if err := e.openBlockGroup(alloc.ClassRelocation); err != nil {
				if tries++; tries >= placeTries {
					return alloc.Grant{}, err
				}
			}
		case alloc.Busy:
			if err := e.retireClosing(); err != nil {
				// As in allocate: nothing else will change the device's mind.
				if tries++; tries >= placeTries {
					return alloc.Grant{}, err
				}
				changed = nil
			}
			e.resetKick.set()
			select {
			case <-changed:
			case <-e.spaceTick():
			case <-ctx.Done():
				return alloc.Grant{}, ctx.Err()
			case <-e.broken:
			case <-e.stop:
			}
		default:
			return alloc.Grant{}, errdefs.Wrap(errdefs.NoSpace, errdefs.ReasonNoSpace, "engine.relocate", "", errNoRoom)
		}
	}
}

// publish remaps what was copied, in bounded transactions, each after a flush that covers the copies.
func (j *relocation) publish() error {
	e := j.e
	step := e.rc.appended.Add(1)
	for limit := moveParts * 2; len(j.moves) > 0; {
		var d store.Delta
		var rest []store.Move
		err := e.group.DoFreeingThen(context.Background(), func(tx *store.Tx) (err error) {
			if j.inDoubt() {
				return errSuspect
			}
			if e.rc.flushed < step {
				return errUnflushed
			}
			d, rest, err = tx.MoveExtents(j.moves, limit)
			return err
		}, func() {
			for slot, n := range d.Freed {
				e.al.Free(slot, n)
			}
			for slot, n := range d.Added {
				e.rc.copies.Add(-n)
				e.al.Publish(slot, n)
				j.pending[slot] -= n
				j.published += n
			}
		})
		switch {
		case errors.Is(err, errUnflushed):
			// It came too late for that batch's flush; the next one's is for it.
		case errdefs.Is(err, errdefs.NoSpace) && limit > 1:
			limit = max(1, limit/16) // the metadata has no room for a copy of so many pages
		case err != nil:
			return err
		default:
			j.moves = rest
		}
	}
	return nil
}

// inDoubt reports whether a copy may be gone: a flush has failed since, or its zone. It runs in the
// group commit's goroutine, which is the one that finds that out.
func (j *relocation) inDoubt() bool {
	d := &j.e.doubt
	d.RLock()
	defer d.RUnlock()
	if d.epoch.Load() != j.epoch {
		return true
	}
	for slot := range j.pending {
		if _, lost := d.lost[slot]; lost {
			return true
		}
	}
	return false
}
