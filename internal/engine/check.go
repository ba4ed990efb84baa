package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// Problem is something that Check found wrong.
type Problem struct {
	Object string // what it is about: "zone 17", "block group 3", "label", "metadata extents 00ab.."
	Msg    string // what is wrong with it, in a sentence
}

// String returns the problem in one line.
func (p Problem) String() string { return p.Object + ": " + p.Msg }

// CheckOptions say what to check.
type CheckOptions struct {
	Device       zone.Device // stays the caller's; only read
	Devices      []Device    // PLACEHOLDER, as Options.Devices
	MetadataPath string
	// MetadataLimit is as in Options; 0: its default.
	MetadataLimit int64
	// ReadData has every stored block read and held against its checksum.
	ReadData bool
}

// Check looks over a store that no engine has open: the metadata in itself (store.Check), the
// label and the device record against each other, every block group against its zone, and with
// ReadData every stored block against its checksum. It calls report for each problem and goes
// on; one damage may be reported from several sides. What a crash legally leaves, and Open mends,
// is no problem. Nothing on the device or in the metadata is changed. Memory is bounded by the
// number of block groups.
//
// The error is for a check that could not be finished: ctx's, those of store.Open (a metadata
// file damaged beyond opening is Corruption), and Device if the zones cannot be reported.
func Check(ctx context.Context, o CheckOptions, report func(Problem)) (err error) {
	const op = "engine.Check"
	if o.Device == nil && len(o.Devices) > 0 { // PLACEHOLDER
		o.Device = o.Devices[0].Device
	}
	c := &check{o: o, geo: o.Device.Geometry(), report: report}
	limits := Options{MetadataLimit: o.MetadataLimit}
	limits.setDefaults(c.geo)
	// NoSync: there is nothing to sync, and no space is set aside.
	c.st, err = store.Open(o.MetadataPath, store.Options{MaxBytes: limits.MetadataLimit, NoSync: true})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := c.st.Close(); err == nil {
			err = cerr
		}
	}()
	err = c.st.Check(ctx, func(p store.Problem) { c.problem("metadata "+p.Bucket+" "+p.Key, "%s", p.Msg) })
	if err != nil {
		return err
	}
	if c.zones, err = o.Device.Report(0, -1); err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "zone report", err)
	}
	return c.st.View(func(tx *store.Tx) error {
		c.super = tx.Superblock()
		if !c.device(tx) {
			return nil
		}
		if err := c.blockGroups(ctx, tx); err != nil || !o.ReadData {
			return err
		}
		return c.data(ctx, tx)
	})
}

// check is one run of Check.
type check struct {
	o      CheckOptions
	geo    zone.Geometry
	st     *store.Store
	super  store.Superblock
	zones  []zone.Zone
	groups map[uint32]checkedGroup // those whose zone is known and can be read
	report func(Problem)
}

func (c *check) problem(object, format string, a ...any) {
	c.report(Problem{Object: object, Msg: fmt.Sprintf(format, a...)})
}

// device holds the label, the superblock and the device record against each other and against
// the device. False: it is not the device of this metadata, and nothing on it means anything.
func (c *check) device(tx *store.Tx) (ours bool) {
	ours = true
	foreign := func(object, format string, a ...any) {
		ours = false
		c.problem(object, format+"; its zones were not checked", a...)
	}
	if c.super.ZoneSize != c.geo.ZoneSize {
		foreign("device", "its zones have %d bytes, the metadata is about zones of %d", c.geo.ZoneSize, c.super.ZoneSize)
	}
	d, err := tx.Device(0)
	switch {
	case err != nil:
		c.problem("device record", "it cannot be read: %v", err)
	case int(d.Zones) != c.geo.Zones || int(d.Conventional) != c.geo.Conventional || zone.Dialect(d.Dialect) != c.geo.Dialect:
		foreign("device", "it has %d zones, %d of them conventional, of dialect %d; the metadata says %d, %d and %d",
			c.geo.Zones, c.geo.Conventional, c.geo.Dialect, d.Zones, d.Conventional, d.Dialect)
	case d.LabelGeneration > c.super.StartCounter:
		c.problem("device record", "it is of start %d, the superblock of start %d", d.LabelGeneration, c.super.StartCounter)
	}
	l, other, err := label.ReadBoth(c.o.Device)
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		foreign("label", "the device holds no Shingle label: it is not the one that the metadata is about, or was erased")
	case err != nil:
		c.problem("label", "it cannot be read: %v", err)
	case l.Store != c.super.StoreUUID:
		foreign("label", "the device belongs to store %s, the metadata to store %s", uuid.UUID(l.Store), uuid.UUID(c.super.StoreUUID))
	case l.Device != 0 || l.Devices != 1:
		c.problem("label", "it is of device %d of %d, where there is only one", l.Device, l.Devices)
	case l.ZoneSize != c.geo.ZoneSize || l.Zones != c.geo.Zones || l.Dialect != c.geo.Dialect:
		c.problem("label", "it was written for %d zones of %d bytes and dialect %d; the device shows %d of %d and dialect %d",
			l.Zones, l.ZoneSize, l.Dialect, c.geo.Zones, c.geo.ZoneSize, c.geo.Dialect)
	case l.Generation >= d.OtherLabel && other == 0 && l.Generation < d.LabelGeneration:
		c.problem("label", "the one of start %d cannot be read; there is the one before it", d.LabelGeneration)
	case l.Generation < d.LabelGeneration:
		c.problem("label", "it is from start %d, the metadata from start %d: the device looks like an old copy", l.Generation, d.LabelGeneration)
	case l.Generation > c.super.StartCounter+1:
		c.problem("label", "it is from start %d, the metadata from start %d: the metadata looks like an old copy", l.Generation, c.super.StartCounter)
	}
	return ours
}
