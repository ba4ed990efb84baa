package store

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// Change is one caller's part of a batch. It must check before it changes anything: an error
// before its first change fails it alone, one after it makes the whole batch start over with
// each change in a transaction of its own. So a Change may run twice, and must set, not add
// to, what it hands out of itself. It runs on the group's goroutine.
type Change func(tx *Tx) error

// GroupOptions say what a batch does besides its changes.
type GroupOptions struct {
	// Before, unless nil, is called by the group's goroutine before each transaction, with none
	// open: the engine flushes the device here. apply (may be nil) runs first
	// in the batch's transaction and publishes what the flush made durable; it may run
	// twice. done (may be nil) is called once with the result of apply's commit, before the
	// callers of the changes hear theirs. With an error the batch's changes all fail with
	// it, except those of DoFreeing, apply does not run and done gets the error; an engine
	// whose changes may go on without the publishing returns no error.
	Before func() (apply Change, done func(err error), err error)
}

// Group runs changes in batches: one goroutine, one commit for all that gathered while the
// one before it was under way, and while Before ran.
type Group struct {
	store *Store
	opts  GroupOptions
	wake  chan struct{} // capacity 1
	ended chan struct{}

	mu     sync.Mutex
	queue  []*waiting
	kicked bool
	closed bool
}

type waiting struct {
	change  Change // nil: only waits for a batch
	freeing bool
	then    func()        // may be nil
	err     error         // of the change, set before done is closed
	done    chan struct{} // closed when err holds
}

// NewGroup starts the group's goroutine; Close ends it.
func NewGroup(s *Store, o GroupOptions) *Group {
	g := &Group{store: s, opts: o, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go g.run()
	return g
}

// Do joins a batch and waits: nil means durable. If ctx ends before the batch's transaction
// begins (Before may wait for a device), the change is withdrawn and never runs, and the error is
// ctx's; later the answer is waited for. Errors are the change's; those of Update, Before and apply;
// Unavailable/DRAINING after Close.
func (g *Group) Do(ctx context.Context, c Change) error { return g.join(ctx, &waiting{change: c}) }

// DoFreeing is Do for changes that give space back: when the metadata is full they run in
// UpdateFreeing, and they go on when what Before wanted to publish could not be.
func (g *Group) DoFreeing(ctx context.Context, c Change) error {
	return g.join(ctx, &waiting{change: c, freeing: true})
}

// DoFreeingThen is DoFreeing that calls then once the change is durable, in the group's goroutine: so
// before any caller of a change in the same batch hears of it, and before any later transaction. It is
// for books that later changes count on, and must not wait for anything.
func (g *Group) DoFreeingThen(ctx context.Context, c Change, then func()) error {
	return g.join(ctx, &waiting{change: c, freeing: true, then: then})
}

// Flush waits for a batch that begins after the call; nil means that what Before had to
// publish then is durable.
func (g *Group) Flush(ctx context.Context) error { return g.join(ctx, &waiting{}) }

// Kick asks for a batch, even one without changes, and does not wait.
func (g *Group) Kick() {
	g.mu.Lock()
	g.kicked = true
	g.mu.Unlock()
	g.poke()
}

func (g *Group) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *Group) join(ctx context.Context, w *waiting) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.done = make(chan struct{})
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, "store.Group", "group commit", "is closed")
	}
	g.queue = append(g.queue, w)
	g.mu.Unlock()
	g.poke()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	i := slices.Index(g.queue, w)
	if i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	}
	g.mu.Unlock()
	if i >= 0 || w.change == nil {
		return ctx.Err() // nothing has come of it, or nothing would
	}
	<-w.done
	return w.err
}

// Close runs what is queued, ends the goroutine and waits for it. The store stays open.
// Closing twice is no error.
func (g *Group) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.poke()
	<-g.ended
	return nil
}

func (g *Group) run() {
	defer close(g.ended)
	for range g.wake {
		g.mu.Lock()
		closed := g.closed
		due := len(g.queue) > 0 || g.kicked
		g.kicked = false
		// Who only waits, waits for what Before takes from here on.
		waits := g.takeLocked(func(w *waiting) bool { return w.change == nil })
		g.mu.Unlock()
		if due {
			g.batch(waits)
		}
		if closed {
			return
		}
	}
}

// takeLocked takes those that match out of the queue.
func (g *Group) takeLocked(match func(*waiting) bool) (taken []*waiting) {
	rest := g.queue[:0]
	for _, w := range g.queue {
		if match(w) {
			taken = append(taken, w)
		} else {
			rest = append(rest, w)
		}
	}
	clear(g.queue[len(rest):])
	g.queue = rest
	return taken
}

var (
	errNothing   = errors.New("nothing to commit")
	errStartOver = errors.New("a change failed half way")
)

// batch runs Before and one transaction with the changes that have gathered by then, or if that
// fails, one for each part of it.
func (g *Group) batch(waits []*waiting) {
	var apply Change
	var done func(error)
	var err error
	if g.opts.Before != nil {
		apply, done, err = g.opts.Before()
	}
	g.mu.Lock()
	batch := append(waits, g.takeLocked(func(w *waiting) bool { return w.change != nil })...)
	g.mu.Unlock()
	if err == nil {
		err = g.together(apply, batch)
		if err == nil {
			g.answer(batch, done)
			return
		}
		if errdefs.Is(err, errdefs.ReadOnly) { // alone would fare no better, and must not try
			for _, w := range batch {
				w.err = err
			}
			g.answer(batch, func(error) { call(done, err) })
			return
		}
		err = nil
		if apply != nil {
			err = g.store.Update(apply)
		}
	}
	call(done, err)
	for _, w := range batch {
		switch {
		case err != nil && !w.freeing:
			w.err = err
		case w.change == nil:
			w.err = nil
		case w.freeing:
			w.err = g.store.UpdateFreeing(w.change)
		default:
			w.err = g.store.Update(w.change)
		}
	}
	g.answer(batch, nil)
}

func call(done func(error), err error) {
	if done != nil {
		done(err)
	}
}

func (g *Group) answer(batch []*waiting, done func(error)) {
	call(done, nil)
	for _, w := range batch {
		if w.then != nil && w.err == nil {
			w.then()
		}
	}
	for _, w := range batch {
		close(w.done)
	}
}

// together commits apply and all changes at once. An error means that nothing was committed.
func (g *Group) together(apply Change, batch []*waiting) error {
	run := g.store.Update
	if apply == nil && len(batch) > 0 {
		run = g.store.UpdateFreeing
		for _, w := range batch {
			if !w.freeing {
				run = g.store.Update
			}
		}
	}
	if apply == nil && !anyChange(batch) {
		return nil
	}
	err := run(func(tx *Tx) error {
		if apply != nil {
			if err := apply(tx); err != nil {
				return err
			}
		}
		for _, w := range batch {
			if w.change == nil {
				continue
			}
			before := tx.mutations
			w.err = w.change(tx)
			if w.err != nil && tx.mutations != before {
				return errStartOver
			}
		}
		if !tx.Mutated() {
			return errNothing
		}
		return nil
	})
	if err == errNothing {
		return nil
	}
	return err
}

func anyChange(batch []*waiting) bool {
	for _, w := range batch {
		if w.change != nil {
			return true
		}
	}
	return false
}
