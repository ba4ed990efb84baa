package array

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// ReadAt implements zone.Device: ReadFrom without the copy.
func (a *Array) ReadAt(z int, off int64, p []byte) error {
	_, err := a.ReadFrom(z, off, p)
	return err
}

// ReadFrom is ReadAt, and tells which copy answered: an index into Places. It reads the place whose
// member has the fewest reads under way, the first of several; on an error it tries the others, and
// answers the first error if all fail. It takes no turn: it waits for no write.
func (a *Array) ReadFrom(z int, off int64, p []byte) (copy int, err error) {
	const op = "zone.ReadAt"
	s, only, err := a.set(op, z)
	if err != nil {
		return 0, err
	}
	if only.member != nil {
		return 0, a.read(only, off, p)
	}
	a.mu.RLock()
	left := s.targetsLocked(false)
	a.mu.RUnlock()
	err = nil
	for len(left) > 0 {
		next := 0
		for i, t := range left {
			if t.reads.Load() < left[next].reads.Load() {
				next = i
			}
		}
		t := left[next]
		left = append(left[:next], left[next+1:]...)
		e := a.read(t, off, p)
		if e == nil {
			return t.copy, nil
		}
		if err == nil {
			err = e
		}
	}
	if err == nil {
		err = refuse(op, z, zone.ErrZoneOffline)
	}
	return 0, err
}

// ReadCopy reads one copy of the zone, Places(z)[copy], and no other. Errors are those of ReadAt; a
// place that is Stale or not there is ErrZoneOffline, a copy that does not exist InvalidArgument.
func (a *Array) ReadCopy(z, copy int, off int64, p []byte) error {
	t, err := a.copyOf("array.ReadCopy", z, copy)
	if err != nil {
		return err
	}
	return a.read(t, off, p)
}

// copyOf is the place that is that copy of the zone.
func (a *Array) copyOf(op string, z, copy int) (t target, err error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if err := a.admitLocked(op, z); err != nil {
		return t, err
	}
	s := a.sets[z]
	if copy < 0 || copy >= len(s.places) {
		err := errdefs.Invalid(op, "copy", fmt.Sprintf("there is no copy %d of %d", copy, len(s.places)))
		err.Object = object(z)
		return t, err
	}
	if !s.places[copy].usable() {
		return t, refuse(op, z, zone.ErrZoneOffline)
	}
	return s.targetLocked(copy), nil
}

func (a *Array) read(t target, off int64, p []byte) error {
	t.reads.Add(1)
	err := t.dev.ReadAt(t.Zone, off, p)
	t.reads.Add(-1)
	if err != nil {
		return t.name(err)
	}
	return nil
}
