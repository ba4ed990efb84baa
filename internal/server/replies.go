package server

import (
	"sync"
	"time"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
)

// pace is when Write replies unasked, beside every Limits.ack_interval_bytes of progress.
type pace struct {
	// idle is how long nothing must have come, nor gone, before progress is reported.
	idle time.Duration
	// heartbeat is how often a stall is reported.
	heartbeat time.Duration
	// A tenth of the caller's time, but within these bounds, is kept to tell it of a full
	// store before its deadline passes.
	minMargin, maxMargin time.Duration
}

var defaultPace = pace{
	idle: 200 * time.Millisecond, heartbeat: 2 * time.Second,
	minMargin: 20 * time.Millisecond, maxMargin: time.Second,
}

// replier sends the replies of one Write, except the last, from a goroutine of its own.
type replier struct {
	stream *writeStream

	kick chan struct{} // a reply was demanded, or the end
	quit chan struct{}
	done chan struct{}
	once sync.Once

	mu struct {
		sync.Mutex
		demanded bool
	}

	// Of the last reply; the goroutine's, once it runs.
	receivedBytes, durableBytes int64
	any                         bool // a reply has been sent
}

// sent notes what a reply said.
func (r *replier) sent(m *shinglev1.WriteResponse) {
	r.receivedBytes, r.durableBytes, r.any = m.ReceivedBytes, m.DurableBytes, true
}

func (r *replier) start() {
	r.kick, r.quit, r.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(r.done)
		// An error here is the stream's end, of which the handler hears by itself; a panic is
		// logged by guard and leaves the stream without replies but the last.
		_ = r.stream.guard(r.run)
	}()
}

// closed makes stop and demand harmless for a replier that never started.
func (r *replier) closed() {
	r.kick, r.quit, r.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	close(r.done)
}

// stop ends the replier and waits for a reply under way, after which the caller may send. It
// may be called again.
func (r *replier) stop() {
	r.once.Do(func() { close(r.quit) })
	<-r.done
}

// demand asks for a reply at once. It never blocks.
func (r *replier) demand() {
	r.mu.Lock()
	r.mu.demanded = true
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// takeDemand reports whether a reply was demanded since it was last asked. It must be asked
// before the position is looked at, so that the reply covers what came before the demand.
func (r *replier) takeDemand() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.mu.demanded
	r.mu.demanded = false
	return d
}

func (r *replier) run() error {
	s := r.stream
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	lastSent := s.o.Now()
	var stalledSince time.Time
	for {
		select {
		case <-r.quit:
			return nil
		default:
		}
		changed := s.w.Changed()
		demanded := r.takeDemand()
		m := s.position()
		now := s.o.Now()
		if state := s.w.State(); state == engine.Accepting || state == engine.Finished {
			stalledSince = time.Time{}
		} else {
			s.stalled.Store(int32(state) + 1)
			if stalledSince.IsZero() {
				stalledSince = now
			}
		}
		due, ok := r.due(m, now, lastSent, stalledSince)
		if demanded || ok && due <= 0 {
			if !r.any {
				m.FileId = s.w.FileID()
			}
			if err := s.stream.SendMsg(m); err != nil {
				return err
			}
			r.sent(m)
			lastSent = s.o.Now()
			continue
		}
		if !ok {
			due = time.Hour
		}
		timer.Reset(due)
		select {
		case <-changed:
		case <-r.kick:
		case <-timer.C:
		case <-r.quit:
			return nil
		}
	}
}

// due answers how long from now a reply that says m is due, 0 or less for at once; ok is
// false if only a change can make it so.
func (r *replier) due(m *shinglev1.WriteResponse, now, lastSent, stalledSince time.Time) (wait time.Duration, ok bool) {
	s := r.stream
	if m.ReceivedBytes-r.receivedBytes >= s.ackInterval || m.DurableBytes-r.durableBytes >= s.ackInterval {
		return 0, true
	}
	var at time.Time
	if !stalledSince.IsZero() {
		at, ok = later(stalledSince, lastSent).Add(s.pace.heartbeat), true
	}
	if m.ReceivedBytes != r.receivedBytes || m.DurableBytes != r.durableBytes {
		idle := later(time.Unix(0, s.received.Load()), lastSent).Add(s.pace.idle)
		if !ok || idle.Before(at) {
			at, ok = idle, true
		}
	}
	return at.Sub(now), ok
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
