package store

import (
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// The flag goes in the transaction that stores an extent in the block group, stays over everything
// else, and counts only while the zone is empty.
func TestTrimmedFlag(t *testing.T) {
	s := newStore(t)
	const slot = 3
	is := func(what string, want bool) {
		t.Helper()
		view(t, s, func(tx *Tx) error {
			g, err := tx.BlockGroup(slot)
			if g.Trimmed() != want {
				t.Errorf("%s: trimmed is %v: %+v", what, g.Trimmed(), g)
			}
			return err
		})
	}
	set := func(generation uint64) {
		t.Helper()
		update(t, s, func(tx *Tx) error { return tx.SetTrimmed(slot, generation) })
	}
	is("new", false)
	set(1)
	is("another generation", false)
	set(0)
	is("set", true)
	set(0)
	is("set twice", true)

	update(t, s, func(tx *Tx) error { return addFile(tx, 7, "a") })
	at := extent.Addr(slot*testZone + extent.BlockSize)
	elsewhere := extent.Addr((slot+1)*testZone + extent.BlockSize)
	update(t, s, func(tx *Tx) error { _, _, err := write(tx, 7, 0, rawExtent(elsewhere, 5000)); return err })
	is("an extent in another block group", true)
	update(t, s, func(tx *Tx) error { _, _, err := write(tx, 7, 0, rawExtent(at, 5000)); return err })
	is("an extent stored", false)
	update(t, s, func(tx *Tx) error { _, err := drop(tx, 7, 0, 5000); return err })
	is("and dropped", false)
	set(0)
	is("set over what is not empty", false)
	wantSound(t, s)

	// In the transaction that stores an extent, before it and after it.
	reset := func(tx *Tx) error {
		g, err := tx.BlockGroup(slot)
		if err != nil {
			return err
		}
		g.Generation, g.AllocOffset, g.Flags = g.Generation+1, 0, 0
		return tx.PutBlockGroup(g)
	}
	update(t, s, func(tx *Tx) error {
		if err := reset(tx); err != nil {
			return err
		}
		return tx.SetTrimmed(slot, 1)
	})
	is("reset and set", true)
	update(t, s, func(tx *Tx) error {
		if _, _, err := write(tx, 7, 0, rawExtent(at, 5000)); err != nil {
			return err
		}
		return tx.SetTrimmed(slot, 1)
	})
	is("an extent stored, then set", false)
	wantSound(t, s)
	if err := s.Update(func(tx *Tx) error { return tx.SetTrimmed(99, 0) }); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("no such block group: %v", err)
	}
}

// A version that does not know the flag keeps it while it stores extents: it must not count then.
func TestTrimmedFlagOfAnOlderVersion(t *testing.T) {
	for _, c := range []struct {
		g    BlockGroup
		want bool
	}{
		{BlockGroup{Flags: BGTrimmed}, true},
		{BlockGroup{}, false},
		{BlockGroup{Flags: BGTrimmed, AllocOffset: 8192}, false},
		{BlockGroup{Flags: BGTrimmed, LiveBytes: 4096}, false},
		{BlockGroup{Flags: BGFinished}, false},
		{BlockGroup{Flags: BGTrimmed | BGReadOnly}, true},
	} {
		if c.g.Trimmed() != c.want {
			t.Errorf("%+v: %v", c.g, c.g.Trimmed())
		}
	}
}
