package engine

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// beginRun writes the labels of this run, then the start counter: so a label is never behind what the
// device's record says of it.
func (e *Engine) beginRun(members []*member, maps *bitmaps) error {
	for _, m := range members {
		if m.dev == nil {
			continue
		}
		if err := e.writeLabel(m, members[len(members)-1].rec.Number+1); err != nil {
			return err
		}
	}
	records := e.takeRecords()
	// It must be possible to open a store that is to be made room in.
	return e.st.UpdateFreeing(func(tx *store.Tx) error {
		tx.SetSuperblock(func(s *store.Superblock) {
			s.StartCounter, s.Clean, s.NodeIDLimit = e.starts, false, e.ids.next+idLease
		})
		for _, m := range members {
			if err := tx.PutDevice(m.rec); err != nil {
				return err
			}
		}
		if err := maps.put(tx); err != nil {
			return err
		}
		return e.putRecords(tx, records)
	})
}

// writeLabel writes the label of this run to a device and notes in its record which labels it has. above is
// greater than every device number. A device that cannot take it keeps the one that it has.
func (e *Engine) writeLabel(m *member, above uint32) error {
	failed := e.labelZoneFailed(m.rec.Number, m.dev)
	err := label.Write(m.dev, e.labelOf(m.rec.Number, above, m.dev))
	switch {
	case err == nil:
		m.rec.LabelGeneration = e.starts
		// Of the two labels that there were, one is left: if it cannot be read, one that is no older
		// than what the record says.
		if _, other, err := label.ReadBoth(m.dev); err == nil && other != 0 {
			m.rec.OtherLabel = other
		}
	case failed || errdefs.Is(err, errdefs.Device):
		// The label that can be read stays the device's; the record says which one that is. A label zone that
		// could not be finished must not keep an active zone from data.
		if serr := label.Settle(m.dev); serr != nil {
			e.o.Logger.Warn("a label zone may stay active", "device", m.rec.Number, "error", serr)
		}
		e.o.Logger.Warn("the label cannot be written", "device", m.rec.Number, "error", err)
		if !failed {
			e.cond.set(Condition{
				Reason: "LABEL_NOT_WRITTEN", Severity: Warning, Object: deviceName(m.rec.Number), Since: e.o.Now(),
				Message: fmt.Sprintf("the label of this start could not be written, so a stale copy of the device may not be recognised: %v", err),
			})
		}
	default:
		return err
	}
	return nil
}

// labelOf is the label of this run for a device.
func (e *Engine) labelOf(number, above uint32, dev zone.Device) label.Label {
	g := dev.Geometry()
	return label.Label{
		Store: e.uuid, Device: number, Devices: above, Generation: e.starts, ZoneSize: g.ZoneSize, Zones: g.Zones, Dialect: g.Dialect,
	}
}

// labelZoneFailed reports whether a label zone of a device takes no writes any more, and names it.
func (e *Engine) labelZoneFailed(number uint32, dev zone.Device) (failed bool) {
	a, b, err := label.Zones(dev.Geometry())
	if err != nil {
		return false
	}
	for _, z := range []int{a, b} {
		r, err := dev.Report(z, 1)
		if err != nil || r[0].Condition != zone.ReadOnly && r[0].Condition != zone.Offline {
			continue
		}
		failed = true
		e.report("LABEL_ZONE_FAILED", Warning, zoneName(number, z), fmt.Sprintf("zone %d, which holds a label, is %s: the label is not brought up to date any more, so a stale copy of the device may not be recognised", z, conditionWord(r[0].Condition)))
	}
	return failed
}
