package engine

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

func errIsEOF(err error) bool { return errors.Is(err, io.EOF) }

// sessionIdle keeps a resumable write for its time after its stream has gone.
func (e *Engine) sessionIdle(w *Writer) {
	w.mu.Lock()
	w.mu.idleSince = e.o.Now()
	w.mu.Unlock()
}

// expireSessions ends resumable writes that nobody came back to.
func (e *Engine) expireSessions() {
	before := e.o.Now().Add(-e.o.StagedTTL)
	e.sessions.mu.Lock()
	var expired []*Writer
	for _, w := range e.sessions.byID {
		w.mu.Lock()
		if !w.mu.idleSince.IsZero() && w.mu.idleSince.Before(before) {
			expired = append(expired, w)
		}
		w.mu.Unlock()
	}
	e.sessions.mu.Unlock()
	for _, w := range expired {
		w.mu.Lock()
		w.mu.closed = true
		w.mu.Unlock()
		e.endSession(w)
	}
}

// endSession forgets the write and releases its file; of an unfinished replace nothing stays.
func (e *Engine) endSession(w *Writer) {
	w.mu.Lock()
	fenced, finished := w.mu.fenced, w.mu.finished
	w.mu.Unlock()
	if w.o.WriteID != "" {
		e.sessions.mu.Lock()
		if e.sessions.byID[w.o.WriteID] == w {
			delete(e.sessions.byID, w.o.WriteID)
		}
		e.sessions.mu.Unlock()
	}
	if w.o.Mode == Replace && !finished && !fenced {
		e.dropStaged(w.f)
	}
	e.release(w.f)
}

// dropStaged turns an unfinished replace into a deleted file.
func (e *Engine) dropStaged(f *file) {
	f.mu.Lock()
	f.mu.writeID = ""
	f.mu.Unlock()
	e.dropUnread(f)
	recorded := false
	err := e.group.DoFreeing(context.Background(), func(tx *store.Tx) error {
		n, err := tx.Node(f.id)
		recorded = err == nil
		if errdefs.Is(err, errdefs.NotFound) {
			f.mu.Lock()
			f.mu.staged = false // what is still on its way finds no record and is discarded
			f.mu.Unlock()
			return nil
		} else if err != nil {
			return err
		}
		n.WriteID = ""
		if err := tx.PutNode(n); err != nil {
			return err
		}
		f.mu.Lock()
		f.mu.staged = false
		f.mu.Unlock()
		return tx.AddOrphan(f.id, store.OrphanDeleted, time.Unix(0, n.Updated))
	})
	if err != nil {
		e.o.Logger.Warn("dropping an unfinished replace failed; it goes when its time is up", "file_id", f.id, "error", err)
		return
	}
	f.mu.Lock()
	f.mu.deleted = true
	f.mu.Unlock()
	if recorded {
		e.orphans.Add(1)
	}
	e.orphanKick.set()
}
