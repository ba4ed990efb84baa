package engine

import (
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// orphanBatch bounds the files that one transaction frees.
const orphanBatch = 256

// orphanWorker frees deleted files that nobody has open, in bounded transactions, and drops
// unfinished replaces whose time is up.
func (e *Engine) orphanWorker() {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-e.orphanKick:
		case <-tick.C:
		case <-e.stop:
			return
		}
		e.expireSessions()
		e.dropFailed()
		for e.freeOrphans() {
			select {
			case <-e.stop:
				return
			default:
			}
		}
	}
}

// dropFailed ends the errors that stick to deleted files, which nobody can rewrite or delete: those
// that came after the delete, or while somebody else had the file open.
func (e *Engine) dropFailed() {
	for _, f := range e.busyFiles() {
		f.mu.Lock()
		due := f.mu.deleted && len(f.mu.failed) > 0
		f.mu.Unlock()
		if due {
			e.dropUnread(f)
		}
		e.release(f)
	}
}

// freeOrphans frees one batch and reports whether there may be more.
func (e *Engine) freeOrphans() bool {
	due, err := e.dueOrphans()
	if err != nil {
		e.o.Logger.Error("freeing deleted files failed", "error", err)
	}
	if err != nil || len(due) == 0 || e.writable("engine.freeOrphans") != nil {
		return false
	}
	var freed map[uint32]int64
	var gone int64
	err = e.doFreeing(func(tx *store.Tx, budget int) error {
		freed, gone = map[uint32]int64{}, 0
		for _, id := range due {
			// A clone in the making is among the deleted until it has its name, which it may have by now.
			if k, _, err := tx.Orphan(id); errdefs.Is(err, errdefs.NotFound) || err == nil && k != store.OrphanDeleted {
				continue
			} else if err != nil {
				return err
			}
			d, done, _, err := tx.DropRange(id, 0, extent.MaxFileSize, budget)
			if err != nil {
				return err
			}
			for slot, n := range d.Freed {
				freed[slot] += n
			}
			if !done {
				break
			}
			if err := tx.DeleteNode(id); err != nil && !errdefs.Is(err, errdefs.NotFound) {
				return err
			}
			if err := tx.RemoveOrphan(id); err != nil {
				return err
			}
			gone++
			if budget -= max(1, d.Cuts); budget <= 0 {
				break
			}
		}
		return nil
	})
	if err != nil {
		e.o.Logger.Error("freeing deleted files failed", "error", err)
		return false
	}
	for slot, n := range freed {
		e.free(slot, n)
	}
	e.orphans.Add(-gone) // it may pass below 0 before who deleted the file has counted it
	e.resetKick.set()
	return true
}

// dueOrphans returns deleted files that nobody has open, unfinished replaces whose time is up among
// them. Nobody may come between reading a record and having the file open meanwhile: that would
// not be seen, and the bytes be freed under a reader.
func (e *Engine) dueOrphans() (due []uint64, err error) {
	e.files.load.Lock()
	defer e.files.load.Unlock()
	expired := e.o.Now().Add(-e.o.StagedTTL)
	var unfinished []uint64
	err = e.st.View(func(tx *store.Tx) error {
		return tx.Orphans(0, func(id uint64, k store.OrphanKind, since time.Time) bool {
			switch {
			case k == store.OrphanCut || k == store.OrphanUnfinished && since.After(expired) || e.isOpen(id):
			case k == store.OrphanUnfinished:
				unfinished = append(unfinished, id)
			default:
				due = append(due, id)
			}
			return len(due)+len(unfinished) < orphanBatch
		})
	})
	if err != nil || len(unfinished) == 0 || e.writable("engine.dueOrphans") != nil {
		return due, err
	}
	if err := e.giveUpStaged(unfinished); err != nil {
		return nil, err
	}
	return append(due, unfinished...), nil
}

// giveUpStaged makes deleted files of unfinished replaces, so that no stream can resume one that is
// being freed.
func (e *Engine) giveUpStaged(ids []uint64) error {
	for len(ids) > 0 {
		n := 0
		err := e.doFreeing(func(tx *store.Tx, batch int) error {
			n = min(batch, len(ids))
			for _, id := range ids[:n] {
				node, err := tx.Node(id)
				if errdefs.Is(err, errdefs.NotFound) {
					continue
				} else if err != nil {
					return err
				}
				node.WriteID = ""
				if err := tx.PutNode(node); err != nil {
					return err
				}
				if err := tx.AddOrphan(id, store.OrphanDeleted, e.o.Now()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		e.orphans.Add(int64(n))
		ids = ids[n:]
	}
	return nil
}

// finishCuts completes truncates that a crash interrupted, before anybody can grow those files.
func (e *Engine) finishCuts() error {
	for {
		var ids []uint64
		var deleted int64
		err := e.st.View(func(tx *store.Tx) error {
			ids, deleted = nil, 0
			return tx.Orphans(0, func(id uint64, k store.OrphanKind, since time.Time) bool {
				switch k {
				case store.OrphanCut:
					ids = append(ids, id)
				case store.OrphanDeleted:
					deleted++
				}
				return true
			})
		})
		e.orphans.Store(deleted)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			if err := e.finishCut(id); err != nil {
				return err
			}
		}
	}
}

// finishCut completes one truncate, step by step.
func (e *Engine) finishCut(id uint64) error {
	for batch := cutBatch; ; {
		var d store.Delta
		var done bool
		err := e.st.UpdateFreeing(func(tx *store.Tx) error {
			n, err := tx.Node(id)
			if err != nil {
				return err
			}
			if d, done, _, err = tx.DropRange(id, n.Size, extent.MaxFileSize, batch); err != nil {
				return err
			}
			n.Add(d)
			if err := tx.PutNode(n); err != nil || !done {
				return err
			}
			return tx.RemoveOrphan(id)
		})
		if errdefs.Is(err, errdefs.NoSpace) && batch > 1 {
			batch /= 16
			continue
		}
		if err != nil {
			return err
		}
		for slot, n := range d.Freed {
			e.free(slot, n)
		}
		if done {
			return nil
		}
	}
}
