package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

var (
	simSeed   = flag.Uint64("sim.seed", 0, "first seed of TestSimulator; 0: a new one, printed")
	simFor    = flag.Duration("sim.for", 0, "how long TestSimulator goes on; 0: as long as its default, see there")
	simKeep   = flag.String("sim.keep", "", "folder for the reduced trace of a failure; empty: a temporary one that stays")
	simReplay = flag.String("sim.replay", "", "trace file that TestReplayOne runs")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(200) // engines of milliseconds make much garbage and keep little
	goleak.VerifyTestMain(m)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// bubble does one run in a bubble of its own.
func bubble(t *testing.T, cfg Config, ch *Choices, cov *Coverage) (res Result) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(*testing.T) { res = Run(cfg, ch, dir, cov) })
	return res
}

// TestSimulator attacks the engine from fresh seeds until its time is over: 6 s, 3 s with -short. It
// prints the seeds and what was covered; a failure is reduced to a trace file, to be kept in testdata.
// A seed that does not end, or takes the process with it, is found by the name of its test:
// -sim.seed=N -sim.for=1ns does that one again.
func TestSimulator(t *testing.T) {
	t.Parallel()
	attack(t, ConfigFor)
}

// TestSimulatorCopies is TestSimulator on stores of several devices, or with two copies, alone.
func TestSimulatorCopies(t *testing.T) {
	t.Parallel()
	attack(t, ConfigWithCopiesFor)
}

func attack(t *testing.T, config func(seed uint64) Config) {
	seed := *simSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	d := *simFor
	switch {
	case d > 0:
	case testing.Short():
		d = 3 * time.Second
	default:
		d = 6 * time.Second
	}
	cov, began := NewCoverage(), time.Now()
	var next atomic.Uint64
	t.Run("runs", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for i := next.Add(1) - 1; (i == 0 || time.Since(began) < d) && !t.Failed(); i = next.Add(1) - 1 {
					s := seed + i
					t.Run(fmt.Sprint(s), func(t *testing.T) { simulate(t, s, config(s), cov) })
				}
			})
		}
	})
	t.Logf("seeds %d to %d (repeat one with -sim.seed=N -sim.for=1ns), %.0f s: %d operations, %d ends of a life\n%s",
		seed, seed+next.Load()-1, time.Since(began).Seconds(), cov.Sum("operations "), cov.Count("cuts all")+cov.Count("lives closed in order"), cov)
}

func simulate(t *testing.T, seed uint64, cfg Config, cov *Coverage) {
	ch := Fresh(seed)
	res := bubble(t, cfg, ch, cov)
	if res.Err == nil {
		return
	}
	trace := Trace{Config: cfg, Steps: ch.Steps(), Found: res.Err.Error(), History: res.History}
	path := keep(t, trace, seed)
	for _, line := range res.History[max(0, len(res.History)-40):] {
		t.Log(line)
	}
	t.Fatalf("seed %d, %+v: %v\nThe trace, reduced, is %s: put it in testdata/traces, where it is run ever after.", seed, cfg, res.Err, path)
}

// keep reduces a failing trace in child processes, for a child may hang or die of it, and writes what
// is left.
func keep(t *testing.T, trace Trace, seed uint64) (path string) {
	dir := *simKeep
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "shingle-trace-"); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(dir, fmt.Sprintf("%d.trace", seed))
	candidate := filepath.Join(dir, fmt.Sprintf("%d.candidate", seed))
	defer os.Remove(candidate)
	defer os.Remove(candidate + historySuffix)
	began := time.Now()
	short := trace.Reduce(func(c Trace) bool {
		if time.Since(began) > time.Minute {
			return false
		}
		if err := c.Write(candidate); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestReplayOne$", "-sim.replay", candidate).Run() == nil {
			return false
		}
		if told, err := os.ReadFile(candidate + historySuffix); err == nil { // else it hung, or died
			trace.History = strings.Split(strings.TrimSpace(string(told)), "\n")
		}
		return true
	}, 400)
	short.History = trace.History
	if err := short.Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// historySuffix ends the name of the file that TestReplayOne leaves beside a trace that fails.
const historySuffix = ".history"

// TestReplayOne runs the trace of -sim.replay, and writes the history of a failure beside it.
func TestReplayOne(t *testing.T) {
	if *simReplay == "" {
		t.Skip("no -sim.replay")
	}
	if res := replay(t, *simReplay); res.Err != nil {
		write(t, *simReplay+historySuffix, strings.Join(res.History, "\n"))
	}
}

func replay(t *testing.T, path string) Result {
	t.Helper()
	trace, err := ReadTrace(path)
	if err != nil {
		t.Fatal(err)
	}
	res := bubble(t, trace.Config, Replay(trace.Steps), NewCoverage())
	if res.Err != nil {
		for _, line := range res.History {
			t.Log(line)
		}
		t.Errorf("%s: %v", path, res.Err)
	}
	return res
}

// TestReplay runs every trace in testdata/traces: failures of the past, mended.
func TestReplay(t *testing.T) {
	paths, err := filepath.Glob("testdata/traces/*.trace")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d traces, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) { replay(t, path) })
	}
}

// TestSameSeedSameTrace does runs twice from the same seeds, and wants the same history at least 99
// times in 100, and the same from what was recorded: 25 seeds, 8 with -short, 100 with -sim.for.
func TestSameSeedSameTrace(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector the runtime shuffles which goroutine goes first")
	}
	seeds := 25
	switch {
	case *simFor > 0:
		seeds = 100
	case testing.Short():
		seeds = 8
	}
	// One processor: what one event wakes then runs in the order in which it was woken.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	base := uint64(time.Now().UnixNano())
	differ, replayed := 0, 0
	for i := range seeds {
		seed := base + uint64(i)
		cfg := ConfigFor(seed)
		cfg.Lives = 5
		ch := Fresh(seed)
		first := bubble(t, cfg, ch, NewCoverage())
		again := bubble(t, cfg, Fresh(seed), NewCoverage())
		third := bubble(t, cfg, Replay(ch.Steps()), NewCoverage())
		if first.Trace != again.Trace {
			differ++
			t.Logf("seed %d: %s", seed, firstOther(first.History, again.History))
		}
		if first.Trace != third.Trace {
			replayed++
		}
	}
	t.Logf("seeds from %d: %d of %d traces differ, %d of the replays", base, differ, seeds, replayed)
	if allowed := max(1, seeds/100); differ > allowed || replayed > allowed {
		t.Fatalf("the same seed gives another trace in %d of %d, a replay in %d", differ, seeds, replayed)
	}
}

func firstOther(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d: %q and %q, after %q", i, a[i], b[i], a[max(0, i-8):i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(a), len(b))
}
