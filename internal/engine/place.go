package engine

import (
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/compress"
	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/delalloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
)

// place stores the range: inline, raw or compressed. On an error nothing of it is placed and
// its reservation is whole again.
func (e *Engine) place(o *ordered) error {
	if !o.direct && e.tryInline(o) {
		return nil
	}
	o.small = e.prefersConventional(o)
	o.sums = o.rng.Sums()
	var err error
	if o.codec == extent.CodecNone {
		err = e.placeRaw(o)
	} else {
		err = e.placeCompressed(o)
	}
	if err != nil {
		e.unplace(o)
		return err
	}
	slices.SortFunc(o.out.extents, func(a, b placedExtent) int { return int(min(1, max(-1, a.off-b.off))) })
	e.count.extents.Add(uint64(len(o.out.extents)))
	return nil
}

// unplace gives up what has been appended of the range; its reservation is whole again.
func (e *Engine) unplace(o *ordered) {
	o.out.Lock()
	for _, x := range o.out.extents {
		e.discard(x, true)
	}
	o.out.extents, o.out.stored = nil, 0
	o.out.Unlock()
	if o.inline != nil { // it was placed, so a cut may look at it
		o.f.mu.Lock()
		o.inline = nil
		o.f.mu.Unlock()
		e.inlining.Add(-1)
	}
	e.resetKick.set()
}

// discard says that what was placed as x will never be published.
func (e *Engine) discard(x placedExtent, rereserve bool) {
	_, off := e.split(x.Addr)
	n := x.Blocks * extent.BlockSize
	if e.conventional(x.slot) {
		// Before the blocks can be allocated, or trimmed, again.
		e.trimmed.markRuns(x.slot, []extent.Range{{Off: off, End: off + n}}, false)
	}
	e.al.DiscardRun(x.slot, off, n, rereserve)
}

// tryInline decides to keep a small file's data in its node: the range is all of the file, alone,
// nobody is writing, and its stored form is small enough.
func (e *Engine) tryInline(o *ordered) bool {
	f := o.f
	if o.rng.Off != 0 || o.end > extent.MaxFrameSize {
		return false
	}
	// Holding the token, no write can come between the decision and its being seen.
	select {
	case f.write <- struct{}{}:
		defer f.unlockWrite()
	default:
		return false
	}
	f.mu.Lock()
	alone := len(f.mu.queue) == 1 && f.dirty.Bytes() == 0 && len(f.mu.failed) == 0 && f.mu.size == o.end
	f.mu.Unlock()
	if !alone {
		return false
	}
	data := make([]byte, 0, extent.RoundUp(o.end))
	for _, b := range o.rng.Bufs() {
		data = append(data, b...)
	}
	data = data[:o.end]
	stored, codec, ok := e.comp.Inline(data, o.codec, extent.MaxInlineSize)
	if !ok {
		return false
	}
	e.inlining.Add(1)
	if e.metadataRoom(0) != nil {
		e.inlining.Add(-1)
		return false // blocks cost the metadata less
	}
	o.inline = &store.Inline{Codec: codec, RawLen: int64(len(data)), Data: stored}
	f.mu.Lock()
	f.mu.inline, f.mu.inlineLen = true, int64(len(data))
	f.mu.Unlock()
	e.count.inlined.Add(1)
	return true
}

// placeRaw cuts the range in extents of at most maxExtent, capped where each is allocated
// (S0), several appends in flight.
func (e *Engine) placeRaw(o *ordered) error {
	var g errgroup.Group
	g.SetLimit(appendsInFlight)
	var err error
	for at, n := int64(0), o.rng.Len(); at < n; {
		var grant alloc.Grant
		if grant, err = e.allocate(o.small, min(n-at, e.maxExtent)); err != nil {
			break
		}
		from := at
		g.Go(func() error {
			if e.appendRawGrant(o, from, grant) == nil {
				return nil
			}
			return e.appendRaw(o, from, grant.Length)
		})
		at += grant.Length
	}
	if werr := g.Wait(); err == nil {
		err = werr
	}
	return err
}

// appendRaw stores n bytes of the range from at (relative to its start) uncompressed, trying
// other zones where one refuses.
func (e *Engine) appendRaw(o *ordered, at, n int64) error {
	for tries := 0; n > 0; {
		grant, err := e.allocate(o.small, min(n, e.maxExtent))
		if err != nil {
			return err
		}
		if err = e.appendRawGrant(o, at, grant); err != nil {
			if tries++; tries >= placeTries {
				return err
			}
			continue
		}
		at += grant.Length
		n -= grant.Length
	}
	return nil
}

func (e *Engine) appendRawGrant(o *ordered, at int64, grant alloc.Grant) error {
	addr, err := e.append(grant, o.rng.Slice(o.rng.Off+at, grant.Length))
	if err != nil {
		return err
	}
	o.emit(placedExtent{off: o.rng.Off + at, slot: grant.Slot, NewExtent: store.NewExtent{
		Addr: addr, Blocks: grant.Length / extent.BlockSize, Sums: o.blockSums(at, grant.Length), Length: grant.Length,
	}})
	return nil
}

// placeCompressed cuts the range in chunks for the compression workers; each worker appends
// what it has compressed from its own buffer.
func (e *Engine) placeCompressed(o *ordered) error {
	n := o.end - o.rng.Off
	chunks := int(delalloc.Chunks(n))
	e.count.chunks.Add(uint64(chunks))
	errs := make(chan error, chunks)
	for i := range chunks {
		at := int64(i) * extent.ChunkSize
		e.pool.Go(func(buf *compress.ChunkBuf) {
			errs <- e.placeChunk(o, at, min(extent.ChunkSize, n-at), buf)
		})
	}
	var err error
	for range chunks {
		if cerr := <-errs; err == nil {
			err = cerr
		}
	}
	return err
}

// placeChunk compresses and appends n bytes of file data of the range from at.
func (e *Engine) placeChunk(o *ordered, at, n int64, buf *compress.ChunkBuf) error {
	src := firstBytes(o.rng.Slice(o.rng.Off+at, extent.RoundUp(n)), n)
	res, err := e.comp.Chunk(src, int(e.frameSize), o.codec, buf)
	if err != nil {
		return err
	}
	if res.AllRaw {
		return e.appendRaw(o, at, extent.RoundUp(n))
	}
	for tries := 0; len(res.Frames) > 0; {
		done, raw, err := e.appendFrames(o, at, res)
		if err != nil {
			if tries++; done > 0 || tries >= placeTries {
				return err
			}
			continue
		}
		at += raw
		res.Frames, res.Data = res.Frames[done:], res.Data[done:]
	}
	return nil
}

// appendFrames appends as many whole frames as one extent and one grant take, in one append.
// A grant that ends inside a frame is the tail of a zone or a short free run: it is filled with that
// frame's data uncompressed, so that no block is lost, and the frame's rest follows raw. Answers
// the frames done and their bytes of file data; with an error and none done, nothing was appended.
func (e *Engine) appendFrames(o *ordered, at int64, res compress.ChunkResult) (done int, raw int64, err error) {
	want := int64(0)
	for _, f := range res.Frames {
		if want+f.Blocks()*extent.BlockSize > e.maxExtent {
			break
		}
		want += f.Blocks() * extent.BlockSize
	}
	grant, err := e.allocate(o.small, want)
	if err != nil {
		return 0, 0, err
	}
	used := int64(0)
	for _, f := range res.Frames {
		if used+f.Blocks()*extent.BlockSize > grant.Length {
			break
		}
		used += f.Blocks() * extent.BlockSize
		raw += int64(f.Raw)
		done++
	}
	fill := grant.Length - used
	bufs := slices.Clip(res.Data[:done])
	if fill > 0 {
		bufs = append(bufs, o.rng.Slice(o.rng.Off+at+raw, fill)...)
	}
	addr, err := e.append(grant, bufs)
	if err != nil {
		return 0, 0, err
	}
	if done > 0 {
		sums := make([]uint32, 0, used/extent.BlockSize)
		for _, d := range res.Data[:done] {
			sums = csum.Blocks(sums, d)
		}
		o.emit(placedExtent{off: o.rng.Off + at, slot: grant.Slot, NewExtent: store.NewExtent{
			Addr: addr, Blocks: used / extent.BlockSize, Codec: o.codec,
			Frames: slices.Clone(res.Frames[:done]), Sums: sums, Length: raw,
		}})
	}
	if fill == 0 {
		return done, raw, nil
	}
	cut := res.Frames[done]
	o.emit(placedExtent{off: o.rng.Off + at + raw, slot: grant.Slot, NewExtent: store.NewExtent{
		Addr: addr + extent.Addr(used), Blocks: fill / extent.BlockSize,
		Sums: o.blockSums(at+raw, fill), Length: fill,
	}})
	if rest := extent.RoundUp(int64(cut.Raw)) - fill; rest > 0 {
		from := at + raw + fill
		err = e.appendRaw(o, from, rest)
	}
	return done + 1, raw + int64(cut.Raw), err
}

// firstBytes cuts the pieces to n bytes in total.
func firstBytes(pieces [][]byte, n int64) [][]byte {
	out := make([][]byte, 0, len(pieces))
	for _, p := range pieces {
		p = p[:min(int64(len(p)), n)]
		if len(p) == 0 {
			break
		}
		out = append(out, p)
		n -= int64(len(p))
	}
	return out
}

// allocate turns up to want reserved bytes into a grant in a block group whose zone, if it is
// sequential, is open and has its header; small looks at conventional ones first. It waits while
// active slots, or freed blocks, are on their way back.
func (e *Engine) allocate(small bool, want int64) (alloc.Grant, error) {
	ask := e.al.Allocate
	if small {
		ask = e.al.AllocateSmall
	}
	for tries := 0; ; {
		if err := e.placeable("engine.allocate"); err != nil {
			return alloc.Grant{}, err
		}
		changed := e.al.Changed()
		grant, outcome := ask(alloc.ClassData, want)
		switch outcome {
		case alloc.Granted:
			return grant, nil
		case alloc.NeedsOpen:
			if err := e.openBlockGroup(alloc.ClassData); err != nil {
				if tries++; tries >= placeTries {
					return alloc.Grant{}, err
				}
			}
			continue
		case alloc.Busy:
			if err := e.retireClosing(); err != nil {
				// Nothing else will change the device's mind, so the tries are spaced by the tick.
				if tries++; tries >= placeTries {
					return alloc.Grant{}, err
				}
				changed = nil
			}
			e.resetKick.set() // short of space, there is more that is worth a reset
		default:
			if !e.reclaimHelps() {
				// The space was promised, so it has been lost to failing zones: the device's error.
				return alloc.Grant{}, errdefs.New(errdefs.Device, errdefs.ReasonDeviceIO, "engine.allocate", "", "zones that failed held the space this data was promised")
			}
			// What was promised lies where reclaim has to give it back first.
			e.rc.kick.set()
		}
		select {
		case <-changed:
		case <-e.spaceTick():
		case <-e.broken:
		case <-e.halt:
		}
	}
}

// placeable returns why nothing more is placed, or nil: what would be placed could not be published.
// It outlasts writable, for what Close syncs is placed after the last change was let in.
func (e *Engine) placeable(op string) error { return e.takesChanges(op, e.halt) }

// append puts a grant's bytes on the device and answers where they lie: an append, or in a
// conventional zone a write.
func (e *Engine) append(g alloc.Grant, bufs [][]byte) (extent.Addr, error) {
	var off int64
	var err error
	if g.Conventional {
		off, err = g.Off, e.dev.Write(int(g.Slot), g.Off, bufs)
	} else {
		off, err = e.dev.Append(int(g.Slot), bufs)
	}
	if err == nil {
		e.al.Complete(g)
		if e.closing.Load() {
			e.resetKick.set() // it may have been the last append that a zone waits for
		}
		e.count.deviceBytes.Add(uint64(g.Length))
		return e.addr(g.Slot, off), nil
	}
	e.al.Fail(g)
	e.count.appendErrors.Add(1)
	if g.Conventional {
		e.writeFailed(g, err)
	}
	e.zoneFailed(g.Slot, err)
	return 0, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.append", e.placeName(g.Slot), err)
}

// openBlockGroup opens one block group for the class by writing its zone's header. Failures close the
// block group again; the caller asks the allocator anew either way, a few times.
func (e *Engine) openBlockGroup(c alloc.Class) error {
	e.openTurn <- struct{}{}
	defer func() { <-e.openTurn }()
	bg, ok := e.al.BeginOpen(c)
	if !ok {
		return nil // somebody else opened one meanwhile
	}
	e.trimmed.opened(bg.Slot)
	off, err := e.dev.AppendEach(int(bg.Slot), func(copy int, p array.Place) [][]byte { return [][]byte{e.header(bg, copy, p)} })
	if err == nil && off != 0 {
		err = errdefs.New(errdefs.Device, errdefs.ReasonDeviceIO, "engine.openBlockGroup", e.placeName(bg.Slot), fmt.Sprintf("header landed at %d instead of 0", off))
	}
	if err == nil {
		e.note(bg.Slot, bgRecord{class: c})
	}
	e.al.FinishOpen(bg.Slot, err == nil)
	if err == nil {
		return nil
	}
	e.count.appendErrors.Add(1)
	e.zoneFailed(bg.Slot, err)
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.openBlockGroup", e.placeName(bg.Slot), err)
}

// zoneFailed handles a refused append: a zone that went read-only or offline is quarantined, any
// other sequential one is finished, for its write pointer is not known any more.
func (e *Engine) zoneFailed(slot uint32, cause error) {
	e.o.Logger.Warn("append failed; the data goes to another zone", "place", e.placeName(slot), "block_group", slot, "error", cause)
	if e.zoneGone(slot, cause) {
		return
	}
	e.retireClosing()
}

// zoneGone asks the device about a zone that refused an append or a read. One that went read-only or
// offline is quarantined; what was appended to an offline one and is not committed is placed again.
func (e *Engine) zoneGone(slot uint32, cause error) bool {
	zs, err := e.dev.Report(int(slot), 1)
	if err != nil || len(zs) != 1 {
		return false
	}
	switch zs[0].Condition {
	case zone.ReadOnly:
		e.quarantine(slot, true, cause)
		return true
	case zone.Offline:
		e.doubt.loseZone(slot)
		e.quarantine(slot, false, cause)
		return true
	}
	return false
}

func (e *Engine) quarantine(slot uint32, readable bool, cause error) {
	if e.dev.Copies(int(slot)) > 1 {
		e.giveSlotBack(slot) // the zone of the other copy may be a good one, and active
	}
	e.al.Quarantine(slot, readable)
	e.cond.set(Condition{
		Reason: "ZONE_FAILED", Severity: Error, Object: e.placeName(slot),
		Message: fmt.Sprintf("zone %d takes no more writes (readable: %t): %v", e.zoneOf(slot), readable, cause),
		Advice:  "read the files in it soon; `client zones` shows the zone",
		Since:   e.o.Now(),
	})
}

// finishedAnyway looks at a zone whose finish has failed: it may be full all the same, or have failed
// for good, and then it is quarantined.
func (e *Engine) finishedAnyway(slot uint32, cause error) bool {
	e.o.Logger.Warn("finish failed", "place", e.placeName(slot), "error", cause)
	zs, err := e.dev.Report(int(slot), 1)
	if err != nil || len(zs) != 1 {
		return false
	}
	switch zs[0].Condition {
	case zone.Full:
		return true
	case zone.ReadOnly:
		e.quarantine(slot, true, cause)
	case zone.Offline:
		e.quarantine(slot, false, cause)
	}
	return false
}

// retireClosing finishes the zones of block groups that left allocation early, as far as no append
// to them is under way. The last append of each of the others wakes the resetter, which calls again.
// The error is of a zone that could not be finished, when none could.
func (e *Engine) retireClosing() (stuck error) {
	e.retireTurn <- struct{}{}
	defer func() { <-e.retireTurn }()
	e.closing.Store(true)
	due, retired := e.al.Closing(), false
	for _, slot := range due {
		if err := e.dev.Finish(int(slot)); err != nil {
			if !e.finishedAnyway(slot, err) {
				stuck = errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.retireClosing", "finish of "+e.placeName(slot), err)
				continue // it holds its active slot, and so its place in the budget: another time
			}
		}
		e.note(slot, bgRecord{finished: true})
		e.al.Retire(slot)
		retired = true
	}
	// Whoever closes a block group calls here afterwards, so none is missed.
	e.closing.Store(e.al.AnyClosing())
	if retired {
		e.resetKick.set()
		return nil
	}
	return stuck
}
