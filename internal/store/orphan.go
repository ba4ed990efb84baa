package store

import (
	"fmt"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// OrphanKind says why a node has no name; values are on media.
type OrphanKind uint8

// The kinds of orphans.
const (
	OrphanDeleted    OrphanKind = 1 // deleted; its extents are being freed
	OrphanUnfinished OrphanKind = 2 // a replace that was not finished
	OrphanCut        OrphanKind = 3 // a named file with extents past its size: a truncate goes on
)

func (k OrphanKind) valid() bool { return k >= OrphanDeleted && k <= OrphanCut }

func decodeOrphan(p []byte) (k OrphanKind, since time.Time, err error) {
	var ns int64
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &k, max8)
		case 2:
			return number(f, &ns, max64)
		}
		return nil
	})
	if err == nil && !k.valid() {
		err = fmt.Errorf("orphan kind %d: %w", k, errWire)
	}
	return k, time.Unix(0, ns), err
}

// AddOrphan puts node id on the orphan list, or changes its entry. Only with OrphanCut may the
// node have a name.
func (tx *Tx) AddOrphan(id uint64, k OrphanKind, since time.Time) error {
	if !k.valid() {
		return errdefs.Invalid("store.AddOrphan", "kind", "is unknown")
	}
	return tx.put(bOrphans, key64(id), putUint(putUint(nil, 1, uint64(k)), 2, uint64(since.UnixNano())))
}

// RemoveOrphan takes node id off the list; it is no error if it is not there.
func (tx *Tx) RemoveOrphan(id uint64) error { return tx.del(bOrphans, key64(id)) }

// Orphan returns the entry of node id, or NotFound.
func (tx *Tx) Orphan(id uint64) (OrphanKind, time.Time, error) {
	key := key64(id)
	p, ok, err := tx.get(bOrphans, key)
	if err != nil {
		return 0, time.Time{}, err
	}
	if !ok {
		return 0, time.Time{}, notFound("store.Orphan", nodeObject(id))
	}
	k, since, err := decodeOrphan(p)
	return k, since, badRecord(bOrphans, key, err)
}

// Orphans calls fn for the orphans with an id > after in id order until it returns false.
func (tx *Tx) Orphans(after uint64, fn func(id uint64, k OrphanKind, since time.Time) bool) error {
	if after == max64 {
		return nil
	}
	c := tx.cursor(bOrphans)
	for key, p, err := c.seek(key64(after + 1)); key != nil || err != nil; key, p, err = c.next() {
		if err != nil {
			return err
		}
		id, ok := splitKey64(key, 1)
		k, since, err := decodeOrphan(p)
		if err == nil && !ok {
			err = errWire
		}
		if err != nil {
			return badRecord(bOrphans, key, err)
		}
		if !fn(id[0], k, since) {
			return nil
		}
	}
	return nil
}
