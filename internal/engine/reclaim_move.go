package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

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
		var read partsRead
		parts, read = e.readParts(parts)
		step.bad, step.unread = read.bad, read.unread
		if step.moved, step.dropped, err = e.relocate(ctx, parts); err != nil {
			if tries++; errors.Is(err, errSuspect) && tries <= redoTries {
				continue
			}
			if errdefs.Is(err, errdefs.Corruption) {
				return out, m.hold(slot, err)
			}
			return out, err
		}
		e.mended(read.mended)
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
		e.quarantine(slot, true, errUnreadable)
	}
	if now := e.al.Snapshot(int(slot), 1)[0]; now.Live > 0 {
		if out.bad > 0 {
			return out, m.hold(slot, nil)
		}
		// A commit has freed the rest, and alloc is about to be told. Until then this would be the best
		// candidate again and again.
		e.rc.index.Hold(slot)
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
		Reason: "ZONE_NOT_RECLAIMABLE", Severity: Warning, Object: e.placeName(slot), Message: msg,
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

// partsRead is what was met when parts were read.
type partsRead struct {
	bad, unread int64 // blocks that are bad in every copy; of them, those that could not be read
	mended      []spareCopy
}

// spareCopy is a block of which a copy is bad and another good.
type spareCopy struct {
	at   extent.Addr
	want uint32
	bad  []badCopy
}

// readParts reads the parts, in as few reads as make sense, and holds each block against its checksum. What
// is bad is taken from another copy. It returns what is good, cut at frames; blocks that are good in no copy
// are reported.
func (e *Engine) readParts(parts []livePart) (good []livePart, met partsRead) {
	if len(parts) == 0 {
		return nil, met
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
			good = append(good, e.verifyPart(p, err != nil, &met)...)
		}
	}
	return good, met
}

// readZone reads in commands of at most moveRead bytes.
func (e *Engine) readZone(slot uint32, off int64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), moveRead)
		if err := e.dev.ReadAt(int(slot), off, p[:n]); err != nil {
			e.count.readErrors.Add(1)
			return err
		}
		off, p = off+int64(n), p[n:]
	}
	return nil
}

// verifyPart holds a part's blocks against their checksums. What fails is read once more, block by
// block, from every copy. It returns the runs of units that are good.
func (e *Engine) verifyPart(p livePart, again bool, met *partsRead) (good []livePart) {
	var spoiled []bool
	for i, want := range p.sums {
		b := p.data[i*extent.BlockSize:][:extent.BlockSize]
		if !again && csum.Sum(b) == want {
			continue
		}
		at := p.addr + extent.Addr(i*extent.BlockSize)
		fine, bad := e.readCopies(at, want, b)
		if fine {
			if len(bad) > 0 {
				met.mended = append(met.mended, spareCopy{at, want, bad})
			}
			continue
		}
		if spoiled == nil {
			spoiled = make([]bool, p.blocks)
		}
		spoiled[i] = true
		met.bad++
		if bad[0].err != nil {
			met.unread++
		}
		e.badBlock(at, want, bad)
	}
	if spoiled == nil {
		return []livePart{p}
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
	return good
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
