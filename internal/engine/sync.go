package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/shingle-store/shingle/internal/delalloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

// Sync makes everything received before the call, in this run of the engine, durable: of the
// named files, or of the store when there are no names. With the boot id of another run it
// answers Aborted / RESTARTED, for what that run received may be gone. Concurrent Syncs share
// flushes and commits.
//
// A range that cannot be made durable is Device / SYNC_FAILED until it is rewritten or deleted;
// other files are synced all the same, and the first error is the answer.
func (e *Engine) Sync(ctx context.Context, names []string, bootID *uint64) (SyncResult, error) {
	const op = "engine.Sync"
	if bootID != nil && *bootID != e.boot {
		err := errdefs.New(errdefs.Aborted, errdefs.ReasonRestarted, op, "", "the engine was restarted: what the old run acknowledged and had not made durable may be gone; send it again")
		err.Meta = map[string]string{"boot_id": fmt.Sprint(e.boot), "asked": fmt.Sprint(*bootID)}
		return SyncResult{}, err
	}
	var files []*file
	if len(names) == 0 {
		files = e.busyFiles()
	}
	var first error
	for _, name := range names {
		id, err := e.resolve(name)
		if err == nil {
			var f *file
			if f, err = e.openFile(id); err == nil {
				files = append(files, f)
			}
		}
		if err != nil && first == nil {
			first = err
		}
	}
	e.count.syncs.Add(1)
	upTo := make([]uint64, len(files))
	for i, f := range files {
		f.mu.Lock()
		upTo[i] = f.mu.seq
		f.mu.Unlock()
		e.startWriteback(f, delalloc.Selection{MaxSeq: upTo[i]})
	}
	for i, f := range files {
		if err := e.waitDurable(ctx, f, upTo[i]); err != nil && first == nil {
			first = err
		}
		e.release(f)
	}
	if first != nil {
		return SyncResult{}, first
	}
	// Nothing of ours may be waiting, but a failed store must not say OK.
	if err := e.writable(op); err != nil {
		return SyncResult{}, err
	}
	return SyncResult{BootID: e.boot, CommitSequence: e.st.CommitSequence()}, nil
}

// syncFile makes every write of the file up to and including upTo durable.
func (e *Engine) syncFile(ctx context.Context, f *file, upTo uint64) error {
	e.count.syncs.Add(1)
	e.startWriteback(f, delalloc.Selection{MaxSeq: upTo})
	return e.waitDurable(ctx, f, upTo)
}

// waitDurable waits until the file's writes up to upTo are committed.
func (e *Engine) waitDurable(ctx context.Context, f *file, upTo uint64) error {
	for {
		f.mu.Lock()
		done := f.mu.committed >= upTo
		err := f.mu.commitErr
		for _, o := range f.mu.failed {
			if o.rng.MinSeq <= upTo {
				err = o.err
			}
		}
		changed := f.mu.changed
		f.mu.Unlock()
		if done {
			return nil
		}
		// A store that takes no changes is why the range failed, if it did.
		if werr := e.writable("engine.Sync"); werr != nil && (err == nil || e.failed() != nil) {
			return werr
		}
		if err != nil {
			return err
		}
		e.startWriteback(f, delalloc.Selection{MaxSeq: upTo})
		e.group.Kick()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.halt:
			return e.writable("engine.Sync")
		}
	}
}

// errNotReady says that a change came before the data it must not pass.
var errNotReady = errors.New("the file's data is not in this transaction yet")

// commitWith commits the change in the same transaction as the file's data up to now, or a later
// one: rename and finish publish a name only with what it names.
func (e *Engine) commitWith(ctx context.Context, f *file, change store.Change) error {
	f.mu.Lock()
	upTo := f.mu.seq
	f.mu.Unlock()
	for {
		if err := e.waitPlaced(ctx, f, upTo, false); err != nil {
			return err
		}
		err := e.commit(ctx, func(tx *store.Tx) error {
			if !f.inTransaction(upTo) {
				return errNotReady
			}
			return change(tx)
		})
		if !errors.Is(err, errNotReady) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// waitPlaced waits until every write of the file up to upTo is placed or committed, or has been cut;
// not for the cut that is under way if the caller is that.
func (e *Engine) waitPlaced(ctx context.Context, f *file, upTo uint64, cutting bool) error {
	for {
		e.startWriteback(f, delalloc.Selection{MaxSeq: upTo})
		f.mu.Lock()
		err := f.failedErrorLocked()
		if err == nil {
			err = f.mu.commitErr
		}
		wait := false
		for _, o := range f.mu.queue {
			wait = wait || o.state == placing && o.rng.MinSeq <= upTo
		}
		if low, ok := f.dirty.MinSeq(); ok && low <= upTo || !cutting && f.cutBeforeLocked(upTo) {
			wait = true
		}
		changed := f.mu.changed
		f.mu.Unlock()
		if err != nil && e.failed() != nil || err == nil && wait {
			err = e.writable("engine.commit") // nothing will be placed for a commit any more
		}
		if err != nil || !wait {
			return err
		}
		e.group.Kick() // what lies over a range in flight is taken once that has landed
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.halt:
			return e.writable("engine.commit")
		}
	}
}

// cutBeforeLocked reports whether a cut under way has dropped something of the writes up to upTo.
func (f *file) cutBeforeLocked(upTo uint64) bool { return f.mu.cutLow != 0 && f.mu.cutLow <= upTo }

// inTransaction reports whether every write up to upTo is committed or in the transaction that
// the group commit's goroutine, which alone may ask, is making.
func (f *file) inTransaction(upTo uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if low, ok := f.dirty.MinSeq(); ok && low <= upTo || f.cutBeforeLocked(upTo) {
		return false
	}
	for _, list := range [][]*ordered{f.mu.failed, f.mu.queue[f.mu.inBatch:]} {
		for _, o := range list {
			if o.rng.MinSeq <= upTo {
				return false
			}
		}
	}
	return true
}

// commit runs the change in a group commit and returns when it is durable. When ctx ends before its
// transaction begins it never runs; once that has begun it is seen through, so that what it means
// for memory always follows.
func (e *Engine) commit(ctx context.Context, change store.Change) error {
	if err := e.writable("engine.commit"); err != nil {
		return err
	}
	return e.group.Do(ctx, change)
}

func syncFailed(o *ordered, err error) error {
	return &errdefs.Error{
		Kind: errdefs.Device, Reason: errdefs.ReasonSyncFailed, Op: "engine.Sync",
		Object: fmt.Sprintf("file %d range [%d, %d)", o.f.id, o.rng.Off, o.end),
		Msg:    "cannot be made durable; it stays readable until it is rewritten or deleted",
		Meta:   map[string]string{"offset": fmt.Sprint(o.rng.Off), "end": fmt.Sprint(o.end)},
		Err:    err,
	}
}
