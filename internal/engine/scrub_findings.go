package engine

import (
	"context"
	"strconv"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
)

// maxFindings is the most findings of one answer.
const maxFindings = 1000

// ScrubFindings returns findings in the order in which they were met; next is for After, 0: there are no
// more. NotFound for a scrub that is not kept.
func (e *Engine) ScrubFindings(_ context.Context, q ScrubFindingsQuery) (found []ScrubFinding, next uint64, err error) {
	const op = "engine.ScrubFindings"
	if q.Limit < 1 || q.Limit > maxFindings {
		return nil, 0, errdefs.Invalid(op, "limit", "limit must be from 1 to "+strconv.Itoa(maxFindings))
	}
	rec, err := e.scrubRecord(op, q.ID)
	if err != nil {
		return nil, 0, err
	}
	last := uint64(0)
	var bad int
	err = e.st.View(func(tx *store.Tx) error {
		bad, err = tx.Findings(rec.ID, q.After, func(f store.Finding) bool {
			if q.UncorrectedOnly && scrub.Outcome(f.Outcome) == scrub.Repaired {
				return true
			}
			if len(found) == q.Limit {
				next = last
				return false
			}
			found, last = append(found, findingOf(f)), f.Seq
			return true
		})
		return err
	})
	if bad > 0 {
		e.o.Logger.Warn("findings of a scrub are damaged", "scrub", rec.ID, "findings", bad)
	}
	return found, next, err
}
