package engine

import (
	"fmt"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// What goes to conventional zones first, where the device has both kinds: ranges below
// smallRange, and ranges below rewrittenRange that replace what their file has on record. Such data
// dies soon or piecemeal; in a conventional zone its blocks are free again at once, in a sequential
// one they would wait for a reset, and cost the moving of what is around them. More of it would push
// the small data out, since the conventional part of a drive is about a hundredth.
const (
	smallRange     = 64 << 10
	rewrittenRange = 1 << 20
)

// conventional reports whether the slot's zone is one.
func (e *Engine) conventional(slot uint32) bool { return !e.geo.IsSequential(int(slot)) }

// prefersConventional decides where the range is to go first.
func (e *Engine) prefersConventional(o *ordered) bool {
	n := o.rng.Len()
	if n < smallRange || n >= rewrittenRange {
		return n < smallRange
	}
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return !o.f.mu.staged && o.rng.Off < extent.RoundDown(o.f.mu.durable)
}

// freedRuns are blocks of conventional zones that are on their way to be free.
type freedRuns struct {
	sync.Mutex
	runs   []store.Run // freed by a commit; reads may still look at them
	failed []store.Run // could not be written
}

// noteFreed is told by the store, after each commit, what that freed.
func (e *Engine) noteFreed(runs []store.Run) {
	e.freed.Lock()
	e.freed.runs = append(e.freed.runs, runs...)
	e.freed.Unlock()
	e.vacateKick.set()
}

// vacater lets freed blocks be written again. Their transaction is durable, so no look-up from now
// on finds them; the epochs add that no read still looks at them.
func (e *Engine) vacater() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.vacateKick:
		case <-tick.C:
			e.probe()
		case <-e.stop:
			return
		}
		e.freed.Lock()
		runs := e.freed.runs
		e.freed.runs = nil
		e.freed.Unlock()
		if len(runs) == 0 {
			continue
		}
		if !e.epochs.wait(e.stop) {
			return // closing: the next open finds them free
		}
		for _, r := range runs {
			e.al.Vacate(r.Slot, r.Off, r.Len)
		}
	}
}

// bitmaps are the bitmaps of the conventional block groups that are neither empty nor full.
type bitmaps struct {
	words  map[uint32][]uint64
	mended []uint32         // those worked out anew, to be written again
	broken map[uint32]error // those that cannot be
}

// readBitmap reads the bitmap of a block group, or works it out from the extents.
func (b *bitmaps) readBitmap(tx *store.Tx, g store.BlockGroup) error {
	if g.Kind != store.KindConventional || g.LiveBytes == 0 || g.LiveBytes == g.Capacity {
		return nil
	}
	words, err := tx.Bitmap(g)
	if errdefs.Is(err, errdefs.Corruption) {
		if words, err = tx.DeriveBitmap(g); err == nil {
			b.mended = append(b.mended, g.Slot)
		}
	}
	switch {
	case err == nil:
		b.words[g.Slot] = words
	case errdefs.Is(err, errdefs.Corruption):
		b.broken[g.Slot] = err
	default:
		return err
	}
	return nil
}

// put writes what was mended.
func (b *bitmaps) put(tx *store.Tx) error {
	for _, slot := range b.mended {
		if err := tx.PutBitmap(slot, b.words[slot]); err != nil {
			return err
		}
	}
	return nil
}

// recoverConventional takes a conventional block group over. There is no write pointer that could
// disagree: what the metadata says is so.
func (e *Engine) recoverConventional(g store.BlockGroup, z zone.Zone, b *bitmaps) alloc.BlockGroup {
	bg := alloc.BlockGroup{
		Slot: g.Slot, Zone: e.zoneOf(g.Slot), Conventional: true, Capacity: g.Capacity, Live: g.LiveBytes,
		Generation: g.Generation, Class: alloc.Class(g.Class), State: alloc.Active,
	}
	switch z.Condition {
	case zone.ReadOnly, zone.Offline:
		bg.State = alloc.Quarantined
		if z.Condition == zone.ReadOnly {
			bg.State = alloc.ReadOnly
		}
		e.report("ZONE_FAILED", Error, e.placeName(g.Slot), fmt.Sprintf("zone %d is %s; %d live bytes lie in it", e.zoneOf(g.Slot), conditionWord(z.Condition), g.LiveBytes))
		return bg
	}
	if err := b.broken[g.Slot]; err != nil {
		// What is free is not known, so nothing is written there.
		bg.State = alloc.ReadOnly
		e.report("BITMAP_LOST", Error, e.placeName(g.Slot), fmt.Sprintf("what is free in zone %d is not known, so nothing new is put there: %v", e.zoneOf(g.Slot), err))
	}
	return bg
}

// reportMended names the block groups whose bitmap was worked out anew.
func (e *Engine) reportMended(b *bitmaps) {
	for _, slot := range b.mended {
		e.report("BITMAP_MENDED", Warning, e.placeName(slot), fmt.Sprintf("the bitmap of zone %d was damaged and has been worked out anew from the extents in it", e.zoneOf(slot)))
	}
}

// writeFailed handles a refused write to a conventional zone: alloc keeps its blocks aside, so that
// the data goes elsewhere, until the vacater finds that they can be written.
func (e *Engine) writeFailed(g alloc.Grant, cause error) {
	e.o.Logger.Warn("write failed; the data goes elsewhere", "place", e.placeName(g.Slot), "block_group", g.Slot, "offset", g.Off, "length", g.Length, "error", cause)
	e.cond.set(Condition{
		Reason: "WRITE_FAILED", Severity: Warning, Object: e.placeName(g.Slot),
		Message: fmt.Sprintf("blocks of zone %d could not be written and are set aside until they can: %v", e.zoneOf(g.Slot), cause),
		Advice:  "if it goes on, replace the drive",
		Since:   e.o.Now(),
	})
	e.freed.Lock()
	e.freed.failed = append(e.freed.failed, store.Run{Slot: g.Slot, Off: g.Off, Len: g.Length})
	e.freed.Unlock()
}

// A failed write sets aside all that it was to write, although one block may be to blame, or a
// cable. So that neither takes space for good, zeros are written there every now and then: to a few
// runs at a time, and where that fails to each half later.
const (
	probeEvery = time.Second
	probeRuns  = 16
)

// probe tries some of the blocks that failed.
func (e *Engine) probe() {
	e.freed.Lock()
	n := min(probeRuns, len(e.freed.failed))
	due := e.freed.failed[:n:n]
	e.freed.failed = e.freed.failed[n:]
	e.freed.Unlock()
	var again []store.Run
	for _, r := range due {
		if e.writable("engine.probe") == nil && e.writeZeros(r) == nil {
			e.trimmed.markRuns(r.Slot, []extent.Range{{Off: r.Off, End: r.Off + r.Len}}, false)
			e.al.Mended(r.Slot, r.Off, r.Len)
			continue
		}
		if half := extent.RoundUp(r.Len / 2); half < r.Len {
			again = append(again, store.Run{Slot: r.Slot, Off: r.Off, Len: half})
			r.Off, r.Len = r.Off+half, r.Len-half
		}
		again = append(again, r)
	}
	e.freed.Lock()
	e.freed.failed = append(e.freed.failed, again...)
	e.freed.Unlock()
}

func (e *Engine) writeZeros(r store.Run) error {
	s := scratch(readWindow)
	defer s.done()
	p := s.b[:readWindow]
	clear(p)
	for off := r.Off; off < r.Off+r.Len; off += readWindow {
		if err := e.dev.Write(int(r.Slot), off, [][]byte{p[:min(readWindow, r.Off+r.Len-off)]}); err != nil {
			return err
		}
	}
	return nil
}
