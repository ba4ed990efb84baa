package engine

import (
	"context"
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// cutBatch bounds the file extents that one transaction frees.
const cutBatch = 4096

// doFreeing commits a change that gives space back, in smaller and smaller batches where the
// metadata has no room for the copies of the pages that a large one touches. The change may
// run several times.
func (e *Engine) doFreeing(change func(tx *store.Tx, batch int) error) error {
	for batch := cutBatch; ; batch /= 16 {
		err := e.group.DoFreeing(context.Background(), func(tx *store.Tx) error { return change(tx, batch) })
		if batch == 1 || !errdefs.Is(err, errdefs.NoSpace) {
			return err
		}
	}
}

// untilRoom is doFreeing for who cannot go back: while the metadata's disk is full it tries again.
func (e *Engine) untilRoom(change func(tx *store.Tx, batch int) error) error {
	for {
		err := e.doFreeing(change)
		if !errdefs.Is(err, errdefs.NoSpace) {
			return err
		}
		if err := e.awaitTick(err); err != nil {
			return err
		}
	}
}

// awaitTick waits before another try of what failed with err, which it returns if there can be none.
func (e *Engine) awaitTick(err error) error {
	select {
	case <-e.spaceTick():
		return nil
	case <-e.broken:
	case <-e.stop:
	}
	return err
}

func roundUpSize(n int64) int64 { return extent.RoundUp(n) }

// Truncate sets a file's size, durably: what is cut off is gone, what is added is a hole. It
// needs no space, so it works on a full store. If ctx ends while it is under way, it is seen through
// all the same, and reads and writes of the file wait for it.
func (e *Engine) Truncate(ctx context.Context, name string, size int64, cond Preconditions) (File, Freed, error) {
	const op = "engine.Truncate"
	if size < 0 || size > extent.MaxFileSize {
		return File{}, Freed{}, errdefs.Invalid(op, "size", "size must not be negative or pass the largest file size")
	}
	return e.cutFile(ctx, op, name, cond, func(f *file, old int64) (cutPlan, error) {
		if size > old {
			return cutPlan{grow: true, size: size}, nil
		}
		return cutPlan{off: size, end: extent.MaxFileSize, size: size, truncate: true}, nil
	})
}

// Deallocate punches a hole, durably. The size stays; bytes past it are not touched. It needs
// no space, so it works on a full store. ctx is as for Truncate. A crash during the punch of a very large range may
// leave a part of it punched.
func (e *Engine) Deallocate(ctx context.Context, name string, off, length int64, cond Preconditions) (File, Freed, error) {
	const op = "engine.Deallocate"
	switch {
	case off < 0:
		return File{}, Freed{}, errdefs.Invalid(op, "offset", "offset must not be negative")
	case length <= 0 || off > extent.MaxFileSize-length:
		return File{}, Freed{}, errdefs.Invalid(op, "length", "length must be positive and not pass the largest file size")
	}
	return e.cutFile(ctx, op, name, cond, func(f *file, old int64) (cutPlan, error) {
		return cutPlan{off: min(off, old), end: min(off+length, old), size: old}, nil
	})
}

// cutPlan is what a truncate or punch does: the bytes to cut and the size afterwards.
type cutPlan struct {
	off, end int64
	size     int64
	truncate bool // everything from off on goes
	grow     bool // nothing is cut
}

func (e *Engine) cutFile(ctx context.Context, op, name string, cond Preconditions, plan func(*file, int64) (cutPlan, error)) (File, Freed, error) {
	if err := e.writable(op); err != nil {
		return File{}, Freed{}, err
	}
	f, err := e.openRef(Ref{Name: name})
	if err != nil {
		return File{}, Freed{}, err
	}
	defer e.release(f)
	if err := f.lockWrite(ctx); err != nil {
		return File{}, Freed{}, err
	}
	info, err := e.describe(f)
	if err == nil {
		err = checkIf(op, cond, info)
	}
	var p cutPlan
	if err == nil {
		p, err = plan(f, info.Size)
	}
	if err == nil {
		err = f.cut.Acquire(ctx, cutAlone)
	}
	if err != nil {
		f.unlockWrite()
		return File{}, Freed{}, err
	}
	// From here on it is seen through, caller or not: half a cut must not be left in memory.
	done := make(chan struct{})
	var out File
	var freed Freed
	e.files.get(f.id) // one more reference
	e.spawn(func() {
		defer close(done)
		defer e.release(f)
		freed, err = e.cutLockedOut(f, p, info.Size)
		f.cut.Release(cutAlone)
		if err == nil {
			e.orphanKick.set()
			out, err = e.describe(f)
		}
		f.unlockWrite()
	})
	select {
	case <-done:
		return out, freed, err
	case <-ctx.Done():
		return File{}, Freed{}, ctx.Err()
	}
}

// cutLockedOut carries the plan out on a file of the old size; readers and writers are locked
// out.
func (e *Engine) cutLockedOut(f *file, p cutPlan, old int64) (Freed, error) {
	dropped := int64(0)
	if !p.grow && p.off < p.end {
		dropped = e.cutMemory(f, p)
	}
	defer e.cutOver(f)
	if err := e.drain(f); err != nil {
		return Freed{}, err
	}
	size, failed := e.sizeAfterCut(f, p)
	freed := Freed{FreedBytes: dropped}
	generation := e.nextGeneration()
	next := p.off
	for off, first, done := p.off, true, false; !done; off, first = next, false {
		var d store.Delta
		err := e.untilRoom(func(tx *store.Tx, batch int) error {
			n, err := tx.Node(f.id)
			if err != nil {
				return err
			}
			if d, done, next, err = e.cutRecord(tx, &n, p, off, batch); err != nil {
				return err
			}
			named := n.Parent != 0 // the entry of a file that was deleted meanwhile stays
			if first && !done && p.truncate && named {
				err = tx.AddOrphan(f.id, store.OrphanCut, e.o.Now())
			} else if !first && done && p.truncate && named {
				err = tx.RemoveOrphan(f.id)
			}
			if err != nil {
				return err
			}
			n.Size, n.Generation, n.Updated, n.ContentCRC = size, uint64(generation), e.o.Now().UnixNano(), nil
			return tx.PutNode(n)
		})
		if err != nil {
			return freed, err
		}
		for slot, b := range d.Freed {
			e.free(slot, b)
		}
		freed.FreedBytes += d.FreedBytes
	}
	f.mu.Lock()
	f.mu.size, f.mu.durable, f.mu.marks = p.size, size, nil
	if size < p.size {
		f.mu.marks = []sizeMark{{f.mu.seq, p.size}}
	}
	f.mu.generation, f.mu.updated, f.mu.contentValid = generation, e.o.Now(), false
	f.mu.inlineLen, f.mu.inlineRecord = min(f.mu.inlineLen, p.size), min(f.mu.inlineRecord, p.size)
	if !p.grow && len(f.mu.failed) > 0 {
		f.pending.Zero(p.off, min(p.end, extent.RoundUp(old)))
	}
	f.mu.Unlock()
	e.resetKick.set()
	return freed, failed
}

// cutOver says that what a cut has dropped is not waited for any more.
func (e *Engine) cutOver(f *file) {
	f.mu.Lock()
	f.mu.cutLow = 0
	f.refreshLocked()
	f.mu.Unlock()
	e.settle(f)
}

// sizeAfterCut returns the size to put on record: what the plan asks for, but where a part of the
// file could not be made durable no more than is on record already, or a crash would show a hole
// where that part was. Then the error is its, for the size is not durable either. The caller holds
// the write token, and nothing of the file is in memory but what failed.
func (e *Engine) sizeAfterCut(f *file, p cutPlan) (size int64, failed error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if start, end := extent.RoundUp(p.off), extent.RoundDown(p.end); !p.grow && start < end {
		e.unreserve(e.overlayFailedLocked(f, start, end)) // it has failed since the cut of the memory
	}
	size = p.size
	if err := f.failedErrorLocked(); err != nil && size > f.mu.durable {
		return f.mu.durable, err
	}
	return size, nil
}

// cutMemory drops what is dirty in the range, so that it need not be written to be cut, and
// returns the bytes. Blocks that are cut in part are written whole: the cut that follows is exact
// to the byte. So is data that stands for inline data, on record or about to be, which goes all
// at once.
func (e *Engine) cutMemory(f *file, p cutPlan) (dropped int64) {
	start, end := extent.RoundUp(p.off), extent.RoundDown(p.end)
	if p.end == p.size {
		end = extent.RoundUp(p.end) // past the end of the file there is nothing to keep
	}
	f.mu.Lock()
	record := f.mu.inlineRecord
	for _, o := range f.mu.queue {
		if o.inline != nil { // decided under the write token, which we hold
			record = max(record, o.inline.RawLen)
		}
	}
	if from := max(start, extent.RoundUp(record)); from < end {
		f.mu.cutLow, _ = f.dirty.MinSeq()
		dropped = f.dirty.Drop(from, end)
	}
	if start < end {
		dropped += e.overlayFailedLocked(f, start, end)
	}
	if p.truncate {
		// What was only in memory past the cut never had a size on record and will not get one.
		size := max(p.size, f.mu.durable)
		for _, o := range f.mu.queue {
			size = max(size, o.end)
		}
		f.mu.size = min(f.mu.size, size)
		for i, m := range f.mu.marks {
			if m.size > size {
				// Of that write and later ones a part is gone: the size they leave is only true
				// when all that was received before the cut is durable.
				f.mu.marks = append(f.mu.marks[:i:i], sizeMark{f.mu.seq, size})
				break
			}
		}
	}
	f.refreshLocked()
	f.mu.Unlock()
	e.unreserve(dropped)
	e.settle(f)
	return dropped
}

// drain waits until nothing of the file is in memory but what could not be made durable. The
// caller holds the write token.
func (e *Engine) drain(f *file) error {
	f.setDraining(true)
	defer f.setDraining(false)
	for {
		f.mu.Lock()
		upTo, busy, err := f.mu.seq, f.dirty.Bytes() > 0 || len(f.mu.queue) > 0, f.mu.commitErr
		changed := f.mu.changed
		f.mu.Unlock()
		switch {
		case !busy:
			return nil
		case errdefs.Is(err, errdefs.NoSpace): // the metadata's disk is full
			if err := e.awaitTick(err); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		failed := e.waitPlaced(context.Background(), f, upTo, true)
		if failed != nil && !errdefs.Is(failed, errdefs.Device) && !errdefs.Is(failed, errdefs.NoSpace) {
			return failed
		}
		err = e.flushCommits()
		if errdefs.Is(err, errdefs.NoSpace) {
			err = e.awaitTick(err)
		}
		if err != nil {
			return err
		}
		if failed != nil {
			// That a range has failed was known before the others are placed, so nothing was waited for yet.
			select {
			case <-changed:
			case <-e.spaceTick():
			case <-e.broken:
			case <-e.stop:
			}
		}
	}
}

func (f *file) setDraining(on bool) {
	f.mu.Lock()
	f.mu.draining = on
	f.mu.Unlock()
}

// cutRecord cuts the plan's range out of the file's mappings and inline data.
func (e *Engine) cutRecord(tx *store.Tx, n *store.Node, p cutPlan, off int64, batch int) (d store.Delta, done bool, next int64, err error) {
	if p.grow || off >= p.end {
		return d, true, off, nil
	}
	if n.Inline != nil && off < n.Inline.RawLen {
		if err := e.cutInline(n, off, p); err != nil {
			return d, false, off, err
		}
	}
	d, done, next, err = tx.DropRange(n.ID, off, p.end, batch)
	n.Add(d)
	return d, done, next, err
}

// cutInline shortens inline data or zeroes a part of it. A zeroed form may be a few bytes longer
// than it was; it stays inline, for a punch must not need space.
func (e *Engine) cutInline(n *store.Node, off int64, p cutPlan) error {
	in := n.Inline
	raw := make([]byte, in.RawLen)
	fr := extent.Frame{Raw: uint32(in.RawLen), Stored: uint32(len(in.Data)), Codec: in.Codec}
	if err := e.comp.Decode(raw, fr, in.Data); err != nil {
		return errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, "engine.cut", fmt.Sprintf("inline data of file %d", n.ID), err)
	}
	n.AllocatedBytes -= in.RawLen
	if p.end >= in.RawLen {
		raw = raw[:off]
	} else {
		clear(raw[off:p.end])
	}
	n.Inline = nil
	if len(raw) == 0 {
		return nil
	}
	stored, codec, ok := e.comp.Inline(raw, in.Codec, extent.MaxCutInlineSize)
	if !ok {
		return errdefs.New(errdefs.Internal, "", "engine.cut", fmt.Sprintf("inline data of file %d", n.ID), "grew by more than can be kept inline")
	}
	out := store.Inline{Codec: codec, RawLen: int64(len(raw)), Data: stored}
	n.Inline = &out
	n.AllocatedBytes += out.RawLen
	return nil
}
