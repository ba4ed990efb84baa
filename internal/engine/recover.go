package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// recover holds metadata and device against each other, mends what a crash legally leaves and
// names what it does not, and begins a new run.
func (e *Engine) recover(ctx context.Context) error {
	var super store.Superblock
	var dev store.Device
	var groups []store.BlockGroup
	maps := &bitmaps{words: map[uint32][]uint64{}, broken: map[uint32]error{}}
	err := e.st.View(func(tx *store.Tx) (err error) {
		super = tx.Superblock()
		if dev, err = tx.Device(0); err != nil {
			return err
		}
		return tx.BlockGroups(func(g store.BlockGroup) error {
			groups = append(groups, g)
			return maps.readBitmap(tx, g)
		})
	})
	if err != nil {
		return err
	}
	e.uuid, e.starts = super.StoreUUID, super.StartCounter+1
	e.codec = super.DefaultCompression
	if e.o.Compression != nil {
		e.codec = *e.o.Compression
	}
	e.ids.next = super.NodeIDLimit
	if err := e.checkDevice(super, dev); err != nil {
		return err
	}
	zones, err := e.dev.Report(0, -1)
	if err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Open", "zone report", err)
	}
	e.zones = make([]int, len(groups))
	recovered := make([]alloc.BlockGroup, len(groups))
	for i, g := range groups {
		if int(g.Slot) != i || len(g.Places) != 1 || int(g.Places[0].Zone) >= len(zones) ||
			e.geo.IsSequential(int(g.Places[0].Zone)) == (g.Kind == store.KindConventional) {
			return errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, "engine.Open", fmt.Sprintf("block group %d", g.Slot), "the record does not fit the device")
		}
		e.zones[i] = int(g.Places[0].Zone)
		if g.Kind == store.KindConventional {
			recovered[i] = e.recoverConventional(g, zones[e.zones[i]], maps)
			continue
		}
		if recovered[i], err = e.recoverGroup(g, zones[e.zones[i]]); err != nil {
			return err
		}
	}
	if err := e.makeRoomForLabel(recovered, zones); err != nil {
		return err
	}
	e.reportMended(maps)
	budget, own := zoneBudget(e.geo)
	e.al, err = alloc.New(alloc.Options{
		BlockGroups: recovered, Bitmaps: maps.words, MaxActive: budget, RelocationActive: own,
		Reserve: super.RelocationReserve, Watch: e.watchGroup,
	})
	if err != nil {
		return err
	}
	e.reclaimDefaults(recovered)
	if !e.st.ReadOnly() {
		if err := e.beginRun(dev, maps); err != nil {
			return err
		}
		if err := e.finishCuts(); err != nil {
			return err
		}
	}
	if !super.Clean {
		e.o.Logger.Info("the store was not closed in order; recovered", "conditions", len(e.Conditions()))
	}
	return nil
}

// zoneBudget is how many zones data may hold active, and relocation besides: the smaller of the
// device's limits, of which one is for labels at open and for relocation later; data 0: no limit.
// Where the device has one active zone in all, data and relocation share it. Staying under the open
// limit too means that the device never has to close one zone to open another.
func zoneBudget(g zone.Geometry) (data, relocation int) {
	n := g.MaxActive
	if g.MaxOpen > 0 && (n == 0 || g.MaxOpen < n) {
		n = g.MaxOpen
	}
	if n == 1 {
		return 1, 0
	}
	return max(0, n-1), 1
}

// checkDevice refuses a device that is not the one the metadata is about.
func (e *Engine) checkDevice(super store.Superblock, dev store.Device) error {
	refuse := func(format string, a ...any) error {
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.Open", "device", fmt.Sprintf(format, a...))
	}
	l, other, err := label.ReadBoth(e.dev)
	if errdefs.Is(err, errdefs.NotFound) {
		return refuse("the device holds no Shingle label, but the metadata %s belongs to store %s: give the right --device, or restore the device", e.o.MetadataPath, uuid.UUID(super.StoreUUID))
	} else if err != nil {
		return err
	}
	switch {
	case l.Store != super.StoreUUID:
		return refuse("the device belongs to store %s, the metadata to store %s: give the --device and --data that belong together", uuid.UUID(l.Store), uuid.UUID(super.StoreUUID))
	case l.Device != dev.Number:
		return refuse("the device is number %d of its store, number %d is wanted", l.Device, dev.Number)
	case l.ZoneSize != e.geo.ZoneSize || l.Zones != e.geo.Zones || l.Dialect != e.geo.Dialect:
		return refuse("the device was formatted with %d zones of %d bytes and shows %d of %d: it was moved to other hardware or opened with another geometry: give the --device it was formatted as", l.Zones, l.ZoneSize, e.geo.Zones, e.geo.ZoneSize)
	case l.Generation >= dev.OtherLabel && other == 0 && l.Generation < dev.LabelGeneration:
		e.cond.set(Condition{
			Reason: "LABEL_DAMAGED", Severity: Warning, Object: "devices/0", Since: e.o.Now(),
			Message: fmt.Sprintf("the label of start %d cannot be read; the one before it was taken, and a new one written over the damage", dev.LabelGeneration),
		})
	case l.Generation < dev.LabelGeneration && !e.labelZoneFailed():
		return refuse("the device is stale: its label is from start %d, the metadata from start %d; it looks like an old copy of the device: put the latest one back", l.Generation, dev.LabelGeneration)
	case l.Generation > super.StartCounter+1:
		return refuse("the metadata is stale: it is from start %d, the device from start %d; it looks like an old copy of the metadata: put the latest one back", super.StartCounter, l.Generation)
	}
	return nil
}

// recoverGroup holds one block group against its zone: the four cases of a write pointer that
// does not agree (docs/reliability.md), and zones that failed.
func (e *Engine) recoverGroup(g store.BlockGroup, z zone.Zone) (alloc.BlockGroup, error) {
	bg := alloc.BlockGroup{
		Slot: g.Slot, Zone: z.Index, Capacity: g.Capacity, AllocOffset: g.AllocOffset, Live: g.LiveBytes,
		Generation: g.Generation, Class: alloc.Class(g.Class),
	}
	wp := min(z.WP, g.Capacity)
	switch z.Condition {
	case zone.ReadOnly, zone.Offline:
		bg.State = alloc.Quarantined
		if z.Condition == zone.ReadOnly {
			bg.State = alloc.ReadOnly
		}
		e.report("ZONE_FAILED", Error, z.Index, fmt.Sprintf("zone %d is %s; %d live bytes lie in it", z.Index, conditionWord(z.Condition), g.LiveBytes))
		return bg, nil
	case zone.Full:
		wp = g.Capacity
	}
	if g.Flags&store.BGReadOnly != 0 {
		bg.State = alloc.ReadOnly
		e.report("ZONE_FAILED", Warning, z.Index, fmt.Sprintf("zone %d could not be read in part and is not written to any more; %d live bytes lie in it", z.Index, g.LiveBytes))
		return bg, nil
	}
	if g.LiveBytes == 0 {
		return bg, e.recoverDead(&bg, g, z, wp)
	}
	if wp < g.AllocOffset {
		end, err := e.liveEnd(g.Slot)
		if err != nil {
			return bg, err
		}
		if end > wp {
			bg.State = alloc.ReadOnly
			e.report("DATA_LOSS", Error, z.Index, fmt.Sprintf("the write pointer of zone %d is at %d, but data lies up to %d in block group %d: what is above is lost; the block group is read-only", z.Index, wp, end, g.Slot))
			return bg, nil
		}
		e.report("WRITE_POINTER_BEHIND", Info, z.Index, fmt.Sprintf("the write pointer of zone %d is at %d, the metadata says %d; nothing lives above it", z.Index, wp, g.AllocOffset))
	} else if wp > g.AllocOffset && (z.Condition != zone.Full || g.Flags&store.BGFinished == 0) {
		e.report("WRITE_POINTER_AHEAD", Info, z.Index, fmt.Sprintf("the write pointer of zone %d is at %d, the metadata says %d; the tail is unusable", z.Index, wp, g.AllocOffset))
	}
	bg.AllocOffset = wp
	bg.State = alloc.Active
	if z.Condition == zone.Full || wp >= g.Capacity {
		bg.State = alloc.Full
	}
	return bg, nil
}

// recoverDead handles a block group with nothing live: it is empty, or was reset and the record
// did not follow, or holds only what is dead or was never committed. Whatever it holds may be of
// another generation than the record's, so it is reset rather than gone on with.
func (e *Engine) recoverDead(bg *alloc.BlockGroup, g store.BlockGroup, z zone.Zone, wp int64) error {
	if wp == 0 && g.AllocOffset == 0 {
		bg.State = alloc.Empty
		if g.Trimmed() {
			e.trimmed.recovered(g.Slot)
		}
		return nil
	}
	if wp > 0 {
		e.report("WRITE_POINTER_AHEAD", Info, z.Index, fmt.Sprintf("zone %d holds %d bytes and nothing that lives; it was reset", z.Index, wp))
		if e.st.ReadOnly() {
			bg.State, bg.AllocOffset = alloc.Full, g.Capacity
			return nil
		}
		if err := e.dev.Reset(z.Index); err != nil {
			bg.State = alloc.Quarantined
			e.report("ZONE_FAILED", Warning, z.Index, fmt.Sprintf("zone %d cannot be reset and is not used: %v", z.Index, err))
			return nil
		}
	}
	bg.State, bg.AllocOffset = alloc.Empty, 0
	bg.Generation++
	e.note(g.Slot, bgRecord{generation: bg.Generation})
	return nil
}

// liveEnd returns the end of the last extent in the slot, in bytes from the zone's start.
func (e *Engine) liveEnd(slot uint32) (end int64, err error) {
	err = e.st.View(func(tx *store.Tx) error {
		last, ok, err := tx.LastExtent(e.addr(slot, 0), e.addr(slot+1, 0))
		if ok {
			_, end = e.split(last.Addr)
			end += last.Blocks * extent.BlockSize
		}
		return err
	})
	return end, err
}

func (e *Engine) report(reason string, s Severity, z int, msg string) {
	c := Condition{Reason: reason, Severity: s, Object: fmt.Sprintf("devices/0/zones/%d", z), Message: msg, Since: e.o.Now()}
	if reason == "DATA_LOSS" {
		c.Advice = "run `engine check` for the files; restore them from another source"
	}
	e.cond.set(c)
}

// makeRoomForLabel finishes a zone when the device has no active slot left for the label: with
// limit 1, or when a crash left more zones active than the budget.
func (e *Engine) makeRoomForLabel(groups []alloc.BlockGroup, zones []zone.Zone) error {
	if e.geo.MaxActive == 0 && e.geo.MaxOpen == 0 || e.st.ReadOnly() {
		return nil
	}
	budget, _ := zoneBudget(e.geo)
	if m := max(e.geo.MaxActive, e.geo.MaxOpen); m == 1 {
		budget = 0
	}
	active := 0
	for i := range groups {
		switch zones[e.zones[i]].Condition {
		case zone.ImplicitOpen, zone.ExplicitOpen, zone.Closed:
		default:
			continue
		}
		if st := groups[i].State; st == alloc.ReadOnly || st == alloc.Quarantined {
			// Not one that has lost its tail: finished, it would read as zeros there, and not as lost.
			if groups[i].AllocOffset <= zones[e.zones[i]].WP {
				e.giveSlotBack(e.zones[i])
			}
			continue
		}
		if groups[i].State != alloc.Active {
			continue // reset above
		}
		if active++; active <= budget {
			continue
		}
		if err := e.dev.Finish(e.zones[i]); err != nil {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Open", fmt.Sprintf("finish of zone %d", e.zones[i]), err)
		}
		groups[i].State = alloc.Full
		e.note(groups[i].Slot, bgRecord{finished: true})
	}
	return nil
}

// giveSlotBack finishes a zone that is not written to any more, so that it does not keep one of the
// device's active zones from those that are. Where that fails, the device has one less.
func (e *Engine) giveSlotBack(z int) {
	if err := e.dev.Finish(z); err != nil {
		e.o.Logger.Warn("a zone that is not used any more cannot be finished, and may stay active", "zone", z, "error", err)
	}
}

// beginRun writes the label of this run, then the start counter: so the label is never behind what
// the device's record says of it.
func (e *Engine) beginRun(dev store.Device, maps *bitmaps) error {
	failed := e.labelZoneFailed()
	err := label.Write(e.dev, label.Label{
		Store: e.uuid, Device: 0, Devices: 1, Generation: e.starts, ZoneSize: e.geo.ZoneSize, Zones: e.geo.Zones, Dialect: e.geo.Dialect,
	})
	switch {
	case err == nil:
		dev.LabelGeneration = e.starts
		// Of the two labels that there were, one is left: if it cannot be read, one that is no older
		// than what the record says.
		if _, other, err := label.ReadBoth(e.dev); err == nil && other != 0 {
			dev.OtherLabel = other
		}
	case failed || errdefs.Is(err, errdefs.Device):
		// The label that can be read stays the device's; the record says which one that is.
		e.o.Logger.Warn("the label cannot be written", "error", err)
		if !failed {
			e.cond.set(Condition{
				Reason: "LABEL_NOT_WRITTEN", Severity: Warning, Object: "devices/0", Since: e.o.Now(),
				Message: fmt.Sprintf("the label of this start could not be written, so a stale copy of the device may not be recognised: %v", err),
			})
		}
	default:
		return err
	}
	records := e.takeRecords()
	// It must be possible to open a store that is to be made room in.
	return e.st.UpdateFreeing(func(tx *store.Tx) error {
		tx.SetSuperblock(func(s *store.Superblock) {
			s.StartCounter, s.Clean, s.NodeIDLimit = e.starts, false, e.ids.next+idLease
		})
		if err := tx.PutDevice(dev); err != nil {
			return err
		}
		if err := maps.put(tx); err != nil {
			return err
		}
		return e.putRecords(tx, records)
	})
}

// labelZoneFailed reports whether a label zone takes no writes any more, and names it.
func (e *Engine) labelZoneFailed() (failed bool) {
	a, b, err := label.Zones(e.geo)
	if err != nil {
		return false
	}
	for _, z := range []int{a, b} {
		r, err := e.dev.Report(z, 1)
		if err != nil || r[0].Condition != zone.ReadOnly && r[0].Condition != zone.Offline {
			continue
		}
		failed = true
		e.report("LABEL_ZONE_FAILED", Warning, z, fmt.Sprintf("zone %d, which holds a label, is %s: the label is not brought up to date any more, so a stale copy of the device may not be recognised", z, conditionWord(r[0].Condition)))
	}
	return failed
}

func conditionWord(c zone.Condition) string {
	if c == zone.ReadOnly {
		return "read-only"
	}
	return "offline"
}
