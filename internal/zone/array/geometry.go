package array

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/zone"
)

// Geometry implements zone.Device. It changes in Grow and AddMember, and in SetPlaces where it puts
// a second copy on one device.
//
// ZoneCapacity is the largest of the members', so a set may hold less: Report says how much each
// does. The limits are the least that any member has, a limit on zones divided by the copies that a
// set has on one member; the array does not enforce them, each member does. Conventional counts the
// leading sets of conventional zones; sets that none can tell of, because all their members are
// missing, count if one follows that is conventional. LastZoneSize is 0 unless the last set alone
// is short.
func (a *Array) Geometry() zone.Geometry {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.geo
}

// reshapeLocked works out the geometry from members and sets, and refuses sets that cannot be.
func (a *Array) reshapeLocked(op string) error {
	g := zone.Geometry{Zones: len(a.sets)}
	for _, m := range a.members {
		if m.dev != nil {
			g.Dialect, g.ZoneSize = m.geo.Dialect, m.geo.ZoneSize
			g.ZoneCapacity = max(g.ZoneCapacity, m.geo.ZoneCapacity)
		}
	}
	if g.ZoneSize == 0 {
		return mismatch(op, "none of the devices of the store is there")
	}
	leading, short, lastSize := true, 0, g.ZoneSize
	for z, s := range a.sets {
		kind, err := s.kindLocked(op, z)
		if err != nil {
			return err
		}
		switch {
		case kind == sequential:
			leading = false
		case kind == conventional && leading:
			g.Conventional = z + 1
		}
		if lastSize, _ = s.sizeLocked(&g); lastSize < g.ZoneSize {
			short++
		}
		a.share = max(a.share, s.shareLocked())
	}
	if short == 1 && lastSize < g.ZoneSize {
		g.LastZoneSize = lastSize
	}
	for _, m := range a.members {
		for _, limit := range []int{m.geo.OpenLimit(), m.geo.ActiveLimit()} {
			if limit > 0 && limit < a.share {
				return mismatch(op, fmt.Sprintf("device %d can have %d zones active, and a zone of the store has %d copies there: use another device for the copies",
					m.number, limit, a.share))
			}
		}
	}
	a.geo = g
	a.limitsLocked()
	return nil
}

// limitsLocked works out the limits of the geometry.
func (a *Array) limitsLocked() {
	g := &a.geo
	g.MaxOpen, g.MaxActive, g.AppendLimit = 0, 0, 0
	for _, m := range a.members {
		if m.dev == nil {
			continue
		}
		g.MaxOpen = least(g.MaxOpen, share(m.geo.MaxOpen, a.share))
		g.MaxActive = least(g.MaxActive, share(m.geo.MaxActive, a.share))
		g.AppendLimit = least(g.AppendLimit, m.geo.AppendLimit)
	}
}

// least returns the lower of two limits, 0 being none.
func least[T int | int64](x, y T) T {
	if x == 0 || y != 0 && y < x {
		return y
	}
	return x
}

func share(limit, by int) int {
	if limit == 0 {
		return 0
	}
	return max(1, limit/by)
}

type kind uint8

const (
	unknown kind = iota
	conventional
	sequential
)

// kindLocked says of which kind the places are that can be told; mixed ones are refused.
func (s *set) kindLocked(op string, z int) (kind, error) {
	found := unknown
	for _, p := range s.places {
		if p.m == nil || p.m.dev == nil {
			continue
		}
		if p.Zone >= p.m.geo.Zones {
			return found, mismatch(op, fmt.Sprintf("zone %d has a copy in zone %d of device %d, which has %d zones", z, p.Zone, p.Device, p.m.geo.Zones))
		}
		k := conventional
		if p.m.geo.IsSequential(p.Zone) {
			k = sequential
		}
		if found != unknown && found != k {
			return found, mismatch(op, fmt.Sprintf("the copies of zone %d are in a conventional and in a sequential zone: choose zones of one kind", z))
		}
		found = k
	}
	return found, nil
}

// sizeLocked is what the smallest of the set's places has; all of g's if none can be told.
func (s *set) sizeLocked(g *zone.Geometry) (size, capacity int64) {
	size, capacity = g.ZoneSize, g.ZoneCapacity
	for _, p := range s.places {
		if p.m != nil && p.m.dev != nil {
			size = min(size, p.m.geo.SizeOf(p.Zone))
			capacity = min(capacity, p.m.geo.CapacityOf(p.Zone))
		}
	}
	return size, capacity
}

// shareLocked is the number of the set's places on the member that has most of them.
func (s *set) shareLocked() int {
	most := 1
	for i, p := range s.places {
		n := 1
		for _, o := range s.places[:i] {
			if o.Device == p.Device {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
