package zone_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/zonetest"
)

func newMem(t *testing.T, g zone.Geometry, o zone.MemOptions) *zone.Mem {
	t.Helper()
	d, err := zone.NewMem(g, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestMemKeepsTheRules(t *testing.T) {
	zonetest.Run(t, func(t *testing.T, g zone.Geometry) zone.Device {
		return newMem(t, g, zone.MemOptions{})
	})
}

func TestMemSurvivesCrashes(t *testing.T) {
	for _, garbage := range []bool{false, true} {
		t.Run(fmt.Sprintf("garbage=%v", garbage), func(t *testing.T) {
			rounds := 150
			if testing.Short() {
				rounds = 40
			}
			zonetest.RunCrash(t, rounds, func(t *testing.T, g zone.Geometry) zonetest.Crasher {
				d := newMem(t, g, zone.MemOptions{Garbage: garbage})
				return zonetest.Crasher{Dev: d, Garbage: garbage, Crash: func(t *testing.T, rng *rand.Rand) zone.Device {
					d.CutPower()
					if err := d.Flush(); !errors.Is(err, zone.ErrPowerLost) {
						t.Fatalf("flush without power: %v", err)
					}
					d.PowerOn(rng)
					return d
				}}
			})
		})
	}
}
