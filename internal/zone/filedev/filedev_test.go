package filedev_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
	"github.com/shingle-store/shingle/internal/zone/zonetest"
)

// create makes a device file and opens it.
func create(t *testing.T, g zone.Geometry) (*filedev.Device, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	if err := filedev.Create(path, g, filedev.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return reopen(t, path), path
}

func reopen(t *testing.T, path string) *filedev.Device {
	t.Helper()
	d, err := filedev.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// blanks copies new device files instead of making them, which costs three syncs each.
type blanks map[zone.Geometry]string

// path returns that of a new device file.
func (b blanks) path(t *testing.T, g zone.Geometry, dir string) string {
	t.Helper()
	blank := b[g]
	if blank == "" {
		blank = filepath.Join(dir, fmt.Sprint("blank", len(b)))
		if err := filedev.Create(blank, g, filedev.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b[g] = blank
	}
	st, err := os.Stat(blank)
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 1<<20)
	f, err := os.Open(blank)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, head); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "device")
	if err := errors.Join(os.WriteFile(path, head, 0o600), os.Truncate(path, st.Size())); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKeepsTheRules(t *testing.T) {
	for _, buffered := range []bool{false, true} {
		if buffered && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("buffered=%v", buffered), func(t *testing.T) {
			b, dir := blanks{}, t.TempDir()
			zonetest.Run(t, func(t *testing.T, g zone.Geometry) zone.Device {
				open := filedev.Open
				if buffered {
					open = filedev.OpenBuffered
				}
				d, err := open(b.path(t, g, dir))
				if err != nil {
					t.Fatal(err)
				}
				if buffered && d.Direct() {
					t.Error("direct although it cannot be")
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
		d, path := create(t, g)
		return zonetest.Crasher{Dev: d, TornReset: true, Crash: func(t *testing.T, _ *rand.Rand) zone.Device {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = reopen(t, path)
			return d
		}}
	})
}
