package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/reclaim"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
)

const (
	// moveBytes is how much is read, appended and remapped at a time; the memory that reclaim takes.
	moveBytes = 4 << 20
	// moveParts bounds the extents of that, and with them the transaction.
	moveParts = 512
	// moveGap is how far apart what is read together may lie.
	moveGap = 32 << 10
	// moveRead bounds one read or append, so that a client's does not wait long behind it.
	moveRead = 1 << 20
)

var (
	errSuspect    = errors.New("what was appended is in doubt after a failed flush or zone")
	errUnflushed  = errors.New("no flush has covered what was appended")
	errUnreadable = errors.New("the device cannot read data in it that was written well")
	errNoRoom     = errors.New("there is no room to move live data to")
)

// livePart is a run of live blocks of one extent on its way.
type livePart struct {
	addr   extent.Addr
	blocks int64
	frames []extent.Frame // nil: raw
	sums   []uint32
	data   []byte
}

// outcome is what came of emptying a block group.
type outcome struct {
	skipped bool // it is no candidate any more
	emptied bool // nothing is live in it
	dead    int64
	moved   int64 // bytes
	dropped int64 // died while they were moved
	bad     int64 // blocks that stay where they are
	unread  int64 // of them, those that the device could not read
}

// mover empties block groups.
type mover struct {
	e *Engine
	// rest is called between steps with the time that the last one took; false ends the work.
	rest func(worked time.Duration, others bool) bool
	// progress, unless nil, is called after each step with what the step did.
	progress func(outcome)
}

// empty moves what is live in the block group elsewhere: block by block verified, and looked at again
// in the transaction that remaps it, so nobody is kept out meanwhile. A block that is bad stays, with
// its frame; a block group with something left is held back from being chosen. The error is not of
// the block group: no room, closing, a store that takes no changes, ctx.
func (m *mover) empty(ctx context.Context, slot uint32) (out outcome, err error) {
	e := m.e
	select {
	case e.rc.turn <- struct{}{}:
		defer func() { <-e.rc.turn }()
	case <-ctx.Done():
		return out, ctx.Err()
	case <-e.stop:
		return out, e.writable("engine.Reclaim")
	}
	bg, ok := e.al.Pin(slot)
	if !ok {
		return outcome{skipped: true}, nil
	}
	e.rc.working.Add(1)
	e.rc.victims.Add(1)
	out.dead = bg.Unusable
	defer func() {
		e.al.Unpin(slot)
		e.rc.working.Add(-1)
		e.resetKick.set()
	}()
	end := e.addr(slot+1, 0)
	tries := 0
	for at := e.addr(slot, 0); at < end; {
		began, before := e.o.Now(), e.foreground()
		parts, next, err := e.gather(at, end)
		if err != nil {
			return out, m.hold(slot, err)
		}
		step := outcome{}
		parts, step.bad, step.unread = e.readParts(parts)
		if step.moved, step.dropped, err = e.relocate(ctx, parts); err != nil {
			if tries++; errors.Is(err, errSuspect) && tries <= redoTries {
				continue
			}
			if errdefs.Is(err, errdefs.Corruption) {
				return out, m.hold(slot, err)
			}
			return out, err
		}
		out.moved, out.dropped, out.bad, out.unread = out.moved+step.moved, out.dropped+step.dropped, out.bad+step.bad, out.unread+step.unread
		if m.progress != nil {
			m.progress(step)
		}
		at = next
		if err := ctx.Err(); err != nil {
			return out, err
		}
		if at < end && !m.rest(e.o.Now().Sub(began), e.foreground() != before) {
			return out, e.writable("engine.Reclaim")
		}
	}
	if out.unread > 0 {
		// The medium is failing: nothing is stored there again.
		e.note(slot, bgRecord{readOnly: true})
		e.quarantine(slot, e.zoneOf(slot), true, errUnreadable)
	}
	if now := e.al.Snapshot(int(slot), 1)[0]; now.Live > 0 && out.bad > 0 {
		return out, m.hold(slot, nil)
	}
	out.emptied = true
	e.rc.emptied.Add(1)
	return out, nil
}

// hold keeps a block group from being chosen again until something in it changes.
func (m *mover) hold(slot uint32, cause error) error {
	e := m.e
	e.rc.failed.Add(1)
	e.rc.index.Hold(slot)
	z := e.zoneOf(slot)
	msg := fmt.Sprintf("zone %d cannot be emptied and reset: it holds bad blocks that files still refer to", z)
	if cause != nil {
		if !errdefs.Is(cause, errdefs.Corruption) {
			return cause
		}
		msg = fmt.Sprintf("zone %d cannot be emptied and reset: %v", z, cause)
	}
	e.o.Logger.Warn("a block group cannot be emptied", "block_group", slot, "zone", z, "detail", msg)
	e.cond.set(Condition{
		Reason: "ZONE_NOT_RECLAIMABLE", Severity: Warning, Object: fmt.Sprintf("devices/0/zones/%d", z), Message: msg,
		Advice: "rewrite or delete the files that are reported as damaged; the rest of the zone then comes back by itself",
		Since:  e.o.Now(),
	})
	return nil
}

// gather looks up what is live from at on, up to a step's worth; next is where to go on.
func (e *Engine) gather(at, end extent.Addr) (parts []livePart, next extent.Addr, err error) {
	next = end
	err = e.st.View(func(tx *store.Tx) error {
		parts, next = nil, end
		room, last := int64(moveBytes/extent.BlockSize), at
		var bad error
		err := tx.ExtentsIn(at, end, func(x store.Extent) bool {
			p := livePart{addr: x.Addr, blocks: x.Blocks, frames: x.Frames}
			if p.addr < at {
				p = p.after((int64(at) - int64(p.addr)) / extent.BlockSize)
			}
			if gap := int64(p.addr - last); gap <= moveGap {
				room -= gap / extent.BlockSize
			}
			rest := p.blocks
			if p = p.upTo(room); p.blocks == 0 || len(parts) == moveParts {
				next = max(p.addr, at)
				return false
			}
			room -= p.blocks
			last = p.end()
			if p.sums, bad = tx.Checksums(p.addr, p.blocks); bad != nil {
				return false
			}
			parts = append(parts, p)
			if p.blocks < rest {
				next = p.end()
				return false
			}
			return true
		})
		if err == nil {
			err = bad
		}
		return err
	})
	return parts, next, err
}

func (p *livePart) end() extent.Addr { return p.addr + extent.Addr(p.blocks*extent.BlockSize) }

// after returns the part without its first blocks, which are whole frames.
func (p livePart) after(blocks int64) livePart {
	p.addr += extent.Addr(blocks * extent.BlockSize)
	p.blocks -= blocks
	if p.sums != nil {
		p.sums, p.data = p.sums[blocks:], p.data[blocks*extent.BlockSize:]
	}
	for n := int64(0); p.frames != nil && n < blocks; p.frames = p.frames[1:] {
		n += p.frames[0].Blocks()
	}
	return p
}

// upTo returns as much of the part's beginning as so many blocks hold in whole frames.
func (p livePart) upTo(blocks int64) livePart {
	if p.blocks <= blocks {
		return p
	}
	n := max(0, blocks)
	if p.frames != nil {
		frames := 0
		for n = 0; n+p.frames[frames].Blocks() <= blocks; frames++ {
			n += p.frames[frames].Blocks()
		}
		p.frames = p.frames[:frames:frames]
	}
	p.blocks = n
	if p.sums != nil {
		p.sums, p.data = p.sums[:n:n], p.data[:n*extent.BlockSize]
	}
	return p
}

// readParts reads the parts, in as few reads as make sense, and holds each block against its checksum.
// It returns what is good, cut at frames, and how many blocks are not, or cannot even be read; those are
// reported.
func (e *Engine) readParts(parts []livePart) (good []livePart, bad, unread int64) {
	if len(parts) == 0 {
		return nil, 0, 0
	}
	ranges := make([]extent.Range, len(parts))
	slot, _ := e.split(parts[0].addr)
	for i := range parts {
		_, off := e.split(parts[i].addr)
		ranges[i] = extent.Range{Off: off, End: off + parts[i].blocks*extent.BlockSize}
	}
	reads := reclaim.Reads(ranges, moveGap, moveRead)
	need := int64(0)
	for _, r := range reads {
		need += r.End - r.Off
	}
	if int64(len(e.rc.buf)) < need {
		e.rc.buf = slab.Aligned(max(need, min(2*int64(len(e.rc.buf)), moveBytes)))
	}
	buf := e.rc.buf
	for _, r := range reads {
		data := buf[:r.End-r.Off]
		buf = buf[len(data):]
		err := e.readZone(slot, r.Off, data)
		for i := r.First; i < r.Last; i++ {
			p := parts[i]
			p.data = data[ranges[i].Off-r.Off:][:p.blocks*extent.BlockSize]
			g, b, u := e.verifyPart(p, err != nil)
			good = append(good, g...)
			bad, unread = bad+b, unread+u
		}
	}
	return good, bad, unread
}

// readZone reads in commands of at most moveRead bytes.
func (e *Engine) readZone(slot uint32, off int64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), moveRead)
		if err := e.dev.ReadAt(e.zoneOf(slot), off, p[:n]); err != nil {
			e.count.readErrors.Add(1)
			return err
		}
		off, p = off+int64(n), p[n:]
	}
	return nil
}

// verifyPart holds a part's blocks against their checksums. What fails is read once more, block by
// block. It returns the runs of units that are good.
func (e *Engine) verifyPart(p livePart, again bool) (good []livePart, bad, unread int64) {
	slot, off := e.split(p.addr)
	spoiled := make([]bool, 0)
	for i, want := range p.sums {
		b := p.data[i*extent.BlockSize:][:extent.BlockSize]
		if !again && csum.Sum(b) == want {
			continue
		}
		err := e.dev.ReadAt(e.zoneOf(slot), off+int64(i)*extent.BlockSize, b)
		if got := csum.Sum(b); err != nil || got != want {
			if len(spoiled) == 0 {
				spoiled = make([]bool, p.blocks)
			}
			spoiled[i] = true
			bad++
			if err != nil {
				unread++
			}
			e.badBlock(p.addr+extent.Addr(i*extent.BlockSize), want, got, err)
		}
	}
	if bad == 0 {
		return []livePart{p}, 0, 0
	}
	run := int64(0) // blocks of good units before the one at hand
	rest := p
	flush := func(skip int64) {
		if run > 0 {
			good = append(good, rest.upTo(run))
		}
		rest, run = rest.after(run+skip), 0
	}
	at := int64(0)
	for _, n := range p.unitBlocks() {
		ok := true
		for i := at; i < at+n; i++ {
			ok = ok && !spoiled[i]
		}
		at += n
		if ok {
			run += n
		} else {
			flush(n)
		}
	}
	flush(0)
	return good, bad, unread
}

// unitBlocks returns the blocks of each unit of the part: of each frame, or 1.
func (p *livePart) unitBlocks() []int64 {
	if p.frames == nil {
		ones := make([]int64, p.blocks)
		for i := range ones {
			ones[i] = 1
		}
		return ones
	}
	out := make([]int64, len(p.frames))
	for i := range p.frames {
		out[i] = p.frames[i].Blocks()
	}
	return out
}

// badBlock reports a block that fails its checksum or cannot be read, for a few of the files that
// refer to it.
func (e *Engine) badBlock(at extent.Addr, want, got uint32, cause error) {
	e.rc.badBlocks.Add(1)
	e.count.corruptions.Add(1)
	err := e.st.View(func(tx *store.Tx) error {
		refs, err := tx.RefsTo(at, 8)
		for _, ref := range refs {
			pieces, err := tx.Map(ref.File, ref.Off, ref.End())
			if err != nil {
				return err
			}
			for _, x := range pieces {
				if block := int64(at-x.Addr) / extent.BlockSize; at < x.Addr || block >= x.Blocks {
					continue
				} else if f := (&file{id: ref.File}); cause != nil {
					_ = e.readFailed(f, x, block, cause)
				} else {
					_ = e.corruption(f, x, block, want, got)
				}
			}
		}
		return err
	})
	if err != nil {
		e.o.Logger.Warn("it is not known who refers to a bad block", "address", uint64(at), "error", err)
	}
}

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
