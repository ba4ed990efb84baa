package scrub

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// readFor reads through the limiter in its steps until the time is over; it answers the bytes.
func readFor(t *testing.T, l *Limiter, d time.Duration) (n int64) {
	t.Helper()
	for end := time.Now().Add(d); ; {
		ctx, cancel := context.WithDeadline(t.Context(), end)
		err := l.Wait(ctx)
		cancel()
		if err != nil {
			return n
		}
		s := l.step(8 << 20)
		l.Charge(s)
		n += s
		time.Sleep(time.Duration(s) * time.Second / (500 << 20)) // what a disk takes
	}
}

func within(t *testing.T, what string, got, want int64, share float64) {
	t.Helper()
	if math.Abs(float64(got-want)) > share*float64(want) {
		t.Errorf("%s: %d bytes, want %d", what, got, want)
	}
}

func TestLimitHolds(t *testing.T) {
	for _, rate := range []int64{100 << 10, 1 << 20, 8 << 20, 200 << 20} {
		synctest.Test(t, func(t *testing.T) {
			within(t, "5 s", readFor(t, NewLimiter(rate, time.Now, time.After), 5*time.Second), 5*rate, 0.2)
		})
	}
}

// TestLimitChangesAtOnce changes the limit up, down and off while somebody waits for what he owes.
func TestLimitChangesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1<<10, time.Now, time.After)
		l.Charge(1 << 20) // a quarter of an hour's
		go func() {
			time.Sleep(100 * time.Millisecond)
			l.Set(8 << 20)
		}()
		began := time.Now()
		if err := l.Wait(t.Context()); err != nil || time.Since(began) > 200*time.Millisecond {
			t.Errorf("waited %v, %v", time.Since(began), err)
		}
		within(t, "8 MiB/s", readFor(t, l, 2*time.Second), 16<<20, 0.2)
		l.Set(1 << 20)
		within(t, "1 MiB/s", readFor(t, l, 2*time.Second), 2<<20, 0.2)
		l.Set(0)
		if n := readFor(t, l, time.Second); n < 400<<20 {
			t.Errorf("without a limit %d bytes", n)
		}
		l.Charge(1 << 40)
		l.Set(2 << 20)
		within(t, "2 MiB/s", readFor(t, l, 2*time.Second), 4<<20, 0.2)
	})
}

// TestNoBurstAfterAPause leaves the limit unused for a minute.
func TestNoBurstAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(8<<20, time.Now, time.After)
		readFor(t, l, time.Second)
		time.Sleep(time.Minute)
		within(t, "the second after", readFor(t, l, time.Second), 8<<20, 0.2)
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1, time.Now, time.After)
		l.Charge(1 << 30)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
