package faultdev_test

import (
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

func TestFailedCommands(t *testing.T) {
	g := geo
	g.Dialect, g.ZoneCapacity, g.MaxActive, g.Conventional = zone.SMR, g.ZoneSize, 0, 2
	m, err := zone.NewMem(g, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := faultdev.New(m, 1)
	one := []extent.Range{{Off: 0, End: blk}}
	d.FailCommand(zone.OpDiscard, 1, false)
	d.FailCommand(zone.OpRelease, faultdev.AnyZone, false)
	d.FailCommand(zone.OpReset, 4, true)
	if err := appendBlocks(d, 4, 2); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		run  func() error
		fail bool
	}{
		{"discard of another zone", func() error { return d.Discard(0, one) }, false},
		{"discard", func() error { return d.Discard(1, one) }, true},
		{"discard again", func() error { return d.Discard(1, one) }, false},
		{"release of any zone", func() error { return d.Release(5) }, true},
		{"release again", func() error { return d.Release(5) }, false},
		{"reset of another zone", func() error { return d.Reset(3) }, false},
		{"reset", func() error { return d.Reset(4) }, true},
		{"reset again", func() error { return d.Reset(4) }, true},
	} {
		if err := c.run(); errors.Is(err, zone.ErrMedia) != c.fail || !c.fail && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if wp(t, d, 4) != 2 {
		t.Errorf("a reset that failed had an effect: write pointer at %d", wp(t, d, 4))
	}
	d.Heal()
	if err := d.Reset(4); err != nil {
		t.Errorf("reset after Heal: %v", err)
	}
	c := d.Counts()
	if c.Discards != 3 || c.Releases != 2 || c.FailedCommands != 4 || m.Stats().Discards != 2 {
		t.Errorf("counted %+v", c)
	}
	if err := d.Audit(); err != nil {
		t.Error(err)
	}
}

func TestStalledDiscard(t *testing.T) {
	d, _ := newDevice(t)
	gate, met, done := make(chan struct{}), make(chan struct{}), make(chan error)
	d.Stall(zone.OpRelease, 3, gate, met)
	go func() { done <- d.Release(3) }()
	<-met
	if err := d.Release(4); err != nil {
		t.Error(err)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// plain is a device below that cannot discard.
type plain struct{ zone.Device }

func TestNoDiscarderBelow(t *testing.T) {
	_, m := newDevice(t)
	d := faultdev.New(plain{m}, 1)
	if err := d.Discard(0, []extent.Range{{Off: 0, End: blk}}); !errors.Is(err, zone.ErrNoDiscard) {
		t.Errorf("Discard: %v", err)
	}
	if err := d.Release(0); !errors.Is(err, zone.ErrNoDiscard) {
		t.Errorf("Release: %v", err)
	}
}
