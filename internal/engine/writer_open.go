package engine

import (
	"context"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// OpenWriter begins or resumes a write. InPlace makes the file if it is missing (durably, for
// there is no overlay of names); Replace makes an unnamed one.
// Errors: InvalidArgument, NotFound (MustExist), Precondition, NoSpace, Unavailable / DRAINING.
func (e *Engine) OpenWriter(ctx context.Context, o WriterOptions) (*Writer, error) {
	const op = "engine.Write"
	if err := CheckName(o.Name); err != nil {
		return nil, err
	}
	if err := e.writable(op); err != nil {
		return nil, err
	}
	if e.draining.Load() {
		return nil, errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, op, "", "the engine is shutting down; try again elsewhere or later")
	}
	if o.WriteID != "" {
		if w, err := e.resume(ctx, o); w != nil || err != nil {
			return w, err
		}
	}
	raw := o.Compression == nil && e.codec == extent.CodecNone || o.Compression != nil && *o.Compression == extent.CodecNone
	if raw && o.ExpectedSize != nil && *o.ExpectedSize > e.al.Usage().Total {
		return nil, e.spaceError(errdefs.New(errdefs.NoSpace, errdefs.ReasonNoSpace, op, "file "+o.Name, "larger than the store"), *o.ExpectedSize)
	}
	if err := e.checkTarget(op, o); err != nil {
		return nil, err
	}
	w := &Writer{e: e, o: o}
	w.mu.sequential = true
	var err error
	if o.Mode == Replace {
		w.f, w.mu.received = e.staged(o)
		w.mu.next, w.mu.durable = w.mu.received, w.mu.received
		w.mu.sequential = w.mu.received == 0 // the checksum of what a former run got is unknown
	} else if w.f, err = e.openForWrite(ctx, op, o); err != nil {
		return nil, err
	}
	if o.WriteID == "" || e.sessions.enter(w) {
		return w, nil
	}
	e.release(w.f) // nothing has come of it yet
	return e.OpenWriter(ctx, o)
}

// checkTarget holds the preconditions against what the name stands for now. A replace checks
// them again when it takes the name.
func (e *Engine) checkTarget(op string, o WriterOptions) error {
	info, err := e.Get(context.Background(), Ref{Name: o.Name})
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		if o.MustExist {
			return err
		}
		return checkAbsent(op, o.Name, o.If)
	case err != nil:
		return err
	case info.Directory:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, op, "directory "+o.Name, "is a directory")
	}
	return checkIf(op, o.If, info)
}

// openForWrite opens the named file, made if it is missing. The preconditions hold for the file
// that it opens, or for there having been none when it made it, whatever else happens to the name.
func (e *Engine) openForWrite(ctx context.Context, op string, o WriterOptions) (*file, error) {
	for {
		f, err := e.openRef(Ref{Name: o.Name})
		if err == nil {
			var info File
			if info, err = e.describe(f); err == nil {
				err = checkIf(op, o.If, info)
			}
			if err != nil {
				e.release(f)
				return nil, err
			}
			return f, nil
		}
		if !errdefs.Is(err, errdefs.NotFound) || o.MustExist {
			return nil, err
		}
		if err := checkAbsent(op, o.Name, o.If); err != nil {
			return nil, err
		}
		made, err := e.Create(ctx, CreateRequest{
			Name: o.Name, Attributes: o.Attributes, Mtime: o.Mtime, Mode: o.FileMode, Compression: o.Compression, Exclusive: true,
		})
		if errdefs.Is(err, errdefs.AlreadyExists) {
			continue // somebody was quicker
		} else if err != nil {
			return nil, err
		}
		if f, err = e.openFile(made.ID); !errdefs.Is(err, errdefs.NotFound) {
			return f, err
		}
	}
}

// resume takes over a write that is under way or whose stream has gone. It returns nil, nil if
// there is none.
func (e *Engine) resume(ctx context.Context, o WriterOptions) (*Writer, error) {
	for {
		old, finishing, err := e.fence(o)
		if old == nil || err != nil {
			return nil, err
		}
		if finishing != nil {
			select {
			case <-finishing:
			case <-ctx.Done():
				e.release(old.f)
				return nil, ctx.Err()
			}
			if !old.hasFinished() {
				e.release(old.f)
				continue
			}
		}
		// With the write token no message of the fenced writer is half way in.
		if err := old.f.lockWrite(ctx); err != nil {
			e.release(old.f)
			return nil, err
		}
		w := e.succeed(old, o)
		old.f.unlockWrite()
		if w != nil {
			return w, nil
		}
		e.release(old.f)
	}
}

// fence ends the stream that has the write_id, if there is one, and returns it with one more
// reference to its file. One that is finishing is not fenced: how that ends is to be waited for.
func (e *Engine) fence(o WriterOptions) (old *Writer, finishing <-chan struct{}, err error) {
	e.sessions.mu.Lock()
	defer e.sessions.mu.Unlock()
	old = e.sessions.byID[o.WriteID]
	if old == nil {
		return nil, nil, nil
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	if old.o.Name != o.Name || old.o.Mode != o.Mode {
		return nil, nil, errdefs.Invalid("engine.Write", "options.write_id", "this write_id names a write of another file or mode")
	}
	old.mu.fenced = old.mu.finishing == nil
	e.files.mu.Lock()
	old.f.refs++
	e.files.mu.Unlock()
	return old, old.mu.finishing, nil
}

// succeed makes the writer that goes on where a fenced one stood, or a finished one, whose answer
// may have been lost; nil if another was quicker. The caller holds the write token.
func (e *Engine) succeed(old *Writer, o WriterOptions) *Writer {
	e.sessions.mu.Lock()
	defer e.sessions.mu.Unlock()
	if now := e.sessions.byID[o.WriteID]; now != old && (now != nil || !old.hasFinished()) {
		return nil
	}
	old.f.wake()
	w := &Writer{e: e, f: old.f, o: o}
	old.mu.Lock()
	w.mu.received, w.mu.next, w.mu.durable = old.mu.received, old.mu.next, old.mu.durable
	w.mu.marks = append([]positionMark(nil), old.mu.marks...)
	w.mu.sequential, w.mu.crc, w.mu.finished = old.mu.sequential, old.mu.crc, old.mu.finished
	left := old.mu.left
	old.mu.Unlock()
	e.sessions.byID[o.WriteID] = w
	if left {
		e.release(old.f) // the reference that the session held for it
	}
	return w
}

// staged returns the unnamed file for a replace: the one that a former run of the engine left
// under the write_id, with the bytes that are durable of it, or a new one.
func (e *Engine) staged(o WriterOptions) (f *file, durable int64) {
	if o.WriteID != "" {
		if id := e.findStaged(o.WriteID); id != 0 {
			if f, err := e.openFile(id); err == nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f, f.mu.size
			}
		}
	}
	codec := e.codec
	if o.Compression != nil {
		codec = *o.Compression
	}
	f = e.newFile(e.newID(), codec)
	f.mu.staged, f.mu.writeID = true, o.WriteID
	f.mu.generation, f.mu.updated = e.nextGeneration(), e.o.Now()
	e.files.add(f)
	return f, 0
}

// findStaged looks for an unfinished replace with the write_id on record.
func (e *Engine) findStaged(writeID string) (id uint64) {
	_ = e.st.View(func(tx *store.Tx) error {
		return tx.Orphans(0, func(o uint64, k store.OrphanKind, _ time.Time) bool {
			if k != store.OrphanUnfinished {
				return true
			}
			if n, err := tx.Node(o); err == nil && n.WriteID == writeID {
				id = o
			}
			return id == 0
		})
	})
	return id
}
