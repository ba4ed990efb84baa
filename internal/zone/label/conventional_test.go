package label_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

var disk = zone.Geometry{Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 4, Conventional: 4}

func onDisk(generation uint64) label.Label {
	l := sample(generation)
	l.Dialect, l.Zones = zone.SMR, disk.Zones
	return l
}

// onlyWrites fails the test for every command that a conventional zone does not know.
func onlyWrites(t *testing.T, d *zone.Mem) {
	t.Helper()
	if s := d.Stats(); s.Appends != 0 || s.Opens != 0 || s.Closes != 0 || s.Finishes != 0 || s.Resets != 0 {
		t.Errorf("conventional zones got sequential commands: %+v", s)
	}
}

func TestConventionalLabelsAlternate(t *testing.T) {
	d := newMem(t, disk)
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.NotFound) {
		t.Fatalf("a new device: %v", err)
	}
	for g := uint64(1); g < 6; g++ {
		before := d.Stats().Writes
		for range 2 { // the second finds it there
			if err := label.Write(d, onDisk(g)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := label.Read(d); err != nil || got != onDisk(g) {
			t.Fatalf("after writing %d: %+v, %v", g, got, err)
		}
		if n := d.Stats().Writes - before; n != 1 {
			t.Errorf("label %d took %d writes", g, n)
		}
	}
	for z, want := range []uint64{5, 4} {
		b := make([]byte, blk)
		if err := d.ReadAt(z, 0, b); err != nil {
			t.Fatal(err)
		}
		if l, err := label.DecodeLabel(b); err != nil || l.Generation != want {
			t.Errorf("zone %d holds generation %d, want %d (%v)", z, l.Generation, want, err)
		}
	}
	if err := label.Write(d, onDisk(4)); !errdefs.Is(err, errdefs.Precondition) {
		t.Errorf("generation 4 after 5: %v", err)
	}
	if err := label.Erase(d); err != nil {
		t.Fatal(err)
	}
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("after Erase: %v", err)
	}
	if err := label.Write(d, onDisk(2)); err != nil {
		t.Errorf("a low generation after Erase: %v", err)
	}
	onlyWrites(t, d)
}

// A device that was used for something else holds anything, in the label blocks too.
func TestForeignContentIsNoLabel(t *testing.T) {
	d := newMem(t, disk)
	junk := make([]byte, blk)
	for i := range junk {
		junk[i] = byte(i * 7)
	}
	for z := range 2 {
		if err := d.Write(z, 0, [][]byte{junk}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("foreign content: %v", err)
	}
	if err := label.Write(d, onDisk(1)); err != nil {
		t.Fatal(err)
	}
	if got, err := label.Read(d); err != nil || got.Generation != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A block torn by a power cut inside it has a bad checksum; the label before it is taken.
func TestTornConventionalLabel(t *testing.T) {
	d := newMem(t, disk)
	for g := uint64(1); g <= 3; g++ {
		if err := label.Write(d, onDisk(g)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Corrupt(0, 1000, 96); err != nil { // holds 3
		t.Fatal(err)
	}
	if got, err := label.Read(d); err != nil || got.Generation != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := label.Write(d, onDisk(4)); err != nil { // goes over the torn one
		t.Fatal(err)
	}
	if err := d.Corrupt(0, 1000, 96); err != nil {
		t.Fatal(err)
	}
	if got, err := label.Read(d); err != nil || got.Generation != 2 {
		t.Fatalf("the good one was written over: %+v, %v", got, err)
	}
}

// The power fails before and after every operation of Write: the old label or the new one is there,
// the new one if Write had succeeded.
func TestConventionalWriteSurvivesPowerCuts(t *testing.T) {
	const have = 5
	for _, after := range []bool{false, true} {
		for at, done := uint64(0), false; !done; at++ {
			for seed := range uint64(20) {
				d := newMem(t, disk)
				for g := uint64(1); g <= have; g++ {
					if err := label.Write(d, onDisk(g)); err != nil {
						t.Fatal(err)
					}
				}
				first, started := uint64(0), false
				d.SetHook(func(op zone.Op) error {
					if !started {
						first, started = op.Index, true
					}
					if op.Index == first+at && op.After == after {
						d.CutPower()
					}
					return nil
				})
				err := label.Write(d, onDisk(have+1))
				d.SetHook(nil)
				if done = err == nil; !done && !errors.Is(err, zone.ErrPowerLost) {
					t.Fatal(err)
				}
				d.PowerOn(rand.New(rand.NewPCG(seed, at)))
				got, readErr := label.Read(d)
				if readErr != nil || got.Generation != have+1 && (err == nil || got.Generation != have) {
					t.Fatalf("cut at %d (after %v), seed %d: generation %d, %v", at, after, seed, got.Generation, readErr)
				}
				if err := label.Write(d, onDisk(have+2)); err != nil {
					t.Fatalf("writing after a crash: %v", err)
				}
			}
		}
	}
}
