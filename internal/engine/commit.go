package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// mostPublished is how many ranges a commit publishes at most while the metadata is nearly full.
const mostPublished = 1024

// publication is what one commit publishes: the placed ranges whose appends completed before the
// flush began.
type publication struct {
	files   []*filePublication
	records map[uint32]bgRecord // block groups reset or opened since the last commit
	trimmed trimMarks           // what was given back to the device before the flush
}

type filePublication struct {
	f      *file
	ranges []*ordered
	size   int64 // the durable size after the commit
	freed  map[uint32]int64
	inline int64 // length of the inline data on record after the commit
	gone   bool  // the file has no record any more
}

// beforeCommit runs in the group commit's goroutine before each transaction: it flushes the
// device and answers what to publish with the changes of that batch.
func (e *Engine) beforeCommit() (store.Change, func(error), error) {
	moved := e.rc.appended.Load()
	p := e.collectPlaced(false)
	marks := e.takeTrimmed()
	if p.appended() || moved > e.rc.flushed || marks.needFlush() {
		if err := e.flush(); err != nil {
			e.trimmed.forget(marks)
			marks = trimMarks{}
			e.suspect(err)
			p = e.collectAgain(p) // inline data needs no device, all else the next flush
		}
		e.rc.flushed = moved // after a failure, what was appended finds itself in doubt
	}
	for e.dropLost() {
		p = e.collectAgain(p)
	}
	p.records, p.trimmed = e.takeRecords(), marks
	for _, fp := range p.files {
		e.holdBack(fp)
		e.giveUpStranded(fp)
	}
	return func(tx *store.Tx) error { return e.publish(tx, p) }, func(err error) { e.published(p, err) }, nil
}

// collectPlaced returns, for each file with something placed, the longest run of placed ranges
// from the head of its queue; with inlineOnly it ends before the first one with appended data.
func (e *Engine) collectPlaced(inlineOnly bool) *publication {
	e.ready.Lock()
	files := e.ready.files
	e.ready.files = map[*file]struct{}{}
	e.ready.Unlock()
	p := &publication{}
	n := 0
	// By id, for the order of the same work to be the same every time.
	for _, f := range slices.SortedFunc(maps.Keys(files), func(a, b *file) int { return cmp.Compare(a.id, b.id) }) {
		fp := &filePublication{f: f}
		f.mu.Lock()
		f.mu.commitErr = nil // this is another try
		for _, o := range f.mu.queue {
			if o.state != placed || inlineOnly && o.inline == nil || e.publishMax > 0 && n >= e.publishMax {
				break
			}
			fp.ranges = append(fp.ranges, o)
			n++
		}
		f.mu.Unlock()
		p.files = append(p.files, fp)
	}
	return p
}

// collectAgain collects what needs no flush of the same files and those that came since.
func (e *Engine) collectAgain(p *publication) *publication {
	for _, fp := range p.files {
		e.placedFile(fp.f)
	}
	e.group.Kick() // what is left out goes with the next batch
	return e.collectPlaced(true)
}

func (p *publication) appended() bool {
	for _, fp := range p.files {
		for _, o := range fp.ranges {
			if len(o.out.extents) > 0 {
				return true
			}
		}
	}
	return false
}

// holdBack fixes the durable size and keeps back ranges that would pass it: the size of the
// longest prefix of the file's writes that is all committed. So a crash never shows a size
// whose data is not there.
func (e *Engine) holdBack(fp *filePublication) {
	f := fp.f
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.mu.inBatch = len(fp.ranges) }()
	for {
		low, open := f.dirty.MinSeq()
		note := func(o *ordered) {
			if !open || o.rng.MinSeq < low {
				low, open = o.rng.MinSeq, true
			}
		}
		for _, o := range f.mu.failed {
			note(o)
		}
		for _, o := range f.mu.queue[len(fp.ranges):] {
			note(o)
		}
		if !open {
			fp.size = f.mu.size
			return
		}
		fp.size = f.sizeAtLocked(low - 1)
		keep := len(fp.ranges)
		for i, o := range fp.ranges {
			if o.end > fp.size {
				keep = i
				break
			}
		}
		if keep == len(fp.ranges) {
			return
		}
		fp.ranges = fp.ranges[:keep]
	}
}

// giveUpStranded gives up the ranges of a file that are held back by one that could not be made
// durable, if a cut waits for them: they could not be durable before that one.
func (e *Engine) giveUpStranded(fp *filePublication) {
	f := fp.f
	f.mu.Lock()
	cause := f.failedErrorLocked()
	var stranded []*ordered
	if f.mu.draining && cause != nil && len(fp.ranges) == 0 && f.dirty.Bytes() == 0 &&
		!slices.ContainsFunc(f.mu.queue, func(o *ordered) bool { return o.state != placed }) {
		stranded = slices.Clone(f.mu.queue)
	}
	f.mu.Unlock()
	for _, o := range stranded {
		e.unplace(o)
		e.giveUp(o, cause)
	}
}

// publish puts the publication into the transaction.
func (e *Engine) publish(tx *store.Tx, p *publication) error {
	if err := e.putRecords(tx, p.records); err != nil {
		return err
	}
	if err := p.trimmed.put(tx); err != nil {
		return err
	}
	if err := e.extendIDs(tx); err != nil {
		return err
	}
	for _, fp := range p.files {
		fp.freed, fp.gone, fp.inline = map[uint32]int64{}, false, 0
		if err := e.publishFile(tx, fp); err != nil {
			return &publishError{fp, err}
		}
	}
	return nil
}

func (e *Engine) publishFile(tx *store.Tx, fp *filePublication) error {
	f := fp.f
	f.mu.Lock()
	staged, persisted := f.mu.staged, f.mu.persisted
	generation, updated, writeID := f.mu.generation, f.mu.updated, f.mu.writeID
	codec, contentValid := f.codec, f.mu.contentValid
	f.mu.Unlock()
	if len(fp.ranges) == 0 {
		// The size on record changes only with ranges or a cut. This one's may be old: its file may
		// have been let go of, opened again and written to, or be in the middle of a truncate.
		return nil
	}
	n, err := tx.Node(f.id)
	switch {
	case err == nil:
	case errdefs.Is(err, errdefs.NotFound) && staged && !persisted:
		n = store.Node{ID: f.id, Kind: store.File, Created: updated.UnixNano(), Compression: &codec}
		if err := tx.AddOrphan(f.id, store.OrphanUnfinished, updated); err != nil {
			return err
		}
	case errdefs.Is(err, errdefs.NotFound):
		fp.gone = true
		return nil
	default:
		return err
	}
	for _, o := range fp.ranges {
		if err := e.publishRange(tx, &n, o, fp.freed); err != nil {
			return err
		}
	}
	if n.Inline != nil {
		fp.inline = n.Inline.RawLen
	}
	n.Size = fp.size
	n.Generation, n.Updated = max(n.Generation, uint64(generation)), updated.UnixNano()
	if staged && n.Parent == 0 { // who gave it a name may not have said so in memory yet
		n.WriteID = writeID
	}
	if !contentValid {
		n.ContentCRC = nil
	}
	return tx.PutNode(n)
}

// publishRange replaces what the file held in the range.
func (e *Engine) publishRange(tx *store.Tx, n *store.Node, o *ordered, freed map[uint32]int64) error {
	if old := n.Inline; old != nil && (o.inline != nil || o.rng.Off < old.RawLen) {
		if o.rng.Off > 0 || o.end < old.RawLen {
			return errdefs.New(errdefs.Internal, "", "engine.publish", fmt.Sprintf("file %d", n.ID), "a range covers inline data in part")
		}
		n.AllocatedBytes -= old.RawLen
		n.Inline = nil
	}
	if err := e.dropAll(tx, n, o.rng.Off, o.rng.End(), freed); err != nil {
		return err
	}
	if o.inline != nil {
		n.Inline = o.inline
		n.AllocatedBytes += o.inline.RawLen
		return nil
	}
	exts := make([]store.NewExtent, len(o.out.extents))
	for i, x := range o.out.extents {
		exts[i] = x.NewExtent
	}
	d, err := tx.InsertExtents(n.ID, o.rng.Off, exts)
	n.Add(d)
	return err
}

// dropAll cuts [off, end) out of the file's mappings and notes what that freed.
func (e *Engine) dropAll(tx *store.Tx, n *store.Node, off, end int64, freed map[uint32]int64) error {
	d, _, _, err := tx.DropRange(n.ID, off, end, 0)
	if err != nil {
		return err
	}
	n.Add(d)
	for slot, b := range d.Freed {
		freed[slot] += b
	}
	return nil
}

// published runs after the commit. Only now does data leave memory.
func (e *Engine) published(p *publication, err error) {
	if err != nil {
		e.putBack(p, err)
		return
	}
	ranges, left := 0, false
	for _, fp := range p.files {
		f := fp.f
		for _, o := range fp.ranges {
			for _, x := range o.out.extents {
				if fp.gone {
					e.discard(x, false)
				} else {
					e.al.Publish(x.slot, x.Blocks*extent.BlockSize)
				}
			}
			if o.inline != nil {
				e.inlining.Add(-1)
			}
			e.reserved.Add(-o.reserved)
			e.al.Unreserve(o.reserved - o.out.stored) // the surplus of compression, once
			if o.direct {
				e.waiting.Add(-o.rng.Len())
			}
		}
		for slot, n := range fp.freed {
			e.free(slot, n)
		}
		f.mu.Lock()
		f.mu.queue = append([]*ordered(nil), f.mu.queue[len(fp.ranges):]...)
		f.mu.inBatch, f.mu.commitErr = 0, nil
		more := len(f.mu.queue) > 0 && f.mu.queue[0].state == placed
		if !fp.gone && len(fp.ranges) > 0 {
			f.mu.persisted = true
			f.mu.durable = max(f.mu.durable, fp.size)
			f.mu.inlineRecord = fp.inline
			f.pruneMarksLocked()
		}
		for _, o := range fp.ranges {
			f.pending.Forget(o.rng.Off, o.rng.End(), o.rng.MaxSeq)
			o.rng.Release()
		}
		if len(fp.ranges) > 0 { // else a waiter would wake, kick and be woken again, without an end
			f.refreshLocked()
		}
		f.mu.Unlock()
		e.settle(f)
		if more {
			e.placedFile(f) // held back: they go when what they wait for has come
			left = true
		}
		if more && e.publishMax > 0 {
			e.group.Kick()
		}
		ranges += len(fp.ranges)
	}
	switch {
	case ranges > 0:
		e.publishMax, e.publishLeast = e.publishMax*2, 0
	case left:
		// All that it took was held back, by ranges that must go with it.
		e.publishMax *= 2
		e.publishLeast = e.publishMax
	}
	if e.publishMax > mostPublished {
		e.publishMax = 0
	}
	e.count.commits.Add(1)
	e.resetKick.set()
	e.memoryReturned()
}

// publishError is the failure of one file's part of a publication.
type publishError struct {
	fp  *filePublication
	err error
}

func (p *publishError) Error() string { return fmt.Sprintf("publish file %d: %v", p.fp.f.id, p.err) }
func (p *publishError) Unwrap() error { return p.err }

// putBack undoes beforeCommit after a failed commit: the ranges stay placed and in memory. The
// store takes no more changes, unless only room was lacking or one file is to blame.
func (e *Engine) putBack(p *publication, err error) {
	e.returnRecords(p.records)
	if errdefs.Is(err, errdefs.NoSpace) {
		e.trimmed.forget(p.trimmed) // data that was promised room comes first
	} else {
		e.trimmed.untake(p.trimmed)
	}
	var bad *publishError
	switch {
	case errdefs.Is(err, errdefs.NoSpace):
	case errors.As(err, &bad) && !e.st.ReadOnly():
		// One file's records are damaged: its data is what cannot be made durable.
		for _, o := range bad.fp.ranges {
			e.unplace(o)
			e.giveUp(o, bad.err)
		}
		bad.fp.ranges = nil
	default:
		e.failWrites(err)
	}
	full, ranges := errdefs.Is(err, errdefs.NoSpace), 0
	for _, fp := range p.files {
		ranges += len(fp.ranges)
	}
	if full && ranges > max(1, e.publishLeast) {
		// Room was promised for the records, not for a copy of every page that they all touch.
		e.publishMax, full = max(1, e.publishLeast, min(ranges, mostPublished)/4), false
		e.group.Kick()
	}
	for _, fp := range p.files {
		e.placedFile(fp.f)
		fp.f.mu.Lock()
		fp.f.mu.inBatch = 0
		// With no range in it the commit had no room for less: who waits would ask for another without an end.
		if full && (len(fp.ranges) > 0 || ranges == 0) {
			fp.f.mu.commitErr = err
		}
		fp.f.wakeLocked()
		fp.f.mu.Unlock()
	}
}

// flush makes everything appended before it durable.
func (e *Engine) flush() error {
	e.count.flushes.Add(1)
	return e.dev.Flush()
}
