package trim

import (
	"context"
	"math"
	"sync"

	"github.com/shingle-store/shingle/internal/extent"
)

// Begin is Run before anything was looked at: it checks the request, and answers its summary.
func Begin(s Space, r Request) (Result, error) {
	slots, size := s.Layout()
	sp, err := r.check(int64(slots) * size)
	if err != nil {
		return Result{}, err
	}
	return Result{Total: uint64(sp.to - sp.from), MinLength: uint64(sp.minLength), NextStart: uint64(sp.from)}, nil
}

// Run trims what the request says and returns when nothing is held any more. progress, unless nil,
// is given a summary now and then, by whoever is at work: it must not wait, and is not called
// together with itself. When ctx ends the trim stops after what has been sent, with state
// Cancelled and no error. The error is InvalidArgument, see Request.
func Run(ctx context.Context, s Space, r Request, progress func(Result)) (Result, error) {
	return newRun(s, r.DryRun, progress).trim(ctx, r)
}

func newRun(s Space, dry bool, progress func(Result)) *run {
	t := &run{s: s, dry: dry, progress: progress, maxRanges: maxRanges, maxDepth: maxDepth}
	t.slots, t.size = s.Layout()
	t.plug.t = t
	t.mu.dropped = math.MaxInt64
	return t
}

// run is one trim under way.
type run struct {
	s         Space
	dry       bool
	progress  func(Result)
	slots     int
	size      int64
	minLength int64
	plug      plug

	// The baseline of BenchmarkS2BatchedDiscard sets both to 1.
	maxRanges, maxDepth int

	mu struct {
		sync.Mutex
		Result
		dropped int64 // the lowest address that was to be sent, and was not
		errorAt int64 // the address of FirstError
		failed  map[uint32]struct{}
	}
}

func (t *run) addr(slot uint32, off int64) int64 { return int64(slot)*t.size + off }

// countLocked adds n bytes that have been dealt with to one of the figures.
func (t *run) countLocked(figure *uint64, n int64) {
	*figure += uint64(n)
	t.mu.Done += uint64(n)
}

func (t *run) failLocked(slot uint32, off, n int64, err error) {
	t.countLocked(&t.mu.Failed, n)
	if t.mu.failed == nil {
		t.mu.failed = map[uint32]struct{}{}
	}
	t.mu.failed[slot] = struct{}{}
	t.mu.FailedZones = uint32(len(t.mu.failed))
	if at := t.addr(slot, off); t.mu.FirstError == nil || at < t.mu.errorAt {
		t.mu.FirstError, t.mu.errorAt = err, at
	}
}

// count adds n bytes to the figure.
func (t *run) count(figure *uint64, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.countLocked(figure, n)
}

func (t *run) trim(ctx context.Context, r Request) (Result, error) {
	begin, err := Begin(t.s, r)
	if err != nil {
		return begin, err
	}
	t.minLength, t.mu.Result = int64(begin.MinLength), begin
	at, end := int64(begin.NextStart), int64(begin.NextStart+begin.Total)
	for at < end && ctx.Err() == nil {
		slot := uint32(at / t.size)
		from, to := at%t.size, min(t.size, end-t.addr(slot, 0))
		at = t.addr(slot, t.group(ctx, slot, from, to))
		t.report(at)
	}
	t.plug.unplug(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	out := &t.mu.Result
	out.NextStart = uint64(min(at, t.mu.dropped))
	switch {
	case int64(out.NextStart) < end:
		out.State = Cancelled
	case out.FirstError != nil:
		out.State = CompleteWithErrors
	default:
		out.State = Complete
	}
	return *out, nil
}

// report tells how far the trim has come. What is plugged has not been dealt with.
func (t *run) report(at int64) {
	if q := t.plug.queue; len(q) > 0 {
		at = t.addr(q[0].slot, 0)
		if q[0].ranges != nil {
			at = t.addr(q[0].slot, q[0].ranges[0].Off)
		}
	}
	t.mu.Lock()
	t.mu.NextStart = uint64(min(at, t.mu.dropped))
	t.mu.Unlock()
	t.tell()
}

// tell gives a summary to who wants it.
func (t *run) tell() {
	if t.progress == nil {
		return
	}
	t.mu.Lock()
	r := t.mu.Result
	t.mu.Unlock()
	t.progress(r)
}

// group deals with [from, to) of a slot and returns where it stopped, which is to unless ctx ended.
func (t *run) group(ctx context.Context, slot uint32, from, to int64) int64 {
	g := t.s.Group(slot)
	end := min(to, max(from, g.Capacity))
	switch {
	case from >= g.Capacity:
	case g.Condition == Failed:
		t.count(&t.mu.Quarantined, end-from)
	case g.Kind == Sequential:
		t.zone(ctx, slot, g, extent.Range{Off: from, End: end}, from == 0 && to == t.size)
	default:
		if at := t.runs(ctx, slot, extent.Range{Off: from, End: end}); at < end {
			return at
		}
	}
	t.count(&t.mu.Gap, to-end)
	return to
}

// zone deals with a part of a sequential zone; whole: its slot lies in the range.
func (t *run) zone(ctx context.Context, slot uint32, g Group, part extent.Range, whole bool) {
	n := part.Len()
	switch {
	case g.Condition == Trimmed:
		t.count(&t.mu.AlreadyTrimmed, n)
	case g.Condition == Busy:
		t.count(&t.mu.Busy, n)
	case g.Condition == InUse:
		used, err := min(g.Used, n), error(nil)
		if !whole {
			used, err = t.s.LiveIn(slot, part.Off, part.End)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil {
			t.failLocked(slot, part.Off, n, err)
			return
		}
		t.countLocked(&t.mu.InUse, used)
		t.countLocked(&t.mu.PartialZone, n-used)
	case !whole:
		t.count(&t.mu.PartialZone, n)
	case n < t.minLength:
		t.count(&t.mu.TooShort, n)
	case t.dry:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.countLocked(&t.mu.Trimmed, n)
		t.mu.Extents++
		if !g.Empty {
			t.mu.ZonesReset++
		}
	default:
		t.plug.addZone(ctx, slot, g.Capacity)
	}
}

// runs deals with the free runs in a part of a conventional zone and returns where it stopped.
func (t *run) runs(ctx context.Context, slot uint32, part extent.Range) int64 {
	for at := part.Off; at < part.End; {
		if ctx.Err() != nil {
			return at
		}
		free := t.s.FreeRun(slot, at, part.End)
		if free.Len() == 0 {
			free = extent.Range{Off: part.End, End: part.End}
		}
		t.count(&t.mu.InUse, free.Off-at)
		at = free.End
		if free.Len() < t.minLength {
			t.count(&t.mu.TooShort, free.Len())
			continue
		}
		fresh := t.s.Fresh(slot, free)
		from := free.Off
		for _, r := range fresh {
			t.count(&t.mu.AlreadyTrimmed, r.Off-from)
			t.fresh(ctx, slot, r)
			from = r.End
		}
		t.count(&t.mu.AlreadyTrimmed, free.End-from)
	}
	return part.End
}

// fresh plugs what is free and not trimmed, as far as it still is free.
func (t *run) fresh(ctx context.Context, slot uint32, r extent.Range) {
	if t.dry {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.mu.Extents++
		t.countLocked(&t.mu.Trimmed, r.Len())
		return
	}
	for at := r.Off; at < r.End; {
		held := t.s.Hold(slot, extent.Range{Off: at, End: r.End})
		if held.Len() == 0 {
			held = extent.Range{Off: r.End, End: r.End}
		}
		t.count(&t.mu.InUse, held.Off-at) // allocated since it was looked at
		if at = held.End; held.Len() > 0 {
			t.plug.add(ctx, slot, held)
		}
	}
}
