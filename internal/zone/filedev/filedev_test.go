package filedev_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
	"github.com/shingle-store/shingle/internal/zone/zonetest"
)

// create makes a device file and opens it.
func create(t *testing.T, g zone.Geometry, o filedev.Options) (*filedev.Device, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	if err := filedev.Create(path, g, filedev.Options{}); err != nil {
		t.Fatal(err)
	}
	return reopen(t, path, o), path
}

func reopen(t *testing.T, path string, o filedev.Options) *filedev.Device {
	t.Helper()
	d, err := filedev.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestKeepsTheRules(t *testing.T) {
	for _, buffered := range []bool{false, true} {
		if buffered && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("buffered=%v", buffered), func(t *testing.T) {
			zonetest.Run(t, func(t *testing.T, g zone.Geometry) zone.Device {
				d, _ := create(t, g, filedev.Options{Buffered: buffered})
				if buffered && d.Direct() {
					t.Error("direct although told not to")
				}
				return d
			})
		})
	}
}

// A crash of the process is a Close without a Flush.
func TestSurvivesCrashes(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 8
	}
	zonetest.RunCrash(t, rounds, func(t *testing.T, g zone.Geometry) zonetest.Crasher {
		d, path := create(t, g, filedev.Options{})
		return zonetest.Crasher{Dev: d, TornReset: true, Crash: func(t *testing.T, _ *rand.Rand) zone.Device {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = reopen(t, path, filedev.Options{})
			return d
		}}
	})
}
