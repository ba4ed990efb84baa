package engine

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// Device is a zoned device by the name that the operator gave it.
type Device struct {
	Path string // as the operator named it; "" in tests
	zone.Device
}

// member is a device of the store.
type member struct {
	rec  store.Device
	path string
	dev  zone.Device // nil: it was not given, or cannot be used
	// away: it did not take part in the latest start, so what it holds may be old.
	away bool
	// failed: the array has taken it out of use, for this cause.
	failed bool
	cause  error
}

// usableBytes is what devices hold in all, by which the bound of the metadata is chosen. A label says how
// many devices there are, so that it does not shrink when one is missing.
func usableBytes(devices []Device) int64 {
	sum, count := int64(0), len(devices)
	for _, d := range devices {
		sum += d.Geometry().UsableBytes()
		if l, err := label.Read(d); err == nil {
			count = max(count, int(l.Devices))
		}
	}
	return sum / int64(len(devices)) * int64(count)
}

// matchDevices finds out which device is which, and refuses those that are not what the metadata is
// about. Devices that are not there are members without a device.
func (e *Engine) matchDevices(super store.Superblock, recs []store.Device) ([]*member, error) {
	members := make([]*member, len(recs))
	for i, rec := range recs {
		members[i] = &member{rec: rec, away: rec.LabelGeneration < super.StartCounter}
	}
	var blank []Device
	for _, d := range e.o.Devices {
		l, other, err := label.ReadBoth(d)
		if errdefs.Is(err, errdefs.NotFound) && len(e.o.Devices) > 1 {
			blank = append(blank, d)
			continue
		}
		if errdefs.Is(err, errdefs.Device) && len(recs) > 1 {
			e.o.Logger.Error("a device cannot be read and is left out", "device", d.Path, "error", err)
			e.cond.set(Condition{
				Reason: "DEVICE_UNREADABLE", Severity: Error, Object: "devices/" + d.Path, Since: e.o.Now(),
				Message: fmt.Sprintf("the label of %s cannot be read, so it is left out: %v", d.Path, err),
			})
			d.Close()
			continue
		}
		m, err := e.matchDevice(super, members, d, l, other, err)
		if err != nil {
			return nil, err
		}
		m.dev, m.path = d.Device, d.Path
	}
	for _, d := range blank {
		if slices.ContainsFunc(members, func(m *member) bool { return m.dev == nil }) {
			_, err := e.matchDevice(super, members, d, label.Label{}, 0, errdefs.New(errdefs.NotFound, "", "", "", ""))
			return nil, err
		}
		// As one does that has left the store.
		e.o.Logger.Warn("a device holds no label, and all devices of the store are there without it: it is left out", "device", d.Path)
		d.Close()
	}
	return members, nil
}

// matchDevice returns the member that the device is by its label.
func (e *Engine) matchDevice(super store.Superblock, members []*member, d Device, l label.Label, other uint64, err error) (*member, error) {
	which := "the device"
	if d.Path != "" && len(e.o.Devices) > 1 {
		which = "the device " + d.Path
	}
	refuse := func(format string, a ...any) (*member, error) {
		return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.Open", "device", which+" "+fmt.Sprintf(format, a...))
	}
	if errdefs.Is(err, errdefs.NotFound) {
		return refuse("holds no Shingle label, but the metadata %s belongs to store %s: give the right --device, or restore the device", e.o.MetadataPath, uuid.UUID(super.StoreUUID))
	} else if err != nil && len(e.o.Devices) > 1 {
		return nil, fmt.Errorf("%s cannot be told by its label (one that was just being added may be left out): %w", which, err)
	} else if err != nil {
		return nil, err
	}
	if l.Store != super.StoreUUID {
		return refuse("belongs to store %s, the metadata to store %s: give the --device and --data that belong together", uuid.UUID(l.Store), uuid.UUID(super.StoreUUID))
	}
	at := slices.IndexFunc(members, func(m *member) bool { return m.rec.Number == l.Device })
	if at < 0 {
		return refuse("is number %d of its store, and the store has no such device (any more): leave it out", l.Device)
	}
	m, g := members[at], d.Geometry()
	switch dev := m.rec; {
	case m.dev != nil:
		return refuse("is number %d of its store, and so is %s: one of them is a copy, give only the right one", l.Device, m.path)
	case l.ZoneSize != g.ZoneSize || l.Zones != g.Zones || l.Dialect != g.Dialect:
		return refuse("was formatted with %d zones of %d bytes and shows %d of %d: it was moved to other hardware or opened with another geometry: give the --device it was formatted as", l.Zones, l.ZoneSize, g.Zones, g.ZoneSize)
	case l.Generation >= dev.OtherLabel && other == 0 && l.Generation < dev.LabelGeneration:
		e.cond.set(Condition{
			Reason: "LABEL_DAMAGED", Severity: Warning, Object: deviceName(dev.Number), Since: e.o.Now(),
			Message: fmt.Sprintf("the label of start %d cannot be read; the one before it was taken, and a new one written over the damage", dev.LabelGeneration),
		})
	case l.Generation < dev.LabelGeneration && !e.labelZoneFailed(dev.Number, d.Device):
		return refuse("is stale: its label is from start %d, the metadata from start %d; it looks like an old copy of the device: put the latest one back", l.Generation, dev.LabelGeneration)
	case l.Generation > super.StartCounter+1:
		return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.Open", "device", fmt.Sprintf("the metadata is stale: it is from start %d, %s from start %d; it looks like an old copy of the metadata: put the latest one back", super.StartCounter, which, l.Generation))
	}
	return m, nil
}

// assemble makes one device of the members, in which zone s is what lies under slot s.
func (e *Engine) assemble(members []*member, groups []store.BlockGroup) error {
	byNumber := map[uint32]*member{}
	parts := make([]array.Member, len(members))
	for i, m := range members {
		byNumber[m.rec.Number] = m
		parts[i] = array.Member{Number: int(m.rec.Number), Device: m.dev}
	}
	sets := make([][]array.Place, len(groups))
	for i, g := range groups {
		fits := int(g.Slot) == i && (len(g.Places) == 0) == (g.Capacity == 0)
		for _, p := range g.Places {
			m := byNumber[p.Device]
			fits = fits && m != nil && p.Zone < m.rec.Zones && (p.Zone < m.rec.Conventional) == (g.Kind == store.KindConventional)
			sets[i] = append(sets[i], array.Place{Device: int(p.Device), Zone: int(p.Zone), Stale: p.Stale})
		}
		if !fits {
			return errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, "engine.Open", fmt.Sprintf("block group %d", g.Slot), "the record does not fit the devices")
		}
	}
	a, err := array.New(parts, sets)
	if err != nil {
		return err
	}
	e.dev, e.geo = a, a.Geometry()
	e.members.byNumber = byNumber
	a.OnFail(e.deviceFailed)
	a.OnStale(e.placesChanged)
	return nil
}

// lookForMissing names the devices that are not there, and refuses to go on without one that holds the
// only copy of something.
func (e *Engine) lookForMissing(members []*member, groups []store.BlockGroup) error {
	for _, m := range members {
		if m.dev != nil {
			continue
		}
		lost, held, single := int64(0), 0, 0
		for i, g := range groups {
			if g.LiveBytes == 0 || !slices.ContainsFunc(g.Places, func(p store.Place) bool { return p.Device == m.rec.Number && !p.Stale }) {
				continue
			}
			held++
			if e.dev.Copies(i) == 0 {
				lost += g.LiveBytes
				single++
			}
		}
		name := deviceName(m.rec.Number)
		if single > 0 {
			return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.Open", name, fmt.Sprintf(
				"device %d is missing, and holds the only copy of %d bytes in %d block groups: give it with --device, too", m.rec.Number, lost, single))
		}
		e.o.Logger.Error("a device is missing: the store is degraded", "device", m.rec.Number, "block_groups", held)
		e.cond.set(Condition{
			Reason: "DEVICE_MISSING", Severity: Error, Object: name, Since: e.o.Now(),
			Message: fmt.Sprintf("device %d is missing: %d block groups with data on it have one copy less", m.rec.Number, held),
			Advice:  "give it with --device again, or put another in its place: `client device replace`",
		})
	}
	return nil
}

// distrust looks at what a device that was away holds: a place with the zone header of another time is
// stale, whatever the records say.
func (e *Engine) distrust(members []*member, groups []store.BlockGroup) error {
	if e.copies < 2 {
		return nil
	}
	buf := slab.Aligned(extent.BlockSize)
	for _, m := range members {
		if m.dev == nil || !m.away {
			continue
		}
		stale := 0
		for i := range groups {
			g := &groups[i]
			at := slices.IndexFunc(g.Places, func(p store.Place) bool { return p.Device == m.rec.Number && !p.Stale })
			if at < 0 || g.LiveBytes == 0 || g.Kind != store.KindSequential {
				continue
			}
			err := e.dev.ReadCopy(i, at, 0, buf)
			if err == nil && e.isHeader(buf, g.Slot, g.Generation, at, array.Place{Device: int(m.rec.Number), Zone: int(g.Places[at].Zone)}) {
				continue
			}
			places := e.dev.Places(i)
			places[at].Stale = true
			e.dev.SetPlaces(i, places)
			e.note(g.Slot, bgRecord{places: e.placesOf(g.Slot), capacity: g.Capacity})
			g.Places = e.placesOf(g.Slot)
			stale++
		}
		if stale > 0 {
			e.cond.set(Condition{
				Reason: "DEVICE_STALE", Severity: Warning, Object: deviceName(m.rec.Number), Since: e.o.Now(),
				Message: fmt.Sprintf("device %d holds an old state of %d block groups, which is not used; their second copy is made anew", m.rec.Number, stale),
			})
		}
	}
	return nil
}

// isHeader reports whether p is the header of a block group's zone at a place.
func (e *Engine) isHeader(p []byte, slot uint32, generation uint64, copy int, at array.Place) bool {
	h, err := label.DecodeHeader(p)
	return err == nil && h.Store == e.uuid && h.Slot == slot && h.Generation == generation && h.Zone == at.Zone && int(h.Device) == at.Device && int(h.Copy) == copy
}

// header returns the encoded zone header of a block group that is being opened, for one of its places.
func (e *Engine) header(bg alloc.BlockGroup, copy int, at array.Place) []byte {
	return label.EncodeHeader(label.Header{
		Store: e.uuid, Slot: bg.Slot, Generation: bg.Generation, Zone: at.Zone, Device: uint32(at.Device), Copy: uint8(copy), Class: uint8(bg.Class),
	})
}

func deviceName(number uint32) string { return fmt.Sprintf("devices/%d", number) }

// zoneName names a zone of a device in conditions and errors.
func zoneName(device uint32, z int) string { return fmt.Sprintf("devices/%d/zones/%d", device, z) }

// slots is how many slots the address space has.
func (e *Engine) slots() int { return e.dev.Geometry().Zones }

// firstPlace is the first place of a slot, by which its zone is named; of one without a place it is zone -1.
func (e *Engine) firstPlace(slot uint32) array.Place {
	if p := e.dev.Places(int(slot)); len(p) > 0 {
		return p[0]
	}
	return array.Place{Zone: -1}
}

// placeAt is the place of a copy; zone -1 if there is none any more.
func (e *Engine) placeAt(slot uint32, copy int) array.Place {
	if p := e.dev.Places(int(slot)); copy < len(p) {
		return p[copy]
	}
	return array.Place{Zone: -1}
}

// hasDevice reports whether the store has a device of that number.
func (e *Engine) hasDevice(number uint32) bool {
	e.members.Lock()
	defer e.members.Unlock()
	return e.members.byNumber[number] != nil
}

// zoneOf returns the zone under a slot: its first place's.
func (e *Engine) zoneOf(slot uint32) int { return e.firstPlace(slot).Zone }

// placeName names what lies under a slot, by its first place.
func (e *Engine) placeName(slot uint32) string {
	p := e.firstPlace(slot)
	return zoneName(uint32(p.Device), p.Zone)
}

// placesOf are the places of a slot as they go on record.
func (e *Engine) placesOf(slot uint32) []store.Place {
	places := e.dev.Places(int(slot))
	out := make([]store.Place, len(places))
	for i, p := range places {
		out[i] = store.Place{Device: uint32(p.Device), Zone: uint32(p.Zone), Stale: p.Stale}
	}
	return out
}
