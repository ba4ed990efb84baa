package engine

import (
	"context"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

// leave keeps a resumable write after its stream has gone, or answers false if a newer stream has
// it or its file has been deleted, whose space nobody may keep by not coming back.
func (s *sessions) leave(w *Writer, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[w.o.WriteID] != w {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if w.f.mu.deleted {
		return false
	}
	w.mu.left, w.mu.idleSince = true, now
	return true
}

// pointless reports whether an unfinished replace has lost data, as nobody can see it or delete it to
// end the error: what has been received is to be sent again from the beginning.
func (w *Writer) pointless() bool {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.o.Mode == Replace && len(w.f.mu.failed) > 0
}

// remove forgets the write, or answers false if a newer stream has it.
func (s *sessions) remove(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[w.o.WriteID] != w {
		return false
	}
	delete(s.byID, w.o.WriteID)
	return true
}

// takeLeft takes out the writes whose stream has gone and that match, so that nobody can resume
// them; each holds a reference to its file. match is called with the Writer's mutex held.
func (s *sessions) takeLeft(match func(*Writer) bool) (taken []*Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range s.byID {
		w.mu.Lock()
		if w.mu.left && match(w) {
			taken = append(taken, w)
			delete(s.byID, id)
		}
		w.mu.Unlock()
	}
	return taken
}

// expireSessions ends resumable writes that nobody came back to, or need not come back to.
func (e *Engine) expireSessions() {
	before := e.o.Now().Add(-e.o.StagedTTL)
	for _, w := range e.sessions.takeLeft(func(w *Writer) bool { return w.mu.idleSince.Before(before) || w.pointless() }) {
		e.endSession(w, true)
	}
}

// endSession releases the file of a write that is no session any more; of an unfinished replace
// nothing stays, unless a newer stream has it.
func (e *Engine) endSession(w *Writer, mine bool) {
	w.mu.Lock()
	finished := w.mu.finished
	w.mu.Unlock()
	if w.o.Mode == Replace && !finished && mine {
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

// sessions are the writes that can be resumed, by write_id.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*Writer
}

// enter makes w the write that its write_id names, or answers false if there is one.
func (s *sessions) enter(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[w.o.WriteID] != nil {
		return false
	}
	s.byID[w.o.WriteID] = w
	return true
}
