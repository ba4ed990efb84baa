package engine

import (
	"context"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
)

// keptScrubs is how many scrubs are kept, with their findings.
const keptScrubs = 8

// openScrubs finds the latest scrub. One that ran when the last run of the engine ended is interrupted.
func (e *Engine) openScrubs() error {
	e.scrubs.turn = make(chan struct{}, 1)
	over := make(chan struct{})
	close(over)
	e.scrubs.drained = over
	rec, ok, err := e.lastScrub()
	if err != nil || !ok {
		return err
	}
	if scrub.State(rec.State) == scrub.Running {
		rec.State, rec.Error = uint8(scrub.Interrupted), "the engine ended while it ran"
		if !e.st.ReadOnly() {
			err = e.st.UpdateFreeing(func(tx *store.Tx) error { return tx.PutScrub(rec) })
			if errdefs.Is(err, errdefs.NoSpace) {
				err = nil // what is on record says the same at the next open
			}
		}
	}
	e.scrubs.mu.rec = rec
	return err
}

// lastScrub returns the scrub with the highest id of those whose records can be read.
func (e *Engine) lastScrub() (rec store.Scrub, ok bool, err error) {
	err = e.st.View(func(tx *store.Tx) error {
		ids, err := tx.ScrubIDs()
		for i := len(ids) - 1; err == nil && i >= 0 && !ok; i-- {
			var serr error
			if rec, serr = tx.Scrub(ids[i]); serr == nil {
				ok = true
			} else {
				e.o.Logger.Warn("what is kept of a scrub is damaged", "scrub", ids[i], "error", serr)
			}
		}
		return err
	})
	return rec, ok, err
}

// freeFindings is how many findings of a scrub may use the part of the metadata that is kept for what
// frees: few enough for that to go on.
const freeFindings = 1000

// recordScrub makes a change of a scrub's record durable, with findings. A rec without an id is a new
// scrub, and gets one. It is the current scrub afterwards, and rec what is on record.
func (e *Engine) recordScrub(ctx context.Context, rec *store.Scrub, change func(*store.Scrub), found []store.Finding) error {
	if err := e.failed(); err != nil {
		return errdefs.Wrap(errdefs.ReadOnly, errdefs.ReasonReadOnly, "engine.recordScrub", "", err)
	}
	var out store.Scrub
	var order uint64
	do := e.group.DoFreeing
	if len(found) > 0 && rec.Findings+uint64(len(found)) > freeFindings {
		do = e.group.Do
	}
	err := do(ctx, func(tx *store.Tx) (err error) {
		order = e.scrubs.order.Add(1)
		if rec.ID == 0 {
			ids, err := tx.ScrubIDs()
			if err != nil {
				return err
			}
			if out = *rec; len(ids) > 0 {
				out.ID = ids[len(ids)-1]
			}
			out.ID++
		} else if out, err = tx.Scrub(rec.ID); err != nil {
			return err
		}
		e.scrubs.endUnrecorded(&out)
		if change != nil {
			change(&out)
		}
		if err := tx.AddFindings(&out, found); err != nil {
			return err
		}
		return tx.PutScrub(out)
	})
	if err != nil {
		return err
	}
	*rec = out
	e.scrubs.findings.Add(uint64(len(found)))
	m := &e.scrubs.mu
	m.Lock()
	defer m.Unlock()
	if order > m.order {
		m.rec, m.order, m.state, m.err = out, order, 0, ""
	}
	return nil
}

// endUnrecorded makes of a record that says running, because the end of its run could not be recorded,
// what it would say.
func (s *scrubs) endUnrecorded(rec *store.Scrub) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.state != 0 && s.mu.rec.ID == rec.ID {
		rec.State, rec.Error = uint8(s.mu.state), s.mu.err
	}
}

// dropScrubs deletes the scrubs that are too old to be kept, in bounded transactions.
func (e *Engine) dropScrubs(ctx context.Context, keep uint64) error {
	for {
		done := true
		err := e.group.DoFreeing(ctx, func(tx *store.Tx) error {
			done = true
			ids, err := tx.ScrubIDs()
			if err != nil {
				return err
			}
			for _, id := range ids[:max(0, len(ids)-keptScrubs)] {
				if id == keep {
					continue
				}
				if done, err = tx.DropScrub(id, dropFindings); err != nil || !done {
					return err
				}
			}
			return nil
		})
		if err != nil || done {
			return err
		}
	}
}

// dropFindings bounds the findings that one transaction deletes.
const dropFindings = 1024
