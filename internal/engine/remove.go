package engine

import (
	"context"
	"errors"
	"strings"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

// Delete removes a name, durably. The space comes back in bounded steps afterwards, also after a
// restart, and when the last reader has gone. It works on a full store.
// Errors: NotFound unless AllowMissing, Precondition (also DIRECTORY_NOT_EMPTY).
func (e *Engine) Delete(ctx context.Context, r DeleteRequest) (Freed, error) {
	const op = "engine.Delete"
	if err := CheckName(r.Name); err != nil {
		return Freed{}, err
	}
	if err := e.writable(op); err != nil {
		return Freed{}, err
	}
	var gone store.Node
	err := e.patiently(ctx, func(tx *store.Tx) error {
		gone = store.Node{}
		n, err := tx.Resolve(r.Name)
		if errdefs.Is(err, errdefs.NotFound) && r.AllowMissing {
			return nil
		} else if err != nil {
			return err
		}
		if err := checkIf(op, r.If, e.fileOf(n, r.Name)); err != nil {
			return err
		}
		if n.Kind == store.Directory {
			if err := emptyDirectory(tx, op, r.Name, n); err != nil {
				return err
			}
		}
		gone = n
		return e.unlink(tx, n)
	})
	if err != nil {
		return Freed{}, err
	}
	return e.forget(gone), nil
}

// deleteTries is how often a delete is tried that finds not even the pages that are kept for deletes:
// those freed by the transactions before it come free with the next ones.
const deleteTries = 20

// patiently commits a change that gives space back, and tries again while the metadata has no page for it.
func (e *Engine) patiently(ctx context.Context, change store.Change) error {
	for try := 1; ; try++ {
		err := e.group.DoFreeing(ctx, change)
		if !errdefs.Is(err, errdefs.NoSpace) || try == deleteTries {
			return err
		}
		if terr := e.awaitTick(err); terr != nil || ctx.Err() != nil {
			return err
		}
	}
}

func emptyDirectory(tx *store.Tx, op, name string, n store.Node) error {
	empty, err := tx.Empty(n.ID)
	if err == nil && !empty {
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDirNotEmpty, op, "directory "+name, "is not empty")
	}
	return err
}

// unlink takes a node's name; a file's record goes to the orphans.
func (e *Engine) unlink(tx *store.Tx, n store.Node) error {
	if err := tx.Unlink(n); err != nil {
		return err
	}
	if n.Kind == store.Directory {
		return tx.DeleteNode(n.ID)
	}
	n.Parent, n.Name, n.WriteID = 0, "", ""
	if err := tx.PutNode(n); err != nil {
		return err
	}
	return tx.AddOrphan(n.ID, store.OrphanDeleted, e.o.Now())
}

// forget drops what is in memory of a deleted file and has its space freed.
func (e *Engine) forget(n store.Node) Freed {
	if n.ID == 0 || n.Kind == store.Directory {
		return Freed{}
	}
	var freed Freed
	freed.PendingBytes = n.StoredBytes
	e.orphans.Add(1)
	if f := e.files.get(n.ID); f != nil {
		f.mu.Lock()
		f.mu.deleted = true
		dirty := f.dirtyBytesLocked() > 0
		f.mu.Unlock()
		if dirty {
			// A reader may still want the bytes, so they are written like any others, and freed
			// with the rest when the last reader has gone.
			e.dropUnread(f)
		}
		for _, w := range e.sessions.takeLeft(func(w *Writer) bool { return w.f == f }) {
			e.endSession(w, true)
		}
		e.release(f)
	}
	e.orphanKick.set()
	return freed
}

// dropUnread lets go of a deleted file's dirty data if nobody else has the file open.
func (e *Engine) dropUnread(f *file) {
	select {
	case f.write <- struct{}{}:
		defer f.unlockWrite()
	default:
		return // somebody is writing to it
	}
	e.files.mu.Lock()
	alone := f.refs == 2 // ours, and the one its data holds
	e.files.mu.Unlock()
	if !alone {
		return
	}
	f.mu.Lock()
	end := roundUpSize(f.mu.size)
	dropped := f.dirty.Drop(0, end)
	dropped += e.overlayFailedLocked(f, 0, end)
	f.refreshLocked()
	f.mu.Unlock()
	e.unreserve(dropped)
	e.settle(f)
}

// Rename gives a node another name, durably, with the file's data up to now in the same or an
// earlier transaction. Renaming to itself is fine, and so is a retry: with If.FileID, a new name
// that is that file already is the answer.
// Errors: NotFound, AlreadyExists without Replace, Precondition, InvalidArgument (into itself).
func (e *Engine) Rename(ctx context.Context, r RenameRequest) (File, Freed, error) {
	const op = "engine.Rename"
	if err := CheckName(r.Name); err != nil {
		return File{}, Freed{}, err
	}
	if err := CheckName(r.NewName); err != nil {
		return File{}, Freed{}, err
	}
	if strings.HasPrefix(r.NewName, r.Name+"/") {
		return File{}, Freed{}, errdefs.Invalid(op, "new_name", "a directory cannot move into itself")
	}
	for {
		id, err := e.resolve(r.Name)
		if err != nil && !errdefs.Is(err, errdefs.NotFound) {
			return File{}, Freed{}, err
		}
		var out File
		var gone store.Node
		change := func(tx *store.Tx) (err error) {
			out, gone, err = e.rename(tx, r, id)
			return err
		}
		if f, ferr := e.openFile(id); err == nil && ferr == nil {
			err = e.commitWith(ctx, f, change)
			e.release(f)
		} else {
			err = e.commit(ctx, change)
		}
		switch {
		case errors.Is(err, errMoved):
			continue
		case err != nil:
			return File{}, Freed{}, err
		}
		return out, e.forget(gone), nil
	}
}

// errMoved says that a name stands for another node than when it was looked up.
var errMoved = errors.New("the name stands for another file now")

// rename does the renaming in a transaction; id is what the name stood for when the caller saw to
// the file's data.
func (e *Engine) rename(tx *store.Tx, r RenameRequest, id uint64) (out File, gone store.Node, err error) {
	const op = "engine.Rename"
	n, err := tx.Resolve(r.Name)
	if errdefs.Is(err, errdefs.NotFound) && r.If.FileID != nil {
		if done, derr := tx.Resolve(r.NewName); derr == nil && done.ID == *r.If.FileID {
			return e.fileOf(done, r.NewName), store.Node{}, nil
		}
	}
	if err == nil && n.ID != id {
		err = errMoved
	}
	if err != nil {
		return File{}, store.Node{}, err
	}
	if err := checkIf(op, r.If, e.fileOf(n, r.Name)); err != nil {
		return File{}, store.Node{}, err
	}
	old, err := tx.Resolve(r.NewName)
	switch {
	case err == nil && old.ID == n.ID:
		return e.fileOf(n, r.NewName), store.Node{}, nil
	case err == nil:
		if err := e.mayReplace(tx, op, r, n, old); err != nil {
			return File{}, store.Node{}, err
		}
		gone = old
		if err := e.unlink(tx, gone); err != nil {
			return File{}, store.Node{}, err
		}
	case errdefs.Is(err, errdefs.NotFound):
		if err := checkAbsent(op, r.NewName, r.IfTarget); err != nil {
			return File{}, store.Node{}, err
		}
	default:
		return File{}, store.Node{}, err
	}
	if err := tx.Unlink(n); err != nil {
		return File{}, store.Node{}, err
	}
	n.Generation, n.Updated = uint64(e.nextGeneration()), e.o.Now().UnixNano()
	if err := e.link(tx, r.NewName, &n); err != nil {
		return File{}, store.Node{}, err
	}
	return e.fileOf(n, r.NewName), gone, nil
}

// mayReplace checks that a rename may take the place of old.
func (e *Engine) mayReplace(tx *store.Tx, op string, r RenameRequest, n, old store.Node) error {
	if !r.Replace {
		return errdefs.New(errdefs.AlreadyExists, "", op, "file "+r.NewName, "exists already; ask to replace it")
	}
	if err := checkIf(op, r.IfTarget, e.fileOf(old, r.NewName)); err != nil {
		return err
	}
	switch {
	case n.Kind == store.File && old.Kind == store.Directory:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, op, "directory "+r.NewName, "a file cannot replace a directory")
	case n.Kind == store.Directory && old.Kind == store.File:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonNotADirectory, op, "file "+r.NewName, "a directory cannot replace a file")
	case old.Kind == store.Directory:
		return emptyDirectory(tx, op, r.NewName, old)
	}
	return nil
}
