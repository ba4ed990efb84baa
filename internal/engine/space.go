package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

// kick is a wake-up that is never lost and never blocks.
type kick chan struct{}

func newKick() kick { return make(kick, 1) }

func (k kick) set() {
	select {
	case k <- struct{}{}:
	default:
	}
}

// reserve promises n bytes of space and their worst-case metadata. While something under way
// can give space back (a writeback's surplus, a deleted file, a zone to be reset) it waits, up
// to maxWait; then NoSpace with the figures.
func (e *Engine) reserve(ctx context.Context, n int64, maxWait time.Duration, state func(WriteState)) error {
	err := e.tryReserve(n)
	if err == nil {
		e.reclaimIfLow()
	}
	if !errdefs.Is(err, errdefs.NoSpace) {
		return err
	}
	defer setState(state, Accepting)
	setState(state, WaitingSpace)
	e.rc.spaceWaits.Add(1)
	e.rc.waiting.Add(1)
	defer e.rc.waiting.Add(-1)
	e.rc.urged.set()
	timer := time.NewTimer(e.waitFor(maxWait))
	defer timer.Stop()
	for {
		changed := e.al.Changed()
		if err = e.tryReserve(n); !errdefs.Is(err, errdefs.NoSpace) {
			return err
		}
		if !e.coming(err) {
			// Look once more: what was coming may have come between the two looks.
			if err = e.tryReserve(n); !errdefs.Is(err, errdefs.NoSpace) {
				return err
			}
			return e.spaceError(err, n)
		}
		e.pressure.set()
		e.resetKick.set()
		e.orphanKick.set()
		e.rc.kick.set()
		select {
		case <-changed:
		case <-e.spaceTick():
		case <-timer.C:
			return e.spaceError(err, n)
		case <-ctx.Done():
			return ctx.Err()
		case <-e.broken:
			return e.writable("engine.Write")
		case <-e.stop:
			return e.writable("engine.Write")
		}
	}
}

// tryReserve promises n bytes of space and their metadata, or neither.
func (e *Engine) tryReserve(n int64) error {
	e.reserveMu.Lock() // so that two cannot both be promised the last room in the metadata
	defer e.reserveMu.Unlock()
	if err := e.metadataRoom(n / extent.BlockSize * metadataPerBlock); err != nil {
		return err
	}
	if err := e.al.Reserve(n); err != nil {
		return err
	}
	e.reserved.Add(n)
	return nil
}

// coming reports whether what the refusal was for may be over soon without anybody's help. Dirty
// data counts at its worst in the metadata, so its commit makes room there.
func (e *Engine) coming(err error) bool {
	if errdefs.ReasonOf(err) == errdefs.ReasonMetadataSpace {
		return e.reservedInFlight() || e.orphans.Load() > 0
	}
	return e.spaceComing()
}

// apart returns a little more than d. No two waits that begin at one moment end at one moment, so
// waiters do not all look at once, and look in the order in which they began to wait; nor is it left to
// chance whether a wait or its caller's deadline, which is mostly round, is over first.
func (e *Engine) apart(d time.Duration) time.Duration {
	return d + time.Duration(e.ticks.Add(1)%4096)*time.Microsecond + 137*time.Nanosecond
}

// spaceTick bounds how long a waiter relies on being woken.
func (e *Engine) spaceTick() <-chan time.Time { return time.After(e.apart(100 * time.Millisecond)) }

func (e *Engine) waitFor(d time.Duration) time.Duration {
	if d <= 0 {
		return e.o.MaxWait
	}
	return d
}

func setState(state func(WriteState), s WriteState) {
	if state != nil {
		state(s)
	}
}

// unreserve gives n reserved bytes back.
func (e *Engine) unreserve(n int64) {
	if n == 0 {
		return
	}
	e.reserved.Add(-n)
	e.al.Unreserve(n)
}

// spaceComing reports whether space is on its way back without anybody's help: compressible
// data in writeback (its surplus), deleted files, dead zones, live data that can be moved together.
func (e *Engine) spaceComing() bool {
	u := e.al.Usage()
	return u.Reclaimable > 0 || e.resetting.Load() > 0 || e.orphans.Load() > 0 || e.reservedInFlight() || e.reclaimHelps()
}

func (e *Engine) reservedInFlight() bool { return e.reserved.Load() > e.stuck.Load() }

// spaceError makes a NoSpace error carry the account of space.
func (e *Engine) spaceError(err error, n int64) error {
	reason := errdefs.ReasonOf(err)
	if reason == errdefs.ReasonMetadataSpace {
		return err
	}
	if e.spaceComing() {
		reason = errdefs.ReasonReclaimPending
	}
	u := e.Usage()
	return &errdefs.Error{
		Kind: errdefs.NoSpace, Reason: reason, Op: "engine.Write",
		Msg: fmt.Sprintf("%d bytes wanted, %d free (%d reserved, %d zone_unusable)", n, u.Free, u.Reserved, u.Unusable),
		Meta: map[string]string{
			"wanted": fmt.Sprint(n), "free": fmt.Sprint(u.Free), "reserved": fmt.Sprint(u.Reserved),
			"zone_unusable": fmt.Sprint(u.Unusable), "reclaimable": fmt.Sprint(u.Reclaimable),
			"active": fmt.Sprint(u.Active), "max_active": fmt.Sprint(u.MaxActive),
			"relocatable": fmt.Sprint(u.Relocatable), "reclaim_running": fmt.Sprint(u.Reclaiming),
		},
		Detail: u, Err: err,
	}
}

// metadataRoom refuses n bytes of records that might not fit. Received blocks are what the
// metadata still owes, so no count of its own is needed: the data reservation is the count.
func (e *Engine) metadataRoom(n int64) error {
	s := e.st.Stats()
	owed := e.reserved.Load()/extent.BlockSize*metadataPerBlock + e.inlining.Load()*metadataPerInline + n
	// One part in sixteen is for deletes, another for the copies of pages that a commit makes.
	if e.st.Room(owed + s.MaxBytes/8) {
		return nil
	}
	msg := fmt.Sprintf("the metadata file holds %d of %d bytes, and what is dirty may need %d more", s.UsedBytes, s.MaxBytes, owed)
	if s.SetAside < s.MaxBytes {
		msg += fmt.Sprintf("; the disk that it lies on is full, with %d bytes set aside for it", s.SetAside)
	}
	return &errdefs.Error{
		Kind: errdefs.NoSpace, Reason: errdefs.ReasonMetadataSpace, Op: "engine.Write", Msg: msg,
		Meta: map[string]string{
			"metadata_bytes": fmt.Sprint(s.UsedBytes), "metadata_max_bytes": fmt.Sprint(s.MaxBytes), "metadata_set_aside_bytes": fmt.Sprint(s.SetAside),
		},
		Detail: e.Usage(),
	}
}

// allocMemory returns slab memory of n bytes, a multiple of the block. Over the dirty limit it
// waits for writeback, up to maxWait without any progress. Who waits takes turns, so that
// writers that each hold a part cannot wait for each other's.
func (e *Engine) allocMemory(ctx context.Context, n int64, maxWait time.Duration, state func(WriteState)) ([]*slab.Buf, error) {
	bufs, ok := e.tryMemory(nil, n)
	if !ok {
		for _, b := range bufs {
			b.Free()
		}
		e.memWaiters.Add(1)
		setState(state, WaitingWriteback)
		var err error
		bufs, err = e.awaitMemory(ctx, n, e.waitFor(maxWait))
		setState(state, Accepting)
		e.memWaiters.Add(-1)
		if err != nil {
			return nil, err
		}
	}
	if e.arena.InUse() > e.o.DirtyLimit*3/4 {
		e.pressure.set()
	}
	return bufs, nil
}

// tryMemory adds buffers to bufs until they hold n bytes, or answers false with what it got.
func (e *Engine) tryMemory(bufs []*slab.Buf, n int64) ([]*slab.Buf, bool) {
	for _, b := range bufs {
		n -= b.Len()
	}
	for n > 0 {
		b, ok := e.arena.Alloc(min(n, slab.MaxAlloc))
		if !ok {
			return bufs, false
		}
		bufs = append(bufs, b)
		n -= b.Len()
	}
	return bufs, true
}

func (e *Engine) awaitMemory(ctx context.Context, n int64, maxWait time.Duration) (bufs []*slab.Buf, err error) {
	defer func() {
		if err != nil {
			for _, b := range bufs {
				b.Free()
			}
			bufs = nil
		}
	}()
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case e.memTurn <- struct{}{}:
		defer func() { <-e.memTurn }()
	case <-timer.C:
		return nil, e.memoryError()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.broken:
		return nil, e.writable("engine.Write")
	case <-e.stop:
		return nil, e.writable("engine.Write")
	}
	for {
		changed := e.arena.Changed()
		var ok bool
		if bufs, ok = e.tryMemory(bufs, n); ok {
			return bufs, nil
		}
		e.pressure.set()
		select {
		case <-changed:
			timer.Reset(maxWait)
		case <-timer.C:
			return bufs, e.memoryError()
		case <-ctx.Done():
			return bufs, ctx.Err()
		case <-e.broken:
			return bufs, e.writable("engine.Write")
		case <-e.stop:
			return bufs, e.writable("engine.Write")
		}
	}
}

func (e *Engine) memoryError() error {
	return &errdefs.Error{
		Kind: errdefs.NoSpace, Reason: errdefs.ReasonWriteback, Op: "engine.Write",
		Msg:    fmt.Sprintf("the dirty limit of %d bytes is reached and writeback makes no progress", e.o.DirtyLimit),
		Detail: e.Usage(),
	}
}
