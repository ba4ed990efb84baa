package engine

import (
	"slices"
	"sync"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// trimmed remembers what was given back to the device (docs/format.md 2.13).
//
// A mark is made while what it is about is kept out of allocation. It goes into the first commit
// whose device flush begins after that, and so into no later one than any extent that is stored
// there afterwards, which clears it.
type trimmed struct {
	mu    sync.Mutex
	zones map[uint32]struct{} // slots of empty zones that were given back and not opened since
	marks trimMarks           // in no commit yet
}

// trimMarks are what a commit is to remember.
type trimMarks struct {
	zones map[uint32]uint64 // empty zones: slot -> generation
	runs  []runMark         // of conventional zones, in the order of events
}

// runMark says that free blocks were discarded, or were written for nothing since.
type runMark struct {
	store.Run
	trimmed bool
}

// needFlush reports whether one of them says that something was given back, which is believed only
// after a device flush.
func (m *trimMarks) needFlush() bool {
	return len(m.zones) > 0 || slices.ContainsFunc(m.runs, func(r runMark) bool { return r.trimmed })
}

// recovered notes what is on record.
func (t *trimmed) recovered(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(slot)
}

func (t *trimmed) addLocked(slot uint32) {
	if t.zones == nil {
		t.zones = map[uint32]struct{}{}
	}
	t.zones[slot] = struct{}{}
}

// mark notes that the empty zone under a slot of this generation was given back. It answers how many
// zones wait for a commit.
func (t *trimmed) mark(slot uint32, generation uint64) (waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(slot)
	t.markLocked(slot, generation)
	return len(t.marks.zones)
}

func (t *trimmed) markLocked(slot uint32, generation uint64) {
	if t.marks.zones == nil {
		t.marks.zones = map[uint32]uint64{}
	}
	t.marks.zones[slot] = generation
}

// markRuns notes that the blocks of a conventional zone were discarded, or, without trimmed, that
// they were written and nothing will come of it. It answers how many runs wait for a commit.
func (t *trimmed) markRuns(slot uint32, ranges []extent.Range, trimmed bool) (waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range ranges {
		t.marks.runs = append(t.marks.runs, runMark{store.Run{Slot: slot, Off: r.Off, Len: r.Len()}, trimmed})
	}
	return len(t.marks.runs)
}

// opened forgets the zone: what the device keeps for it is in use again.
func (t *trimmed) opened(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.zones, slot)
	delete(t.marks.zones, slot)
}

func (t *trimmed) has(slot uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.zones[slot]
	return ok
}

// take hands over what the next commit is to remember, before its device flush.
func (t *trimmed) take() trimMarks {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.marks
	t.marks = trimMarks{}
	return m
}

// takeTrimmed is take for as long as the metadata has room beside what is promised to data: a commit
// that others wait for is not to fail for what only saves discards.
func (e *Engine) takeTrimmed() trimMarks {
	m := e.trimmed.take()
	if n := len(m.zones) + len(m.runs); n > 0 && e.metadataRoom(int64(n)*metadataPerBlock) != nil {
		e.trimmed.forget(m)
		return trimMarks{}
	}
	return m
}

// untake undoes take after a failed commit. What was opened since is left out.
func (t *trimmed) untake(m trimMarks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for slot, generation := range m.zones {
		if _, ok := t.zones[slot]; !ok {
			continue
		}
		if _, later := t.marks.zones[slot]; !later {
			t.markLocked(slot, generation)
		}
	}
	t.marks.runs = append(m.runs, t.marks.runs...)
}

// forget drops what was taken and may not have reached the medium: it is trimmed again. What was
// written for nothing stays noted.
func (t *trimmed) forget(m trimMarks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for slot := range m.zones {
		if _, later := t.marks.zones[slot]; !later {
			delete(t.zones, slot)
		}
	}
	written := slices.DeleteFunc(slices.Clone(m.runs), func(r runMark) bool { return r.trimmed })
	t.marks.runs = append(written, t.marks.runs...)
}

// put sets the marks in the transaction. What the records of resets say is there already.
func (m *trimMarks) put(tx *store.Tx) error {
	for slot, generation := range m.zones {
		if err := tx.SetTrimmed(slot, generation); err != nil {
			return err
		}
	}
	for _, r := range m.runs {
		if err := tx.SetTrimmedRun(r.Run, r.trimmed); err != nil {
			return err
		}
	}
	return nil
}
