package main

import (
	"context"
	"fmt"
	"time"
)

// expect finds out beside the work how many bytes there are to move, for the time that is left; only if
// somebody is watching, for it costs a look at every name. An error means that it is not known.
func (p *progress) expect(ctx context.Context, measure func(context.Context) (int64, error)) {
	if p.stop == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	p.helpers.Go(func() {
		defer cancel()
		if n, err := measure(ctx); err == nil {
			p.total.Store(n)
			p.measured.Store(true)
		}
	})
	p.helpers.Go(func() {
		select {
		case <-p.stop:
			cancel()
		case <-ctx.Done():
		}
	})
}

// line is how far it has come after so long.
func (p *progress) line(elapsed time.Duration) string {
	n := p.bytes.Load()
	rate := float64(n) / max(elapsed.Seconds(), 1e-3)
	files, speed := count(uint64(p.files.Load()), "file"), size(int64(rate))+"/s"
	total := p.total.Load()
	if !p.measured.Load() || total < n || rate < 1 {
		return fmt.Sprintf("%s, %s, %s", files, size(n), speed)
	}
	left := time.Duration(float64(total-n) / rate * float64(time.Second))
	return fmt.Sprintf("%s, %s of %s, %s, %s left", files, size(n), size(total), speed, hours(left))
}
