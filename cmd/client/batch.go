package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
)

// defaultJobs is how many files are moved at a time.
const defaultJobs = 16

// batch does the same to many files, some at a time. One that fails is told of and does not
// stop the others, unless none can succeed any more. Tasks are added by one goroutine.
type batch struct {
	a      *app
	ctx    context.Context
	cancel context.CancelFunc
	g      errgroup.Group

	alone bool // the first error is not printed here but returned

	mu      sync.Mutex
	failed  failedError
	first   error
	stopped bool // no other task can succeed
}

// batch returns one that runs jobs tasks at a time. With alone, for a single file named on
// the command line, its error is returned by wait as it is.
func (a *app) batch(ctx context.Context, jobs int, alone bool) *batch {
	b := &batch{a: a, alone: alone}
	b.ctx, b.cancel = context.WithCancel(ctx)
	b.g.SetLimit(jobs)
	return b
}

// do runs f when there is room. what names the file in its error.
func (b *batch) do(what string, f func(ctx context.Context) error) {
	if b.ctx.Err() != nil {
		return
	}
	b.g.Go(func() error {
		if b.ctx.Err() == nil {
			b.fail(what, f(b.ctx))
		}
		return nil
	})
}

// fail records an error of what; nil is none.
func (b *batch) fail(what string, err error) {
	if err == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return // an echo
	}
	code := exitCode(err)
	b.failed.add(code)
	err = fmt.Errorf("%s: %w", what, err)
	if b.first == nil {
		b.first = err
	}
	if !b.alone {
		fmt.Fprintf(b.a.err, "client: %s\n", b.a.sentence(err))
	}
	if code == exitUnavailable || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		b.stopped = true
		b.cancel()
	}
}

// wait waits for all tasks and returns what became of them.
func (b *batch) wait(ctx context.Context) error {
	_ = b.g.Wait()
	b.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.failed.n == 0:
		return ctx.Err()
	case b.alone && b.failed.n == 1:
		return b.first
	}
	return &b.failed
}

// failures is how many have failed so far.
func (b *batch) failures() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed.n
}
