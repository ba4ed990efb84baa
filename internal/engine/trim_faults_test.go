package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// One zone that fails does not stop the others; the next trim tries it again, or knows it as lost.
func TestTrimOfFailingZones(t *testing.T) {
	b := newFaultBench(t, trimZNS, Options{})
	e := b.open()
	put(t, e, "a", noise(1, 300_000))
	slot, _ := e.split(pieces(t, e, "a")[0].Addr)
	put(t, e, "keep", noise(2, 1<<20))
	groups, capacity := uint64(e.slots()), uint64(trimZNS.ZoneCapacity)
	b.fault.FailCommand(zone.OpRelease, e.zoneOf(9), false)
	b.fault.FailCommand(zone.OpRelease, e.zoneOf(12), false)
	r := trimAll(t, e)
	if r.State != trim.CompleteWithErrors || r.FailedZones != 2 || r.Failed != 2*capacity || r.Trimmed == 0 || r.FirstError == nil {
		t.Fatalf("%+v", r)
	}
	if !strings.Contains(r.FirstError.Error(), fmt.Sprintf("zone %d", e.zoneOf(9))) {
		t.Errorf("the first error is %v", r.FirstError)
	}
	if r := trimAll(t, e); r.State != trim.Complete || r.Trimmed != 2*capacity {
		t.Fatalf("the trim after it: %+v", r)
	}

	put(t, e, "fill", noise(3, 2<<20))
	b.fault.FailCommand(zone.OpReset, e.zoneOf(slot), true)
	deleteFile(t, e, "fill")
	deleteFile(t, e, "a")
	deleteFile(t, e, "keep")
	eventually(t, "all is dead", func() bool { return e.orphans.Load() == 0 })
	trimAll(t, e) // or the resetter was first
	if r := trimAll(t, e); r.State != trim.Complete || r.Trimmed != 0 || r.Quarantined != capacity || r.AlreadyTrimmed != (groups-1)*capacity {
		t.Fatalf("with a zone that cannot be reset: %+v", r)
	}
	if _, ok := condition(e, "ZONE_FAILED", e.zoneOf(slot)); !ok {
		t.Error("the zone that cannot be reset is not reported")
	}
}

// A device without a discard is no error: resets work, and of an empty zone it need not be told.
func TestTrimWithoutDiscard(t *testing.T) {
	for name, wrap := range map[string]func(zone.Device) zone.Device{
		"none":              func(d zone.Device) zone.Device { return keep{d} },
		"passed on to none": func(d zone.Device) zone.Device { return faultdev.New(keep{d}, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			mem, err := zone.NewMem(trimZNS, zone.MemOptions{})
			if err != nil {
				t.Fatal(err)
			}
			b := newBenchOn(t, wrap(mem), Options{})
			e := b.open()
			put(t, e, "a", noise(1, 300_000))
			deleteFile(t, e, "a")
			r := trimAll(t, e)
			if r.State != trim.Complete || r.ZonesReset != 1 || r.Failed+r.Unsupported != 0 {
				t.Fatalf("%+v", r)
			}
			if r := trimAll(t, e); r.Trimmed != 0 {
				t.Fatalf("again: %+v", r)
			}
		})
	}
}

// After a flush that failed nobody knows what the device has: it is told again.
func TestTrimAfterAFailedFlush(t *testing.T) {
	b := newFaultBench(t, trimZNS, Options{})
	e := b.open()
	put(t, e, "a", noise(1, 300_000))
	b.fault.FailFlush(1, false)
	first := trimAll(t, e)
	if n := len(onRecord(t, e)); n != 0 {
		t.Fatalf("%d block groups are on record as trimmed, and the flush failed", n)
	}
	if r := trimAll(t, e); r.Trimmed < first.Trimmed {
		t.Fatalf("%+v, before %+v", r, first)
	}
	if r := trimAll(t, e); r.Trimmed != 0 {
		t.Fatalf("%+v", r)
	}
	sameFile(t, e, "a", noise(1, 300_000))
}
