package engine

import (
	"context"
	"time"

	"github.com/shingle-store/shingle/internal/delalloc"
	"github.com/shingle-store/shingle/internal/extent"
)

// startWriteback takes every range of the file that the selection admits and has each placed by
// a goroutine of the engine's. It answers how many it took.
func (e *Engine) startWriteback(f *file, sel delalloc.Selection) (taken int) {
	for e.takeOne(f, sel) {
		taken++
	}
	return taken
}

func (e *Engine) takeOne(f *file, sel delalloc.Selection) bool {
	sel.Max = e.o.collect
	f.mu.Lock()
	rng, ok := f.dirty.Take(sel)
	if !ok {
		f.mu.Unlock()
		return false
	}
	o := &ordered{f: f, rng: rng, end: min(rng.End(), f.mu.size), codec: f.codec, reserved: rng.Len()}
	// Readers look in pending, then in dirty, under this mutex: the data is always in one.
	for _, s := range rng.Segments {
		s.Buf = s.Buf.Slice(0, s.Buf.Len())
		f.pending.Insert(s)
	}
	f.mu.queue = append(f.mu.queue, o)
	f.mu.Unlock()
	e.count.rangesInFlight.Add(1)
	e.spawn(func() { e.runRange(o) })
	return true
}

// runRange places one range and hands it to the committer, or gives it up. The bytes of ranges
// being placed together are bounded, so that complete ranges go one after the other with the next
// appended while the last is flushed.
func (e *Engine) runRange(o *ordered) {
	weight := min(o.rng.Len(), placeBytes)
	if err := e.placeSem.Acquire(context.Background(), weight); err != nil {
		panic(err) // cannot happen: the context never ends and the weight fits
	}
	f := o.f
	err := e.placeUntilSound(o, func() {
		f.mu.Lock()
		o.state = placed
		f.wakeLocked()
		f.mu.Unlock()
	})
	e.placeSem.Release(weight)
	e.count.rangesInFlight.Add(-1)
	if err != nil {
		e.giveUp(o, err)
		return
	}
	e.placedFile(f)
	e.group.Kick()
}

// placeBytes bounds the bytes of ranges that are being placed at a time: two complete ranges.
const placeBytes = 2 * extent.MaxRangeSize

// placedFile tells the committer that the file has something to publish.
func (e *Engine) placedFile(f *file) {
	e.ready.Lock()
	e.ready.files[f] = struct{}{}
	e.ready.Unlock()
}

// abandon gives up a range that nobody has seen.
func (e *Engine) abandon(o *ordered) {
	o.rng.Release()
	e.unreserve(o.reserved)
}

// flusher starts writeback of complete ranges at once, of old data by age, and of what it must
// under pressure. It is the one background goroutine that takes ranges.
func (e *Engine) flusher() {
	tick := time.NewTicker(max(e.o.WritebackAge/4, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-e.flushKick:
			e.flushWhere(delalloc.Selection{CompleteOnly: true})
		case <-e.pressure:
			e.relieve()
		case <-tick.C:
			e.flushWhere(delalloc.Selection{Before: e.o.Now().Add(-e.o.WritebackAge)})
			if e.waiting.Load() > 0 {
				e.group.Kick() // nodelalloc: what is placed is published by age
			}
			if e.memWaiters.Load() > 0 {
				e.relieve()
			}
		case <-e.stop:
			return
		}
	}
}

func (e *Engine) flushWhere(sel delalloc.Selection) {
	for _, f := range e.busyFiles() {
		e.startWriteback(f, sel)
		e.release(f)
	}
}

// relieve starts writeback under memory or space pressure: complete ranges first; partial ones
// only when nothing is under way that would give memory back, so that ranges stay large.
func (e *Engine) relieve() {
	e.flushWhere(delalloc.Selection{CompleteOnly: true})
	if e.count.rangesInFlight.Load() > 0 {
		return
	}
	e.group.Kick()
	var budget = e.o.DirtyLimit / 4
	for _, f := range e.busyFiles() {
		if budget > 0 {
			n := f.dirty.Bytes()
			e.startWriteback(f, delalloc.Selection{})
			budget -= n
		}
		e.release(f)
	}
}
