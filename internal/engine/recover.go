package engine

import (
	"context"
	"fmt"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// recover holds metadata and device against each other, mends what a crash legally leaves and
// names what it does not, and begins a new run.
func (e *Engine) recover(ctx context.Context) error {
	var super store.Superblock
	var devices []store.Device
	var groups []store.BlockGroup
	maps := &bitmaps{words: map[uint32][]uint64{}, broken: map[uint32]error{}}
	err := e.st.View(func(tx *store.Tx) (err error) {
		super = tx.Superblock()
		err = tx.Devices(func(d store.Device) error {
			devices = append(devices, d)
			return nil
		})
		if err != nil {
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
	e.copies = max(1, int(super.Copies))
	members, err := e.matchDevices(super, devices)
	if err != nil {
		return err
	}
	if err := e.assemble(members, groups); err != nil {
		return err
	}
	if err := e.lookForMissing(members, groups); err != nil {
		return err
	}
	if err := e.distrust(members, groups); err != nil {
		return err
	}
	e.sizeUp()
	if err := e.findSpares(groups); err != nil {
		return err
	}
	if err := e.finishUnused(members, groups); err != nil {
		return err
	}
	zones, err := e.dev.Report(0, -1)
	if err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Open", "zone report", err)
	}
	recovered := make([]alloc.BlockGroup, len(groups))
	for i, g := range groups {
		switch {
		case g.Capacity == 0:
			recovered[i] = alloc.BlockGroup{Slot: g.Slot, Zone: -1, Generation: g.Generation, State: alloc.Quarantined}
		case g.Kind == store.KindConventional:
			recovered[i] = e.recoverConventional(g, zones[i], maps)
		default:
			if recovered[i], err = e.recoverGroup(g, zones[i]); err != nil {
				return err
			}
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
		if err := e.beginRun(members, maps); err != nil {
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

// recoverGroup holds one block group against its zone: the four cases of a write pointer that
// does not agree (docs/reliability.md), and zones that failed.
func (e *Engine) recoverGroup(g store.BlockGroup, z zone.Zone) (alloc.BlockGroup, error) {
	bg := alloc.BlockGroup{
		Slot: g.Slot, Zone: e.zoneOf(g.Slot), Capacity: g.Capacity, AllocOffset: g.AllocOffset, Live: g.LiveBytes,
		Generation: g.Generation, Class: alloc.Class(g.Class),
	}
	if e.dev.Copies(int(g.Slot)) == 0 && g.LiveBytes == 0 && !e.renewable(g.Slot) {
		bg.State = alloc.Quarantined // until its device is there again
		return bg, nil
	}
	if g.LiveBytes > 0 && !e.st.ReadOnly() {
		if err := e.levelPlaces(&g, &z); err != nil {
			return bg, err
		}
	}
	wp := min(z.WP, g.Capacity)
	switch z.Condition {
	case zone.ReadOnly, zone.Offline:
		bg.State = alloc.Quarantined
		if z.Condition == zone.ReadOnly {
			bg.State = alloc.ReadOnly
		}
		e.report("ZONE_FAILED", Error, e.placeName(g.Slot), fmt.Sprintf("zone %d is %s; %d live bytes lie in it", e.zoneOf(g.Slot), conditionWord(z.Condition), g.LiveBytes))
		return bg, nil
	case zone.Full:
		wp = g.Capacity
	}
	if g.Flags&store.BGReadOnly != 0 {
		bg.State = alloc.ReadOnly
		e.report("ZONE_FAILED", Warning, e.placeName(g.Slot), fmt.Sprintf("zone %d could not be read in part and is not written to any more; %d live bytes lie in it", e.zoneOf(g.Slot), g.LiveBytes))
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
			e.report("DATA_LOSS", Error, e.placeName(g.Slot), fmt.Sprintf("the write pointer of zone %d is at %d, but data lies up to %d in block group %d: what is above is lost; the block group is read-only", e.zoneOf(g.Slot), wp, end, g.Slot))
			return bg, nil
		}
		e.report("WRITE_POINTER_BEHIND", Info, e.placeName(g.Slot), fmt.Sprintf("the write pointer of zone %d is at %d, the metadata says %d; nothing lives above it", e.zoneOf(g.Slot), wp, g.AllocOffset))
	} else if wp > g.AllocOffset && (z.Condition != zone.Full || g.Flags&store.BGFinished == 0) {
		e.report("WRITE_POINTER_AHEAD", Info, e.placeName(g.Slot), fmt.Sprintf("the write pointer of zone %d is at %d, the metadata says %d; the tail is unusable", e.zoneOf(g.Slot), wp, g.AllocOffset))
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
	renew := e.renewable(g.Slot) && !e.st.ReadOnly()
	if wp == 0 && g.AllocOffset == 0 && !renew {
		bg.State = alloc.Empty
		if g.Trimmed() {
			e.trimmed.recovered(g.Slot)
		}
		return nil
	}
	if wp > 0 || renew {
		if wp > 0 {
			e.report("WRITE_POINTER_AHEAD", Info, e.placeName(g.Slot), fmt.Sprintf("zone %d holds %d bytes and nothing that lives; it was reset", e.zoneOf(g.Slot), wp))
		}
		if e.st.ReadOnly() {
			bg.State, bg.AllocOffset = alloc.Full, g.Capacity
			return nil
		}
		capacity, err := e.renewPlaces(g.Slot, g.Capacity, nil)
		if bg.Capacity = capacity; err != nil || capacity == 0 {
			bg.State, bg.AllocOffset = alloc.Quarantined, 0
			e.note(g.Slot, bgRecord{generation: bg.Generation + 1, places: e.recordedPlaces(g.Slot), capacity: recordedCapacity(capacity)})
			return err
		}
		bg.Zone = e.zoneOf(g.Slot)
		if err := e.dev.Reset(int(g.Slot)); err != nil {
			bg.State = alloc.Quarantined
			e.report("ZONE_FAILED", Warning, e.placeName(g.Slot), fmt.Sprintf("zone %d cannot be reset and is not used: %v", e.zoneOf(g.Slot), err))
			return nil
		}
	}
	bg.State, bg.AllocOffset = alloc.Empty, 0
	bg.Generation++
	e.note(g.Slot, bgRecord{generation: bg.Generation, places: e.recordedPlaces(g.Slot), capacity: bg.Capacity})
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

func (e *Engine) report(reason string, s Severity, object, msg string) {
	c := Condition{Reason: reason, Severity: s, Object: object, Message: msg, Since: e.o.Now()}
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
		switch zones[i].Condition {
		case zone.ImplicitOpen, zone.ExplicitOpen, zone.Closed:
		case zone.ReadOnly:
			if e.dev.Copies(i) > 1 { // the zone of the other copy may be a good one, and active
				e.giveSlotBack(uint32(i))
			}
			continue
		default:
			continue
		}
		if st := groups[i].State; st == alloc.ReadOnly || st == alloc.Quarantined {
			// Not one that has lost its tail: finished, it would read as zeros there, and not as lost.
			if groups[i].AllocOffset <= zones[i].WP {
				e.giveSlotBack(uint32(i))
			}
			continue
		}
		if groups[i].State != alloc.Active {
			continue // reset above
		}
		if active++; active <= budget {
			continue
		}
		if err := e.dev.Finish(i); err != nil {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Open", "finish of "+e.placeName(uint32(i)), err)
		}
		groups[i].State = alloc.Full
		e.note(groups[i].Slot, bgRecord{finished: true})
	}
	return nil
}

// giveSlotBack finishes a zone that is not written to any more, so that it does not keep one of the
// device's active zones from those that are. Where that fails, the device has one less.
func (e *Engine) giveSlotBack(slot uint32) {
	if err := e.dev.Finish(int(slot)); err != nil {
		e.o.Logger.Warn("a zone that is not used any more cannot be finished, and may stay active", "place", e.placeName(slot), "error", err)
	}
}

func conditionWord(c zone.Condition) string {
	if c == zone.ReadOnly {
		return "read-only"
	}
	return "offline"
}
