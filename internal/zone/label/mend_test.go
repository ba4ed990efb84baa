package label_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// labelled is a device with two labels, the latest of generation 6 in zone 1.
func labelled(t *testing.T) *zone.Mem {
	t.Helper()
	d := newMem(t, geo)
	for g := uint64(5); g <= 6; g++ {
		if err := label.Write(d, sample(g)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestMend(t *testing.T) {
	for name, c := range map[string]struct {
		spoil         []int
		latest, other uint64
	}{
		"none": {nil, 6, 5}, "the older": {[]int{0}, 6, 6}, "the latest": {[]int{1}, 6, 5}, "both": {[]int{0, 1}, 6, 6},
	} {
		t.Run(name, func(t *testing.T) {
			d := labelled(t)
			for _, z := range c.spoil {
				if err := d.Corrupt(z, 40, 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := label.Mend(d, sample(6)); err != nil {
				t.Fatal(err)
			}
			latest, other, err := label.ReadBoth(d)
			if err != nil || latest != sample(6) || other != c.other {
				t.Errorf("%+v and %d, %v", latest, other, err)
			}
			if r, _ := d.Report(0, 2); r[0].Condition.IsActive() || r[1].Condition.IsActive() {
				t.Error("a label keeps an active slot")
			}
			if err := label.Write(d, sample(7)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMendOfLabelsThatOnlyCouldNotBeRead cuts the power everywhere while both are written anew that are good:
// one of them is always there.
func TestMendOfLabelsThatOnlyCouldNotBeRead(t *testing.T) {
	for _, after := range []bool{false, true} {
		for at, done := uint64(0), false; !done; at++ {
			for seed := range uint64(10) {
				d := labelled(t)
				first, started := uint64(0), false
				failed := map[int]int{}
				d.SetHook(func(op zone.Op) error {
					if !started {
						first, started = op.Index, true
					}
					if op.Index == first+at && op.After == after {
						d.CutPower()
					}
					if op.Kind == zone.OpRead && !op.After && failed[op.Zone] < 2 {
						failed[op.Zone]++
						return zone.ErrMedia
					}
					return nil
				})
				err := label.Mend(d, sample(6))
				d.SetHook(nil)
				if done = err == nil; !done && !errors.Is(err, zone.ErrPowerLost) {
					t.Fatal(err)
				}
				d.PowerOn(rand.New(rand.NewPCG(seed, at)))
				if got, err := label.Read(d); err != nil || got.Generation < 5 {
					t.Fatalf("cut at %d (after %v), seed %d: %+v, %v", at, after, seed, got, err)
				}
			}
		}
	}
}

// TestSettle finishes what a finish that failed left active.
func TestSettle(t *testing.T) {
	d := labelled(t)
	d.SetHook(func(op zone.Op) error {
		if op.Kind == zone.OpFinish && !op.After {
			return zone.ErrMedia
		}
		return nil
	})
	if err := label.Write(d, sample(7)); !errors.Is(err, zone.ErrMedia) {
		t.Fatal(err)
	}
	d.SetHook(nil)
	if r, _ := d.Report(0, 2); !r[0].Condition.IsActive() {
		t.Fatalf("%+v", r)
	}
	if err := label.Settle(d); err != nil {
		t.Fatal(err)
	}
	if r, _ := d.Report(0, 2); r[0].Condition != zone.Full || r[1].Condition != zone.Full {
		t.Errorf("%+v", r)
	}
	if got, err := label.Read(d); err != nil || got.Generation != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}
