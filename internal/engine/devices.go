package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// DeviceState says whether a device of the store takes part.
type DeviceState uint8

// The states of a device.
const (
	DeviceOnline  DeviceState = iota + 1
	DeviceMissing             // not given at the start
	DeviceFailed              // taken out of use while the engine ran, for it failed
	DeviceLeaving             // being replaced or removed: what lies on it is moved elsewhere
)

// DeviceInfo describes one device of the store.
type DeviceInfo struct {
	Number   uint32
	Path     string // "": missing
	State    DeviceState
	Leaving  bool          // it is being replaced or removed, also if State says that it is away
	Message  string        // why it is not online; "" if it is
	Geometry zone.Geometry // zero values that are not known of a missing device: limits
	Stored   int64         // bytes of live data that lie on it
	// BlockGroups have a place on it; of these, the copy that lies there is out of date or cannot be
	// reached in Incomplete ones that hold data.
	BlockGroups, Incomplete int
	Spare                   int // zones of it that no block group has
	Stats                   zone.Stats
}

// Devices lists the devices of the store by number, and how far their rebuild is.
func (e *Engine) Devices() ([]DeviceInfo, Rebuild, error) {
	stats := map[int]zone.Stats{}
	for _, m := range e.dev.Members() {
		stats[m.Number] = m.Stats
	}
	e.members.Lock()
	out := make([]DeviceInfo, 0, len(e.members.byNumber))
	at := map[int]int{}
	leaving := false
	for _, m := range e.members.byNumber {
		leaving = leaving || m.rec.Leaving
		d := DeviceInfo{Number: m.rec.Number, Path: m.path, State: DeviceOnline, Leaving: m.rec.Leaving, Spare: len(e.members.spare[m.rec.Number]), Stats: stats[int(m.rec.Number)]}
		switch {
		case m.failed:
			d.State, d.Message = DeviceFailed, errdefs.Sentence(m.cause)
		case m.dev == nil:
			d.State, d.Message = DeviceMissing, "it was not given when the engine was started, or was not there"
		case m.rec.Leaving:
			d.State, d.Message = DeviceLeaving, "what lies on it is being moved to other devices"
		}
		if m.rec.Leaving && d.State != DeviceLeaving {
			d.Message += "; it is being replaced or removed"
		}
		if m.dev != nil {
			d.Geometry = m.dev.Geometry()
		} else {
			d.Geometry = zone.Geometry{Dialect: zone.Dialect(m.rec.Dialect), ZoneSize: m.rec.ZoneSize, Zones: int(m.rec.Zones), Conventional: int(m.rec.Conventional)}
		}
		out = append(out, d)
	}
	e.members.Unlock()
	slices.SortFunc(out, func(a, b DeviceInfo) int { return int(a.Number) - int(b.Number) })
	for i := range out {
		at[int(out[i].Number)] = i
	}
	for slot := range e.slots() {
		bg, _ := e.al.BlockGroup(uint32(slot))
		for _, p := range e.dev.Places(slot) {
			i, ok := at[p.Device]
			if !ok {
				continue
			}
			d := &out[i]
			d.BlockGroups++
			switch good := !p.Stale && (d.State == DeviceOnline || d.State == DeviceLeaving); {
			case good:
				d.Stored += bg.Live
			case bg.Live > 0:
				d.Incomplete++
			}
		}
	}
	groups, bytes := 0, int64(0)
	if e.several() {
		groups, bytes = e.degraded()
	}
	canCure := groups > 0 && e.cureExists()
	e.rebuild.Lock()
	defer e.rebuild.Unlock()
	r := Rebuild{
		BlockGroups: groups + e.rebuild.groups, BlockGroupsDone: e.rebuild.groups,
		Bytes: bytes + e.rebuild.bytes, BytesDone: e.rebuild.bytes, Stuck: e.rebuild.stuck,
	}
	if groups == 0 {
		r = Rebuild{Stuck: e.rebuild.stuck}
	}
	r.Running = leaving || groups > 0 && slices.ContainsFunc(out, func(d DeviceInfo) bool { return d.State == DeviceOnline }) && canCure
	if groups > 0 && !r.Running && r.Stuck == "" {
		r.Stuck = "no device has room for the other copies: give the missing one again, or another in its place"
	}
	return out, r, nil
}

// cureExists reports whether there is a block group that the rebuild can do something for.
func (e *Engine) cureExists() bool {
	for slot := range e.slots() {
		if bg, _ := e.al.BlockGroup(uint32(slot)); bg.Live > 0 && e.curable(uint32(slot)) {
			return true
		}
	}
	return false
}

// AddDevice makes the device that Options.OpenDevice opens at path a part of the store; its zones take
// data from then on. It must be given at each later start. With two copies a block group needs zones
// on two devices: a single new device is used as block groups on the others become empty, and are made two
// with a zone each of the new one.
// Durable on return. Errors: DEVICE_MISMATCH (zone size, dialect), DEVICE_TOO_SMALL, IN_USE (it holds a
// store, without force), AlreadyExists (it is part of this store), ReadOnly, those of OpenDevice.
func (e *Engine) AddDevice(ctx context.Context, path string, force bool) (DeviceInfo, error) {
	m, err := e.admit(ctx, path, force, nil)
	if err != nil {
		return DeviceInfo{}, err
	}
	e.useSpares()
	return e.deviceInfo(m)
}

// ReplaceDevice adds the device at path and begins to move what lies on device number to it, from the
// device itself or from the other copy; then the old one is no part of the store any more. It answers
// when that has begun and goes on by itself, also after a restart: Devices says how far. Errors: as
// AddDevice, NotFound (no such device), Precondition (the new one has too few zones; another device is
// leaving).
func (e *Engine) ReplaceDevice(ctx context.Context, number uint32, path string, force bool) (DeviceInfo, error) {
	m, err := e.admit(ctx, path, force, &number)
	if err != nil {
		return DeviceInfo{}, err
	}
	e.closeOn(number)
	e.rebuild.kick.set()
	return e.deviceInfo(m)
}

// RemoveDevice begins to move what lies on the device to the others; then it is no part of the store
// any more. Errors: NotFound, Precondition (two copies need two other devices; another is leaving),
// NoSpace (the others cannot hold it: numbers).
func (e *Engine) RemoveDevice(ctx context.Context, number uint32) error {
	const op = "engine.RemoveDevice"
	if err := e.writable(op); err != nil {
		return err
	}
	others, room, err := e.roomWithout(number)
	if err != nil {
		return err
	}
	if others < e.copies {
		return errdefs.New(errdefs.Precondition, "", op, deviceName(number), fmt.Sprintf("%d copies need as many other devices, and there are %d: replace it instead", e.copies, others))
	}
	if u := e.al.Usage(); u.Used+u.Reserved > room {
		return errdefs.New(errdefs.NoSpace, errdefs.ReasonNoSpace, op, deviceName(number), fmt.Sprintf("the other devices hold %d bytes in all, and %d are stored", room, u.Used+u.Reserved))
	}
	if err := e.beginLeaving(ctx, number); err != nil {
		return err
	}
	e.closeOn(number)
	e.rebuild.kick.set()
	return nil
}

// roomWithout returns how many devices there are to put data on besides one, and how much they hold in all, in
// bytes, if their zones are paired anew.
func (e *Engine) roomWithout(number uint32) (others int, room int64, err error) {
	e.members.Lock()
	var rest []*member
	for n, m := range e.members.byNumber {
		if n != number && e.members.takesPlacesLocked(n) {
			rest = append(rest, m)
		}
	}
	e.members.Unlock()
	zones := map[uint32][]int{}
	for _, m := range rest {
		if zones[m.rec.Number], err = sparesOf(m.dev); err != nil {
			return 0, 0, err
		}
	}
	room = -e.al.KeptBack()
	for _, set := range pairZones(zones, e.copies) {
		size := e.geo.ZoneCapacity
		for _, p := range set {
			size = min(size, e.capacityOf([]array.Place{{Device: int(p.Device), Zone: int(p.Zone)}}))
		}
		room += size - alloc.HeaderSize
	}
	return len(rest), max(0, room), nil
}

// closeOn takes block groups on a device that take appends out of allocation.
func (e *Engine) closeOn(number uint32) {
	for slot := range e.slots() {
		if slices.ContainsFunc(e.dev.Places(slot), func(p array.Place) bool { return uint32(p.Device) == number }) {
			e.al.Suspect(uint32(slot))
		}
	}
	e.retireClosing()
}

// beginLeaving records that a device is to be emptied.
func (e *Engine) beginLeaving(ctx context.Context, number uint32) error {
	const op = "engine.leave"
	e.rebuild.turn <- struct{}{}
	defer func() { <-e.rebuild.turn }()
	rec, err := e.leavingRecord(op, number)
	if err != nil {
		return err
	}
	if err := e.group.Do(ctx, func(tx *store.Tx) error { return tx.PutDevice(rec) }); err != nil {
		return err
	}
	e.members.Lock()
	e.members.byNumber[number].rec = rec
	e.members.Unlock()
	return nil
}

// leavingRecord is the record of a device that begins to leave.
func (e *Engine) leavingRecord(op string, number uint32) (store.Device, error) {
	e.members.Lock()
	defer e.members.Unlock()
	m := e.members.byNumber[number]
	if m == nil {
		return store.Device{}, errdefs.New(errdefs.NotFound, "", op, deviceName(number), fmt.Sprintf("there is no device %d; `client device ls` lists them", number))
	}
	for _, o := range e.members.byNumber {
		if o.rec.Leaving {
			return store.Device{}, errdefs.New(errdefs.Precondition, "", op, deviceName(number), fmt.Sprintf("device %d is leaving; wait until it has left: `client device watch`", o.rec.Number))
		}
	}
	for slot := range e.geo.Conventional {
		if slices.ContainsFunc(e.dev.Places(slot), func(p array.Place) bool { return uint32(p.Device) == number }) {
			return store.Device{}, errdefs.New(errdefs.Precondition, "", op, deviceName(number), fmt.Sprintf("device %d has conventional zones with data, which is not moved: copy its files to another store", number))
		}
	}
	rec := m.rec
	rec.Leaving = true
	return rec, nil
}

// admit makes the device at path part of the store: checked, labelled, then recorded. replaces, unless nil, is
// the device that leaves for it, in the same transaction.
func (e *Engine) admit(ctx context.Context, path string, force bool, replaces *uint32) (m *member, err error) {
	const op = "engine.AddDevice"
	if err := e.writable(op); err != nil {
		return nil, err
	}
	if e.o.OpenDevice == nil {
		return nil, errdefs.New(errdefs.Precondition, "", op, path, "this engine opens no devices while it runs")
	}
	e.rebuild.turn <- struct{}{}
	defer func() { <-e.rebuild.turn }()
	var old store.Device
	if replaces != nil {
		if old, err = e.leavingRecord(op, *replaces); err != nil {
			return nil, err
		}
	}
	dev, err := e.o.OpenDevice(path)
	if errdefs.ReasonOf(err) == errdefs.ReasonInUse {
		// It does not pass by itself, so nobody is to try again.
		return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonInUse, op, path, errdefs.Sentence(err))
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			dev.Close()
		}
	}()
	if err := e.suits(op, path, dev, force); err != nil {
		return nil, err
	}
	spares, err := sparesOf(dev)
	if err != nil {
		return nil, err
	}
	if replaces != nil {
		if need := e.onDevice(*replaces); len(spares) < need {
			return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, path, fmt.Sprintf("%s has %d zones for data, and %d block groups have a place on device %d: give a device with as many", path, len(spares), need, *replaces))
		}
	}
	g := dev.Geometry()
	m = &member{path: path, dev: dev}
	if err := label.Erase(dev); err != nil {
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	var number uint32
	err = e.st.View(func(tx *store.Tx) error { number = max(1, tx.Superblock().NextDevice); return nil })
	if err != nil {
		return nil, err
	}
	m.rec = store.Device{Number: number, UUID: e.uuid, ZoneSize: g.ZoneSize, Zones: uint32(g.Zones), Dialect: uint8(g.Dialect), Conventional: uint32(g.Conventional)}
	if err := e.writeLabel(m, number+1); err != nil {
		return nil, err
	}
	if err := label.Mend(dev, e.labelOf(number, number+1, dev)); err != nil { // the other label zone has none
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	if m.rec.LabelGeneration == 0 {
		return nil, errdefs.New(errdefs.Device, errdefs.ReasonDeviceIO, op, path, path+" takes no label")
	}
	err = e.group.Do(ctx, func(tx *store.Tx) error {
		tx.SetSuperblock(func(s *store.Superblock) {
			s.NextDevice = number + 1
			s.Incompatible |= store.FeatureDevices
		})
		if replaces != nil {
			if err := tx.PutDevice(old); err != nil {
				return err
			}
		}
		return tx.PutDevice(m.rec)
	})
	if err != nil {
		return nil, err
	}
	if err := e.dev.AddMember(array.Member{Number: int(number), Device: dev}); err != nil {
		return nil, err
	}
	e.members.Lock()
	e.members.byNumber[number] = m
	e.members.spare[number] = spares
	if replaces != nil {
		e.members.byNumber[*replaces].rec = old
	}
	e.members.Unlock()
	e.rebuild.kick.set()
	return m, nil
}

// suits refuses a device that cannot be part of this store.
func (e *Engine) suits(op, path string, dev zone.Device, force bool) error {
	g := dev.Geometry()
	refuse := func(format string, a ...any) error {
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, op, path, path+" "+fmt.Sprintf(format, a...))
	}
	if err := CheckGeometry(g); err != nil {
		return err
	}
	own := e.geo
	lower := func(limit, have int) bool { return limit > 0 && (have == 0 || limit < have) }
	switch {
	case g.ZoneSize != own.ZoneSize || g.Dialect != own.Dialect:
		return refuse("has zones of %d bytes and dialect %v; all devices of a store have the same: %d and %v", g.ZoneSize, g.Dialect, own.ZoneSize, own.Dialect)
	case lower(g.MaxOpen, own.MaxOpen) || lower(g.MaxActive, own.MaxActive) || g.AppendLimit > 0 && (own.AppendLimit == 0 || g.AppendLimit < own.AppendLimit):
		return refuse("has lower limits (%d open and %d active zones, appends of %d bytes) than the store works with (%d, %d, %d)", g.MaxOpen, g.MaxActive, g.AppendLimit, own.MaxOpen, own.MaxActive, own.AppendLimit)
	}
	l, err := label.Read(dev)
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		return nil
	case err == nil && l.Store == e.uuid:
		e.members.Lock()
		m := e.members.byNumber[l.Device]
		e.members.Unlock()
		if m != nil && m.dev != nil && !m.failed {
			return errdefs.New(errdefs.AlreadyExists, "", op, path, fmt.Sprintf("%s is device %d of this store already", path, l.Device))
		}
	}
	if force {
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.New(errdefs.Precondition, errdefs.ReasonInUse, op, path, fmt.Sprintf("%s holds a part of store %s; to destroy that, force it", path, uuid.UUID(l.Store)))
}

func (e *Engine) deviceInfo(m *member) (DeviceInfo, error) {
	all, _, err := e.Devices()
	if err != nil {
		return DeviceInfo{}, err
	}
	for _, d := range all {
		if d.Number == m.rec.Number {
			return d, nil
		}
	}
	return DeviceInfo{}, errdefs.New(errdefs.NotFound, "", "engine.Devices", deviceName(m.rec.Number), "it has left already")
}
