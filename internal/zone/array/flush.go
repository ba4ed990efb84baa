package array

import (
	"errors"
	"sync"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Flush implements zone.Device: all members that are there, at the same time. If it fails on one,
// the answer is that error, and what was acknowledged since the last good Flush is in doubt; if it
// fails on that one again, the member is taken out, where every set keeps a place, and its error
// counts no more.
//
// A flush that failed on a member outside of Flush (a probe) or within another Flush that has not
// answered yet is answered as well, once, because the flush that follows it on that member says
// nothing about what was lost then. So is what Fail took along.
func (a *Array) Flush() error {
	a.mu.RLock()
	closed, ms := a.closed, a.presentLocked()
	seen := make([]uint64, len(ms))
	for i, m := range ms {
		seen[i] = m.told
	}
	a.mu.RUnlock()
	if closed {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "zone.Flush", "", zone.ErrClosed)
	}
	defer a.tell()
	a.flushAll(ms)
	for _, m := range ms {
		a.mu.RLock()
		again, err := m.inARow > 1 && !errors.Is(m.flushErr, zone.ErrClosed), m.flushErr
		a.mu.RUnlock()
		if again {
			a.takeOut(m, err, false)
		}
	}
	return a.verdict(ms, seen)
}

// verdict is what the Flush of ms answers, and what no other needs to answer then. seen are the
// failures that had been told of when it began.
func (a *Array) verdict(ms []*member, seen []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.lost
	a.lost = nil
	left := false
	for i, m := range ms {
		if m.out.Load() {
			continue
		}
		left = true
		if m.failures > seen[i] {
			m.told = m.failures
			if first == nil {
				first = m.name(m.flushErr)
			}
		}
	}
	if first == nil && !left {
		first = errdefs.New(errdefs.Device, errdefs.ReasonDeviceIO, "zone.Flush", "", "no device of the store is left")
	}
	return first
}

// flushAll flushes all of them, the last on the caller's goroutine.
func (a *Array) flushAll(ms []*member) {
	var wg sync.WaitGroup
	for i, m := range ms {
		if i == len(ms)-1 {
			_ = a.flushMember(m) // recorded in m
			break
		}
		wg.Go(func() { _ = a.flushMember(m) })
	}
	wg.Wait()
}

// flushMember flushes one member, after any flush of it that is under way, so that a failure is
// recorded before a later flush ends well.
func (a *Array) flushMember(m *member) error {
	m.flushing <- struct{}{}
	defer func() { <-m.flushing }()
	a.mu.Lock()
	m.flushes++
	mine := m.flushes
	a.mu.Unlock()
	err := m.dev.Flush()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		m.failures++
		m.inARow++
		m.flushErr = err
		return err
	}
	m.inARow, m.durable = 0, mine
	return nil
}
