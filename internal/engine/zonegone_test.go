package engine

import (
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// TestReadOfAFailedZone: a zone that went offline or read-only is noticed by the first read that it
// refuses, and not only by an append: it is named, quarantined, and takes nothing more. What was
// appended to it and is not committed goes elsewhere.
func TestReadOfAFailedZone(t *testing.T) {
	for _, to := range []zone.Condition{zone.Offline, zone.ReadOnly} {
		modes(t, func(t *testing.T, o Options) {
			b := newFaultBench(t, faultZNS, o)
			e := b.open()
			put(t, e, "f", noise(1, 50_000))
			z, _ := e.at(pieces(t, e, "f")[0], 0)
			before := e.Usage()
			if err := b.mem.SetCondition(z, to); err != nil {
				t.Fatal(err)
			}
			fail := b.failing(zone.OpRead)
			for range 2 {
				_, err := tryRead(e, "f", 0, nil)
				wantError(t, err, errdefs.Corruption, errdefs.ReasonDeviceIO)
				wantCondition(t, e, "ZONE_FAILED", Error, z)
				checkIdentity(t, e)
			}
			fail.on.Store(false)
			if u := e.Usage(); u.Quarantined <= before.Quarantined {
				t.Errorf("quarantined were %d bytes and are %d", before.Quarantined, u.Quarantined)
			}
			data := noise(2, 300_000)
			put(t, e, "new", data)
			sameFile(t, e, "new", data)
			if inZone(e, pieces(t, e, "new"), z) || b.fault.Counts().FailedAppends != 0 {
				t.Errorf("new data was sent to zone %d", z)
			}
			deleteFile(t, e, "f")
			checkQuiet(t, e)
		})
	}
}
