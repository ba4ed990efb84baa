package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errGone is what the operations of a process answer that has died, or has lost its power.
var errGone = errors.New("the process is gone")

// event is something that waits to be let go on: a device operation, a commit, a client between
// two steps.
type event struct {
	kind     string
	dev      *device // of an operation of a device
	zone     int
	off, len int64
	life     *life
	order    int
	stalled  time.Time // not before then
	done     chan verdict
}

func (e *event) String() string {
	disk := ""
	if e.dev != nil {
		disk = e.dev.disk.String()
	}
	switch e.kind {
	case "append", "read":
		return fmt.Sprintf("%s%s zone %d at %d, %d bytes", e.kind, disk, e.zone, e.off, e.len)
	case "commit", "committed", "flush":
		return e.kind + disk
	case "client":
		return fmt.Sprintf("client %d goes on", e.zone)
	}
	return fmt.Sprintf("%s%s zone %d", e.kind, disk, e.zone)
}

// index is that of the disk that an operation is for.
func (e *event) index() int {
	if e.dev == nil {
		return 0
	}
	return e.dev.disk.index
}

// verdict is how an event goes on: with an error it does not take effect.
type verdict struct {
	err error
	// after, unless nil, runs when the effect is there and before its caller hears of it.
	after func()
	hold  bool // of a commit: it waits once more when it is written
}

// sched holds what is pending.
type sched struct {
	mu    sync.Mutex
	list  []*event
	count int
}

// wait enters an event and blocks until it is chosen.
func (s *sched) wait(e *event) verdict {
	s.mu.Lock()
	if e.life.gone {
		s.mu.Unlock()
		return verdict{err: errGone}
	}
	e.done = make(chan verdict, 1)
	s.count++
	e.order = s.count
	s.list = append(s.list, e)
	s.mu.Unlock()
	return <-e.done
}

// pending returns the events that may go on, in an order that does not depend on who came first,
// as far as they differ.
func (s *sched) pending(now time.Time) []*event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p []*event
	for _, e := range s.list {
		if !e.stalled.After(now) {
			p = append(p, e)
		}
	}
	slices.SortFunc(p, func(a, b *event) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.index(), b.index()), cmp.Compare(a.zone, b.zone), cmp.Compare(a.off, b.off),
			cmp.Compare(a.len, b.len), cmp.Compare(a.order, b.order))
	})
	return p
}

// oldest returns the event that came first. Where all goes well the others must not starve it: each
// flush brings about another, and would go on before any write for ever.
func oldest(pending []*event) *event {
	return slices.MinFunc(pending, func(a, b *event) int { return cmp.Compare(a.order, b.order) })
}

// let lets an event go on.
func (s *sched) let(e *event, v verdict) {
	s.mu.Lock()
	s.list = slices.DeleteFunc(s.list, func(x *event) bool { return x == e })
	s.mu.Unlock()
	e.done <- v
}

// end makes a life's pending events, and all that come, fail without effect.
func (s *sched) end(l *life) {
	s.mu.Lock()
	l.gone = true
	var mine, rest []*event
	for _, e := range s.list {
		if e.life == l {
			mine = append(mine, e)
		} else {
			rest = append(rest, e)
		}
	}
	s.list = rest
	s.mu.Unlock()
	for _, e := range mine {
		e.done <- verdict{err: errGone}
	}
}
