package scrub

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// errStopped says that something was not read because the scrub was told to stop.
var errStopped = errors.New("it was told to stop")

// data reads the data. One goroutine looks up and fills the queue, others read and verify, and
// this one takes what they have done, in order, and records it.
func (j *job) data(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &feeder{
		j: j, at: j.at.At, window: semaphore.NewWeighted(j.o.Group),
		queue: make(chan read, 16), steps: make(chan *step, mostSteps),
	}
	for range min(max(depth, runtime.GOMAXPROCS(0)), int(j.o.Memory/readMost)) {
		j.spawn(func() { j.reader(f.queue, ctx.Done()) })
	}
	j.spawn(func() { f.feed(ctx) })
	return j.collect(ctx, f)
}

// collect takes steps as they are done, in order, and records.
func (j *job) collect(ctx context.Context, f *feeder) error {
	var head *step // the next one in order
	var due, late <-chan time.Time
	stop := ctx.Done()
	for j.at.Phase == Data {
		steps, done := f.steps, (chan struct{})(nil)
		if head != nil {
			steps, done = nil, head.done
		}
		if j.unsaved > 0 && due == nil && late == nil {
			due = j.o.After(max(0, recordEvery-j.o.Now().Sub(j.savedAt)))
		}
		select {
		case s, ok := <-steps:
			if !ok {
				return f.err
			}
			head = s
			continue
		case <-done:
		case <-due:
			if due = nil; late == nil {
				if err := f.record(ctx); err != nil {
					return err
				}
			}
			continue
		case <-stop:
			late, stop = j.o.After(grace), nil
			continue
		case <-late:
			return ctx.Err()
		}
		if err := j.take(head); err != nil {
			if errors.Is(err, errStopped) {
				err = ctx.Err()
			}
			return err
		}
		f.unrecorded += head.claim
		head = nil
		if j.due() && late == nil && j.at.Phase == Data && !f.goesOn(&head) {
			if err := f.record(ctx); err != nil {
				return err
			}
			due = nil
		}
	}
	return nil
}

// goesOn reports whether the next step is done already, and may be recorded with those before it.
func (f *feeder) goesOn(head **step) bool {
	if f.unrecorded >= f.j.o.Group/4*3 {
		return false
	}
	select {
	case s, ok := <-f.steps:
		if !ok {
			return false
		}
		*head = s
	default:
		return false
	}
	select {
	case <-(*head).done:
		return true
	default:
		return false
	}
}

// take counts a step that is done.
func (j *job) take(s *step) error {
	t := s.result()
	switch {
	case t.err != nil:
		return t.err
	case t.dropped:
		return errStopped
	}
	c := &j.at.Counters
	c.DataExtentsScrubbed += uint64(s.look.Extents)
	scrubbed := (s.look.Blocks - t.movedBlocks()) * extent.BlockSize
	c.DataBytesScrubbed += uint64(scrubbed)
	c.NoCsum += uint64(s.look.NoSums)
	c.CsumDiscards += uint64(s.look.LooseSums)
	c.UnverifiedErrors += t.unverified
	c.ReadOperations += t.reads
	c.BytesRead += t.bytes
	c.ExtentLookups += s.look.ExtentLookups
	c.CsumLookups += s.look.SumLookups
	if s.look.LastPhysical > 0 {
		c.LastPhysical = s.look.LastPhysical
	}
	j.found(s.look.Damaged)
	j.found(t.found)
	j.unsaved += max(s.bytes, 1)
	j.plan.advance(&j.at, s.look.Next, scrubbed)
	return nil
}

// feeder looks up and fills the queue.
type feeder struct {
	j      *job
	at     int64
	window *semaphore.Weighted // bytes that may be read and not recorded
	queue  chan read
	steps  chan *step // in order; closed when the feeder has ended
	err    error      // set before steps is closed

	under []*step // that may not be done; of the feeder's goroutine

	unrecorded int64 // of the window; of the goroutine of Run
}

func (f *feeder) record(ctx context.Context) error {
	if err := f.j.record(ctx); err != nil {
		return err
	}
	f.window.Release(f.unrecorded)
	f.unrecorded = 0
	return nil
}

func (f *feeder) feed(ctx context.Context) {
	defer close(f.steps)
	defer close(f.queue)
	pace := pacer{j: f.j, last: f.j.space.Others()}
	var began time.Time // of the last step
	for f.at < f.j.plan.To && f.err == nil {
		room := min(stepMost, extent.RoundDown(f.j.o.Group/8))
		if pace.busy() {
			// One short step at a time, so that a client's read waits behind one of these at most.
			room = min(room, readMost)
			if f.err = f.idle(ctx); f.err == nil && !began.IsZero() {
				f.err = pace.sleep(ctx, f.j.o.Now().Sub(began))
			}
		}
		if f.err == nil {
			f.err = f.j.o.Limit.Wait(ctx)
		}
		if f.err == nil {
			began = f.j.o.Now()
			f.err = f.step(ctx, extent.RoundDown(f.j.o.Limit.step(room)))
		}
	}
}

// idle waits until nothing is under way.
func (f *feeder) idle(ctx context.Context) error {
	for _, s := range f.under {
		select {
		case <-s.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.under = nil
	return nil
}

// slack is what a step may read beyond twice its room: a frame and a zone header.
const slack = 2 * (extent.MaxFrameSize + extent.BlockSize)

// step looks up at most room bytes, whole blocks, and has them read.
func (f *feeder) step(ctx context.Context, room int64) error {
	claim := min(f.j.o.Group, 2*room+slack)
	if err := f.window.Acquire(ctx, claim); err != nil {
		return err
	}
	_, end := f.j.plan.mark(f.at)
	look, err := f.j.space.Look(f.at, end, room/extent.BlockSize)
	if err != nil {
		f.window.Release(claim)
		return err
	}
	if look.Next <= f.at || look.Next > end {
		f.window.Release(claim)
		look.Release()
		return errdefs.New(errdefs.Internal, "", "scrub.Run", "", "a look did not get on")
	}
	s := &step{look: look, done: make(chan struct{})}
	reads := group(look.Pieces, f.j.o.ZoneSize, look.Apart)
	for i := range reads {
		reads[i].step = s
		s.bytes += reads[i].n
	}
	s.claim = min(claim, s.bytes)
	f.window.Release(claim - s.claim)
	s.left.Store(int64(len(reads)) + 1)
	defer f.j.ended(s, tally{})
	f.j.o.Limit.Charge(s.bytes)
	select {
	case f.steps <- s:
	case <-ctx.Done():
		return f.drop(ctx, s, len(reads))
	}
	for i, r := range reads {
		select {
		case f.queue <- r:
		case <-ctx.Done():
			return f.drop(ctx, s, len(reads)-i)
		}
	}
	f.at = look.Next
	under := f.under[:0]
	for _, u := range append(f.under, s) {
		select {
		case <-u.done:
		default:
			under = append(under, u)
		}
	}
	f.under = under
	return nil
}

// drop gives up n reads of a step, for it was told to stop.
func (f *feeder) drop(ctx context.Context, s *step, n int) error {
	for range n {
		f.j.ended(s, tally{dropped: true})
	}
	return ctx.Err()
}
