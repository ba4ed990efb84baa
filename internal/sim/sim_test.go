package sim

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var (
	simSeed = flag.Uint64("sim.seed", 0, "first seed of TestSimulator; 0: a new one, printed")
	simFor  = flag.Duration("sim.for", 0, "how long TestSimulator goes on; 0: a few seconds")
)

func TestSimulator(t *testing.T) {
	seed := *simSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	d := *simFor
	if d == 0 {
		d = 5 * time.Second
	}
	cov := NewCoverage()
	began := time.Now()
	runs := 0
	for time.Since(began) < d && !t.Failed() {
		s := seed + uint64(runs)
		runs++
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				ch := Fresh(s)
				cfg := ConfigFor(s)
				res := Run(cfg, ch, dir, cov)
				if res.Err != nil {
					n := len(res.History)
					for _, l := range res.History[max(0, n-60):] {
						t.Log(l)
					}
					t.Fatalf("seed %d, %+v: %v", s, cfg, res.Err)
				}
			})
		})
	}
	t.Logf("%d runs in %.1f s\n%s", runs, time.Since(began).Seconds(), cov)
}
