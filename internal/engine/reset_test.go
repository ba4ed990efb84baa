package engine

import (
	"testing"

	"github.com/shingle-store/shingle/internal/store"
)

// Once nothing waits to be finished any more the resetter must rest: it kept itself awake, and a
// processor busy, for as long as the store was open.
func TestResetterRests(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	put(t, e, "f", noise(1, 100_000))
	e.retireClosing()
	if e.closing.Load() {
		t.Error("nothing is closing")
	}
	var slot uint32
	err := e.st.View(func(tx *store.Tx) error {
		return tx.Extents(0, func(x store.Extent) bool {
			slot, _ = e.split(x.Addr)
			return true
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	e.al.Suspect(slot)
	e.retireClosing()
	if e.closing.Load() || e.al.AnyClosing() {
		t.Error("the zone was finished, nothing is left")
	}
}
