package scrub

import (
	"context"
	"sync"
	"time"
)

// Limiter holds what is read of the device to so many bytes a second. What was charged is waited for
// afterwards, and what was not used is lost: there is never a burst, not even after a pause. Its methods
// may be called from any goroutine.
type Limiter struct {
	now   func() time.Time
	after func(time.Duration) <-chan time.Time

	mu struct {
		sync.Mutex
		rate    int64
		debt    float64   // bytes, as it was at since
		since   time.Time // of debt
		changed chan struct{}
	}
}

// NewLimiter returns a limiter of rate bytes a second; 0: no limit. after is time.After.
func NewLimiter(rate int64, now func() time.Time, after func(time.Duration) <-chan time.Time) *Limiter {
	l := &Limiter{now: now, after: after}
	l.mu.rate, l.mu.since, l.mu.changed = rate, now(), make(chan struct{})
	return l
}

// Set changes the limit at once: what was owed under the old one is forgiven.
func (l *Limiter) Set(rate int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.rate, l.mu.debt, l.mu.since = rate, 0, l.now()
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

// Rate returns the limit in bytes a second.
func (l *Limiter) Rate() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.rate
}

// Charge notes that n bytes are about to be read.
func (l *Limiter) Charge(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLocked()
	if l.mu.rate > 0 {
		l.mu.debt += float64(n)
	}
}

func (l *Limiter) settleLocked() {
	now := l.now()
	l.mu.debt = max(0, l.mu.debt-now.Sub(l.mu.since).Seconds()*float64(l.mu.rate))
	l.mu.since = now
}

// Wait returns when what was charged is paid for, or with ctx's error.
func (l *Limiter) Wait(ctx context.Context) error {
	for {
		l.mu.Lock()
		l.settleLocked()
		debt, rate, changed := l.mu.debt, l.mu.rate, l.mu.changed
		l.mu.Unlock()
		if debt == 0 || rate == 0 {
			return ctx.Err()
		}
		select {
		case <-l.after(time.Duration(debt/float64(rate)*float64(time.Second)) + 1):
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step returns how many bytes to read before the next Wait: a tenth of a second's, so that changes and
// pauses are followed soon.
func (l *Limiter) step(most int64) int64 {
	rate := l.Rate()
	if rate == 0 {
		return most
	}
	return min(most, max(rate/10, 64<<10))
}
