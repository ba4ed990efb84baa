package engine

import (
	"sync"

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
	marks trimMarks           // not in a commit yet
}

// trimMarks are what a commit is to remember: slot -> generation of empty zones.
type trimMarks map[uint32]uint64

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

// mark notes that the empty zone under a slot of this generation was given back.
func (t *trimmed) mark(slot uint32, generation uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(slot)
	if t.marks == nil {
		t.marks = trimMarks{}
	}
	t.marks[slot] = generation
}

// opened forgets the zone: what the device keeps for it is in use again.
func (t *trimmed) opened(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.zones, slot)
	delete(t.marks, slot)
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
	t.marks = nil
	return m
}

// untake undoes take after a failed commit. What was opened since is left out.
func (t *trimmed) untake(m trimMarks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for slot, generation := range m {
		if _, ok := t.zones[slot]; !ok {
			continue
		}
		if t.marks == nil {
			t.marks = trimMarks{}
		}
		if _, later := t.marks[slot]; !later {
			t.marks[slot] = generation
		}
	}
}

// forget drops what was taken and may not have reached the medium: it is trimmed again.
func (t *trimmed) forget(m trimMarks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for slot := range m {
		if _, later := t.marks[slot]; !later {
			delete(t.zones, slot)
		}
	}
}

// put sets the marks in the transaction. What the records of resets say is there already.
func (m trimMarks) put(tx *store.Tx) error {
	for slot, generation := range m {
		if err := tx.SetTrimmed(slot, generation); err != nil {
			return err
		}
	}
	return nil
}
