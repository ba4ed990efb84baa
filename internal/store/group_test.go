package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
)

var errBad = errors.New("bad change")

func putOrphan(id uint64) Change {
	return func(tx *Tx) error { return tx.AddOrphan(id, OrphanDeleted, time.Unix(0, int64(id))) }
}

func orphanIDs(t fataler, s *Store) map[uint64]bool {
	ids := map[uint64]bool{}
	view(t, s, func(tx *Tx) error {
		return tx.Orphans(0, func(id uint64, _ OrphanKind, _ time.Time) bool { ids[id] = true; return true })
	})
	return ids
}

// gate holds the group's goroutine in Before until it is opened, so that a batch gathers.
type gate struct {
	entered chan struct{}
	open    chan struct{}
	calls   atomic.Int32
}

func newGate() *gate { return &gate{entered: make(chan struct{}, 100), open: make(chan struct{}, 100)} }

func (g *gate) wait() {
	g.calls.Add(1)
	g.entered <- struct{}{}
	<-g.open
}

// queued waits until n callers are in the group's queue.
func queued(g *Group, n int) {
	for {
		g.mu.Lock()
		got := len(g.queue)
		g.mu.Unlock()
		if got >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// together runs changes in one batch and returns their errors.
func runTogether(s *Store, o GroupOptions, freeing map[int]bool, changes ...Change) []error {
	gt := newGate()
	inner := o.Before
	first := true
	o.Before = func() (Change, func(error), error) {
		if first { // the batch of the Kick below, which waits for the others
			first = false
			gt.wait()
		}
		if inner == nil {
			return nil, nil, nil
		}
		return inner()
	}
	g := NewGroup(s, o)
	defer g.Close()
	g.Kick()
	<-gt.entered
	errs := make([]error, len(changes))
	var wg sync.WaitGroup
	for i, c := range changes {
		wg.Go(func() {
			if freeing[i] {
				errs[i] = g.DoFreeing(context.Background(), c)
			} else {
				errs[i] = g.Do(context.Background(), c)
			}
		})
		queued(g, i+1)
	}
	gt.open <- struct{}{}
	wg.Wait()
	return errs
}

func TestGroupMakesOneCommitOfABatch(t *testing.T) {
	s := newStore(t)
	before := s.Stats().Commits
	var cs []Change
	for i := range uint64(20) {
		cs = append(cs, putOrphan(i+1))
	}
	for i, err := range runTogether(s, GroupOptions{}, nil, cs...) {
		if err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
	}
	if n := s.Stats().Commits - before; n != 1 {
		t.Fatalf("20 changes took %d commits", n)
	}
	if ids := orphanIDs(t, s); len(ids) != 20 {
		t.Fatalf("%d of 20 changes are there", len(ids))
	}
}

func TestGroupIsolatesErrors(t *testing.T) {
	early := func(*Tx) error { return errBad }
	late := func(tx *Tx) error {
		if err := putOrphan(99)(tx); err != nil {
			return err
		}
		return errBad
	}
	for _, c := range []struct {
		name    string
		bad     Change
		commits uint64
	}{
		{"before its first change", early, 1},
		{"after its first change", late, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			before := s.Stats().Commits
			errs := runTogether(s, GroupOptions{}, nil, putOrphan(1), c.bad, putOrphan(2))
			if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], errBad) {
				t.Fatalf("errors are %v", errs)
			}
			if ids := orphanIDs(t, s); len(ids) != 2 || ids[99] {
				t.Fatalf("the store holds %v", ids)
			}
			if n := s.Stats().Commits - before; n != c.commits {
				t.Fatalf("%d commits, want %d", n, c.commits)
			}
		})
	}
}

func TestGroupPublishesInTheSameCommit(t *testing.T) {
	s := newStore(t)
	before := s.Stats().Commits
	var order []string
	errs := runTogether(s, GroupOptions{Before: func() (Change, func(error), error) {
		return putOrphan(50), func(err error) { order = append(order, fmt.Sprint("done ", err)) }, nil
	}}, nil, func(tx *Tx) error {
		if _, _, err := tx.Orphan(50); err != nil {
			return err // apply runs first
		}
		order = append(order, "change")
		return putOrphan(1)(tx)
	})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	if fmt.Sprint(order) != "[change done <nil>]" {
		t.Fatalf("order: %v", order)
	}
	if n := s.Stats().Commits - before; n != 1 {
		t.Fatalf("%d commits", n)
	}
}

func TestGroupWhenPublishingFails(t *testing.T) {
	flush := errors.New("flush failed")
	for _, c := range []struct {
		name   string
		before func() (Change, error)
		want   error
	}{
		{"before", func() (Change, error) { return nil, flush }, flush},
		{"apply", func() (Change, error) { return func(*Tx) error { return errBad }, nil }, errBad},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			var dones []error
			errs := runTogether(s, GroupOptions{Before: func() (Change, func(error), error) {
				apply, err := c.before()
				return apply, func(err error) { dones = append(dones, err) }, err
			}}, map[int]bool{1: true}, putOrphan(1), putOrphan(2), putOrphan(3))
			if !errors.Is(errs[0], c.want) || errs[1] != nil || !errors.Is(errs[2], c.want) {
				t.Fatalf("errors: %v", errs)
			}
			if len(dones) != 1 || !errors.Is(dones[0], c.want) {
				t.Fatalf("done was told %v", dones)
			}
			if ids := orphanIDs(t, s); len(ids) != 1 || !ids[2] {
				t.Fatalf("the store holds %v", ids)
			}
		})
	}
}

func TestGroupFlushAndKick(t *testing.T) {
	s := newStore(t)
	var befores, dones atomic.Int32
	g := NewGroup(s, GroupOptions{Before: func() (Change, func(error), error) {
		befores.Add(1)
		return nil, func(error) { dones.Add(1) }, nil
	}})
	commits := s.Stats().Commits
	if err := g.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if befores.Load() != 1 || dones.Load() != 1 {
		t.Fatalf("%d befores, %d dones", befores.Load(), dones.Load())
	}
	if s.Stats().Commits != commits {
		t.Fatal("a flush of nothing made a commit")
	}
	g.Kick()
	for befores.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	g.Close()
}

func TestGroupContextAndClose(t *testing.T) {
	s := newStore(t)
	gt := newGate()
	g := NewGroup(s, GroupOptions{Before: func() (Change, func(error), error) { gt.wait(); return nil, nil, nil }})
	ctx, cancel := context.WithCancel(context.Background())
	if cancel(); !errors.Is(g.Do(ctx, putOrphan(9)), context.Canceled) {
		t.Fatal("an ended context was not seen")
	}
	ctx, cancel = context.WithCancel(context.Background())
	res := make(chan error)
	go func() { res <- g.Do(ctx, putOrphan(1)) }()
	<-gt.entered
	cancel()
	if err := <-res; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	go func() { res <- g.Do(context.Background(), putOrphan(2)) }()
	queued(g, 1)
	closed := make(chan error)
	go func() { closed <- g.Close() }()
	gt.open <- struct{}{}
	gt.open <- struct{}{}
	if err := <-res; err != nil {
		t.Fatalf("a queued change was not run by Close: %v", err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	wantKind(t, g.Do(context.Background(), putOrphan(3)), errdefs.Unavailable, errdefs.ReasonDraining)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if ids := orphanIDs(t, s); ids[1] || !ids[2] || ids[3] || ids[9] {
		t.Fatalf("the store holds %v", ids)
	}
}

func TestGroupAfterAFailedCommit(t *testing.T) {
	s := newStore(t)
	s.file.Close() // writes fail from now on
	errs := runTogether(s, GroupOptions{}, map[int]bool{1: true}, putOrphan(1), putOrphan(2))
	for _, err := range errs {
		wantKind(t, err, errdefs.ReadOnly, errdefs.ReasonReadOnly)
	}
	if !s.ReadOnly() {
		t.Fatal("the store still takes changes")
	}
	s.wedged.Store(true) // the file is gone: nothing is left to close
}

// TestGroupUnderLoad has many callers, good and bad, and loses no acknowledged change.
func TestGroupUnderLoad(t *testing.T) {
	s := newStore(t)
	g := NewGroup(s, GroupOptions{})
	const callers, each = 8, 25
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				id := uint64(1 + c*each + i)
				bad := id%10 == 0
				err := g.Do(context.Background(), func(tx *Tx) error {
					if err := putOrphan(id)(tx); err != nil || !bad {
						return err
					}
					return errBad
				})
				if bad != errors.Is(err, errBad) {
					t.Errorf("change %d: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
	g.Close()
	ids := orphanIDs(t, s)
	for id := uint64(1); id <= callers*each; id++ {
		if ids[id] == (id%10 == 0) {
			t.Errorf("change %d: is there: %v", id, ids[id])
		}
	}
	if n := s.Stats().Commits; n >= callers*each {
		t.Errorf("%d commits for %d changes: nothing was grouped", n, callers*each)
	}
}

// TestGroupWhileBeforeWaits: while Before waits for a device, a change can still join its batch,
// or be withdrawn by its context without a trace; who only waits is of the next batch.
func TestGroupWhileBeforeWaits(t *testing.T) {
	s := newStore(t)
	entered, gate := make(chan struct{}, 8), make(chan struct{})
	g := NewGroup(s, GroupOptions{Before: func() (Change, func(error), error) {
		entered <- struct{}{}
		<-gate
		return nil, nil, nil
	}})
	g.Kick()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	withdrawn := make(chan error, 1)
	go func() {
		withdrawn <- g.Do(ctx, func(*Tx) error { t.Error("a withdrawn change has run"); return nil })
	}()
	joined := make(chan error, 1)
	go func() {
		joined <- g.Do(t.Context(), func(tx *Tx) error {
			tx.SetSuperblock(func(sb *Superblock) { sb.Clean = true })
			return nil
		})
	}()
	waited := make(chan error, 1)
	go func() { waited <- g.Flush(t.Context()) }()
	queued(g, 3)
	cancel()
	if err := <-withdrawn; !errors.Is(err, context.Canceled) {
		t.Fatalf("withdrawn: %v", err)
	}
	gate <- struct{}{}
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	<-entered // another batch, for the one that waits
	select {
	case err := <-waited:
		t.Fatalf("a Flush was answered (%v) by a batch that began before it", err)
	default:
	}
	close(gate)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}
