package engine

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// TestGroupCommit says that Syncs that wait together share a flush and a commit, and that what
// they answered is there after a power cut.
func TestGroupCommit(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		ctx := context.Background()
		const clients, rounds = 32, 8
		for i := range clients {
			put(t, e, fmt.Sprint(i), noise(uint64(i), 20_000))
		}
		before := e.Counters()
		b.mem.SetHook(func(op zone.Op) error {
			if op.Kind == zone.OpFlush && !op.After {
				time.Sleep(2 * time.Millisecond) // as a drive takes
			}
			return nil
		})
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for r := range rounds {
					if err := tryWriteAt(e, fmt.Sprint(i), int64(r)*5000, noise(uint64(i*100+r), 5000)); err != nil {
						t.Error(err)
					}
					if _, err := e.Sync(ctx, []string{fmt.Sprint(i)}, nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		after := e.Counters()
		syncs, commits, flushes := after["syncs"]-before["syncs"], after["commits"]-before["commits"], after["flushes"]-before["flushes"]
		if syncs != clients*rounds || commits == 0 || flushes == 0 {
			t.Errorf("%d syncs, %d commits, %d flushes", syncs, commits, flushes)
		}
		if commits > syncs/3 || flushes > commits {
			t.Errorf("%d syncs took %d commits and %d flushes", syncs, commits, flushes)
		}
		checkQuiet(t, e)
		b.mem.SetHook(nil)
		e = b.crash(1)
		for i := range clients {
			want := noise(uint64(i), 20_000)
			for r := range rounds {
				want = overlay(want, r*5000, noise(uint64(i*100+r), 5000))
			}
			sameFile(t, e, fmt.Sprint(i), want)
		}
	})
}

// overlay returns p with data at off, longer if need be.
func overlay(p []byte, off int, data []byte) []byte {
	if n := off + len(data); n > len(p) {
		p = append(p, make([]byte, n-len(p))...)
	}
	copy(p[off:], data)
	return p
}

// TestWritebackByAge makes data durable that nobody syncs.
func TestWritebackByAge(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.WritebackAge = 40 * time.Millisecond
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		w := openWriter(t, e, WriterOptions{Name: "f"})
		data := text(1, 300_000)
		mustWrite(t, w, data)
		eventually(t, "it is durable", func() bool { _, d := w.Position(); return d == int64(len(data)) })
		w.Close()
		if n := e.Counters()["syncs"]; n != 0 {
			t.Errorf("%d syncs are counted", n)
		}
		checkQuiet(t, e)
		e = b.crash(1)
		sameFile(t, e, "f", data)
	})
}

// TestWritebackByRange makes a complete range durable while its stream goes on, so that a client
// that streams from a pipe need not keep it.
func TestWritebackByRange(t *testing.T) {
	codec := extent.CodecZstd
	b := newFaultBench(t, limitZNS, Options{Compression: &codec, DirtyLimit: 512 << 20, WritebackAge: time.Hour})
	e := b.open()
	s := stream{payload: bytes.Repeat(text(1, 4096), 256), size: extent.MaxRangeSize + 3<<20}
	w := openWriter(t, e, WriterOptions{Name: "f"})
	defer w.Close()
	for off := int64(0); off < s.size; off += 1 << 20 {
		mustWrite(t, w, s.at(off))
	}
	eventually(t, "the complete range is durable", func() bool { _, d := w.Position(); return d == extent.MaxRangeSize })
	if r, d := w.Position(); r != s.size || d != extent.MaxRangeSize {
		t.Errorf("the positions are %d and %d", r, d)
	}
	wantCounters(t, e, map[string]uint64{"delalloc_ranges": 1, "delalloc_largest_range": extent.MaxRangeSize})
	if n := e.Usage().Dirty; n != 3<<20 {
		t.Errorf("%d bytes are dirty", n)
	}
	e = b.crash(1)
	f, err := e.Get(context.Background(), Ref{Name: "f"})
	if err != nil || f.Size != extent.MaxRangeSize {
		t.Errorf("after a crash the file is %+v, %v", f, err)
	}
}

// TestDirtyLimit says that writers never hold more memory than the limit, and get on.
func TestDirtyLimit(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.DirtyLimit, o.WritebackAge, o.MaxWait = minDirtyLimit, time.Hour, time.Minute
		b := newFaultBench(t, limitZNS, o)
		e := b.open()
		const writers, size = 6, 5 << 20
		data := noise(1, size)
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				if err := tryWriteAt(e, fmt.Sprint(i), int64(i), data); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := e.Counters()["dirty_memory_peak_bytes"]; n > minDirtyLimit || n < minDirtyLimit/4 {
			t.Errorf("at most %d bytes of memory were in use, the limit is %d", n, minDirtyLimit)
		}
		syncAll(t, e)
		checkQuiet(t, e)
		for i := range writers {
			sameFile(t, e, fmt.Sprint(i), append(make([]byte, i), data...))
		}
		b.checkLimits()
	})
}

// TestStalledDevice says how long a writer over the dirty limit waits, what it hears, and that
// nothing it was told is received is lost.
func TestStalledDevice(t *testing.T) {
	b := newFaultBench(t, limitZNS, Options{DirtyLimit: minDirtyLimit, MaxWait: 300 * time.Millisecond})
	e := b.open()
	ctx := context.Background()
	put(t, e, "other", noise(9, 100_000))
	gate := make(chan struct{})
	for range 64 {
		b.fault.Stall(zone.OpAppend, faultdev.AnyZone, gate, nil)
	}
	w := openWriter(t, e, WriterOptions{Name: "f"})
	defer w.Close()
	data := noise(1, 1<<20)
	n := int64(0)
	var err error
	var took time.Duration
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		for w.State() != WaitingWriteback {
			<-w.Changed()
		}
	}()
	for err == nil {
		if n > 2*minDirtyLimit {
			t.Fatal("the limit does not hold")
		}
		start := time.Now()
		if err = w.Write(ctx, nil, [][]byte{data}, nil); err == nil {
			n += int64(len(data))
		}
		took = time.Since(start)
	}
	wantError(t, err, errdefs.NoSpace, errdefs.ReasonWriteback)
	if took < 300*time.Millisecond || took > 10*time.Second {
		t.Errorf("it waited %v, max_wait is 300 ms", took)
	}
	<-waited
	if s := w.State(); s != Accepting {
		t.Errorf("after the wait the state is %d", s)
	}
	if r, d := w.Position(); r != n || d != 0 {
		t.Errorf("the positions are %d and %d, %d were taken", r, d, n)
	}
	sameFile(t, e, "other", noise(9, 100_000)) // reading goes on
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := w.Sync(short); !errdefs.Is(err, errdefs.DeadlineExceeded) {
		t.Errorf("a sync of a device that stalls: %v", err)
	}
	if err := w.Write(short, nil, [][]byte{data}, nil); !errdefs.Is(err, errdefs.DeadlineExceeded) {
		t.Errorf("a write beyond its deadline: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- w.Write(ctx, nil, [][]byte{data}, nil) }()
	close(gate)
	if err := <-done; err != nil {
		t.Fatalf("the device goes on, and the writer hears %v", err)
	}
	b.fault.Heal()
	if err := w.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	checkQuiet(t, e)
	sameFile(t, e, "f", bytes.Repeat(data, int(n>>20)+1))
}

// TestMixedModes writes the same blocks of one file now delayed, now at once: the last one to be
// received wins, in memory and on the device.
func TestMixedModes(t *testing.T) {
	for _, codec := range []extent.Codec{extent.CodecNone, extent.CodecZstd} {
		b := newFaultBench(t, smallZNS, Options{Compression: &codec})
		e := b.open()
		ctx := context.Background()
		delayed := openWriter(t, e, WriterOptions{Name: "f"})
		direct := openWriter(t, e, WriterOptions{Name: "f", NoDelalloc: true})
		rng := rand.New(rand.NewPCG(1, uint64(codec)))
		var want []byte
		for i := range 120 {
			w := delayed
			if rng.IntN(2) == 0 {
				w = direct
			}
			off := rng.IntN(60_000)
			data := noise(uint64(i), 1+rng.IntN(30_000))
			if err := w.Write(ctx, ptr(int64(off)), [][]byte{data}, nil); err != nil {
				t.Fatal(err)
			}
			want = overlay(want, off, data)
			if rng.IntN(8) == 0 {
				if err := w.Sync(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if rng.IntN(3) == 0 {
				sameFile(t, e, "f", want)
			}
		}
		if n := e.Counters()["delalloc_ranges"]; n == 0 || n > 100 {
			t.Errorf("%d ranges were delayed", n)
		}
		delayed.Close()
		direct.Close()
		syncAll(t, e)
		checkQuiet(t, e)
		sameFile(t, e, "f", want)
		e = b.crash(1)
		sameFile(t, e, "f", want)
	}
}

// TestSyncBesideCut has a truncate drop what is dirty and stall before it is durable: a Sync of what was
// dropped, and a rename of it, must wait for the truncate, for a crash would bring older data back.
func TestSyncBesideCut(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{WritebackAge: time.Hour})
	gate, met := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	b.opts.AroundCommit = func(commit func() error) error {
		if armed.CompareAndSwap(true, false) {
			close(met)
			<-gate
		}
		return commit()
	}
	e := b.open()
	put(t, e, "f", noise(1, 100_000))
	writeAt(t, e, "f", 0, noise(2, 100_000))
	armed.Store(true)
	cut := make(chan error, 1)
	go func() {
		_, _, err := e.Truncate(context.Background(), "f", 0, Preconditions{})
		cut <- err
	}()
	<-met
	answered := make(chan string, 2)
	go func() { syncAll(t, e); answered <- "sync" }()
	go func() {
		if _, _, err := e.Rename(context.Background(), RenameRequest{Name: "f", NewName: "g"}); err != nil {
			t.Error(err)
		}
		answered <- "rename"
	}()
	select {
	case what := <-answered:
		t.Errorf("%s was answered while what it is about was neither durable nor cut", what)
	case <-time.After(200 * time.Millisecond):
	}
	close(gate)
	if err := <-cut; err != nil {
		t.Fatal(err)
	}
	<-answered
	<-answered
	sameFile(t, e, "g", nil)
}
