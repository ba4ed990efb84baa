package faultdev_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
	"github.com/shingle-store/shingle/internal/zone/zonetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blk = extent.BlockSize

var geo = zone.Geometry{
	Dialect: zone.ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 8, MaxOpen: 2, MaxActive: 3,
}

func newDevice(t *testing.T) (*faultdev.Device, *zone.Mem) {
	t.Helper()
	m, err := zone.NewMem(geo, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := faultdev.New(m, 1)
	t.Cleanup(func() {
		if err := d.Audit(); err != nil {
			t.Error(err)
		}
	})
	return d, m
}

func blocks(n int) [][]byte {
	return [][]byte{bytes.Repeat([]byte{1}, blk), bytes.Repeat([]byte{2}, (n-1)*blk)}
}

func wp(t *testing.T, d zone.Device, z int) int64 {
	t.Helper()
	r, err := d.Report(z, 1)
	if err != nil {
		t.Fatal(err)
	}
	return r[0].WP / blk
}

func appendBlocks(d zone.Device, z, n int) error {
	_, err := d.Append(z, blocks(n))
	return err
}

// audited closes only a device whose audit is clean.
type audited struct {
	*faultdev.Device
	t *testing.T
}

func (a audited) Close() error {
	if err := a.Audit(); err != nil && !errors.Is(err, zone.ErrClosed) {
		a.t.Error(err)
	}
	return a.Device.Close()
}

// Without a plan the wrapper is as good as the device, and the audit finds nothing wrong
// with a device that keeps the rules.
func TestWithoutFaultsTheRulesHold(t *testing.T) {
	zonetest.Run(t, func(t *testing.T, g zone.Geometry) zone.Device {
		m, err := zone.NewMem(g, zone.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return audited{faultdev.New(m, 1), t}
	})
}

func TestFailedAppends(t *testing.T) {
	for _, c := range []struct {
		moved  faultdev.Moved
		lo, hi int64
	}{
		{faultdev.MovedNone, 0, 0}, {faultdev.MovedPart, 0, 7}, {faultdev.MovedAll, 8, 8},
	} {
		seen := map[int64]bool{}
		for seed := range uint64(20) {
			m, _ := zone.NewMem(geo, zone.MemOptions{})
			d := faultdev.New(m, seed)
			d.FailAppend(2, 2, c.moved)
			for _, z := range []int{1, 2, 1} {
				if err := appendBlocks(d, z, 1); err != nil {
					t.Fatal(err)
				}
			}
			err := appendBlocks(d, 2, 8)
			if !errors.Is(err, zone.ErrMedia) || !errdefs.Is(err, errdefs.Device) {
				t.Fatalf("the second append to zone 2: %v", err)
			}
			got := wp(t, d, 2) - 1
			seen[got] = true
			if got < c.lo || got > c.hi {
				t.Errorf("moved %d: the write pointer moved by %d", c.moved, got)
			}
			if err := appendBlocks(d, 2, 2); err != nil {
				t.Errorf("a fault is met once: %v", err)
			}
			if n := d.Counts(); n.Appends != 5 || n.FailedAppends != 1 {
				t.Errorf("counts %+v", n)
			}
			if err := d.Audit(); err != nil {
				t.Error(err)
			}
		}
		if c.moved == faultdev.MovedPart && len(seen) < 3 {
			t.Errorf("part is always one of %v", seen)
		}
	}
}

func TestEveryArmedFaultCountsFromItsArming(t *testing.T) {
	d, _ := newDevice(t)
	d.FailAppend(faultdev.AnyZone, 3, faultdev.MovedNone)
	d.FailAppend(0, 1, faultdev.MovedNone)
	d.FailAppend(0, 1, faultdev.MovedNone)
	d.FailFlush(2, false)
	d.FailFlush(3, false)
	got := ""
	for range 5 {
		got += map[bool]string{true: "a", false: "A"}[appendBlocks(d, 0, 1) == nil]
	}
	for range 4 {
		got += map[bool]string{true: "f", false: "F"}[d.Flush() == nil]
	}
	if want := "AAAaafFFf"; got != want {
		t.Errorf("failures (capitals) %s, want %s", got, want)
	}
}

func TestWritesFailAsAppendsDo(t *testing.T) {
	d, _ := newDevice(t)
	d.FailAppend(0, 1, faultdev.MovedAll)
	if err := d.Write(0, 0, blocks(2)); !errors.Is(err, zone.ErrMedia) {
		t.Fatal(err)
	}
	if err := d.Write(0, 2*blk, blocks(2)); err != nil {
		t.Fatal(err)
	}
}

// Every command that a conventional zone does not know is counted, and no other.
func TestMisplacedCommands(t *testing.T) {
	m, err := zone.NewMem(zone.Geometry{Dialect: zone.SMR, ZoneSize: 4 * blk, ZoneCapacity: 4 * blk, Zones: 4, Conventional: 2}, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := faultdev.New(m, 1)
	for z := range 4 {
		_, appended := d.Append(z, blocks(1))
		for _, err := range []error{appended, d.Open(z), d.CloseZone(z), d.Finish(z), d.Reset(z)} {
			if (err != nil) != (z < 2) {
				t.Errorf("zone %d: %v", z, err)
			}
		}
		if want := 5 * min(z+1, 2); d.Counts().Misplaced != want {
			t.Errorf("after zone %d: %d misplaced, want %d", z, d.Counts().Misplaced, want)
		}
		if err := d.Write(z, 0, blocks(1)); err != nil {
			t.Error(err)
		}
		if err := d.ReadAt(z, 0, make([]byte, blk)); err != nil {
			t.Error(err)
		}
	}
	if err := d.Flush(); err != nil || d.Counts().Misplaced != 10 {
		t.Errorf("%v, %+v", err, d.Counts())
	}
}

func TestFailedFlush(t *testing.T) {
	for _, reached := range []bool{false, true} {
		d, m := newDevice(t)
		d.FailFlush(1, reached)
		if err := d.Flush(); !errors.Is(err, zone.ErrMedia) {
			t.Fatal(err)
		}
		if got := m.Stats().Flushes; got != uint64(map[bool]int{true: 1}[reached]) {
			t.Errorf("reached %v: the device below flushed %d times", reached, got)
		}
		if n := d.Counts(); n.Flushes != 1 || n.FailedFlushes != 1 {
			t.Errorf("counts %+v", n)
		}
	}
}

func TestFailedReads(t *testing.T) {
	d, _ := newDevice(t)
	if err := appendBlocks(d, 1, 6); err != nil {
		t.Fatal(err)
	}
	read := func(block, n int64) error { return d.ReadAt(1, block*blk, make([]byte, n*blk)) }
	d.FailRead(1, 2*blk, 2*blk, false)
	d.FailRead(1, 5*blk, blk, true)
	if err := read(0, 2); err != nil {
		t.Errorf("beside the range: %v", err)
	}
	if err := read(1, 2); !errors.Is(err, zone.ErrMedia) {
		t.Errorf("touching the range: %v", err)
	}
	if err := read(1, 3); err != nil {
		t.Errorf("once only: %v", err)
	}
	for range 3 {
		if err := read(4, 2); !errors.Is(err, zone.ErrMedia) {
			t.Errorf("for ever: %v", err)
		}
	}
	d.Heal()
	if err := read(4, 2); err != nil {
		t.Errorf("healed: %v", err)
	}
	if n := d.Counts(); n.Reads != 7 || n.FailedReads != 4 {
		t.Errorf("counts %+v", n)
	}
}

func TestZonesFailMidStream(t *testing.T) {
	for _, c := range []struct {
		after int64 // bytes
		to    zone.Condition
		want  error
		wp    int64 // blocks
	}{
		{0, zone.ReadOnly, zone.ErrZoneReadOnly, 0},
		{5 * blk, zone.ReadOnly, zone.ErrZoneReadOnly, 5},
		{5*blk + 17, zone.ReadOnly, zone.ErrZoneReadOnly, 5},
		{4 * blk, zone.ReadOnly, zone.ErrZoneReadOnly, 4},
		{7 * blk, zone.Offline, zone.ErrZoneOffline, 7},
	} {
		d, _ := newDevice(t)
		d.FailZone(3, c.after, c.to)
		var err error
		n := 0
		for err == nil && n < 6 {
			err = appendBlocks(d, 3, 2)
			n++
		}
		if !errors.Is(err, c.want) || int64(n) != c.wp/2+1 {
			t.Errorf("after %d bytes: append %d: %v", c.after, n, err)
		}
		if got := wp(t, d, 3); got != c.wp {
			t.Errorf("after %d bytes: the write pointer is at %d, want %d", c.after, got, c.wp)
		}
		if err := appendBlocks(d, 3, 1); !errors.Is(err, c.want) {
			t.Errorf("the next append: %v", err)
		}
		if err := appendBlocks(d, 2, 1); err != nil {
			t.Errorf("another zone: %v", err)
		}
	}
}

func TestFailZoneNeedsADeviceThatCan(t *testing.T) {
	m, _ := zone.NewMem(geo, zone.MemOptions{})
	d := faultdev.New(struct{ zone.Device }{m}, 1)
	d.FailZone(0, 0, zone.Offline)
	if err := appendBlocks(d, 0, 1); !errdefs.Is(err, errdefs.Internal) {
		t.Errorf("got %v", err)
	}
}

func TestStall(t *testing.T) {
	d, m := newDevice(t)
	gate, met := make(chan struct{}), make(chan struct{})
	d.Stall(zone.OpAppend, 1, gate, met)
	done := make(chan error, 1)
	go func() { done <- appendBlocks(d, 1, 1) }()
	<-met
	if err := appendBlocks(d, 2, 1); err != nil {
		t.Errorf("another zone: %v", err)
	}
	if err := appendBlocks(d, 1, 1); err != nil {
		t.Errorf("a stall is met once: %v", err)
	}
	if got := m.Stats().Appends; got != 2 {
		t.Errorf("%d appends reached the device", got)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	flushGate := make(chan struct{})
	close(flushGate)
	d.Stall(zone.OpFlush, faultdev.AnyZone, flushGate, nil)
	if err := d.Flush(); err != nil {
		t.Error(err)
	}
}

// lawless is a device that breaks a rule.
type lawless struct {
	zone.Device
	open func(z int) error
}

func (l lawless) Open(z int) error { return l.open(z) }

func (l lawless) Append(int, [][]byte) (int64, error) { return 0, nil }

func TestAuditFindsBrokenLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(d *faultdev.Device)
		want string
	}{
		{"open limit", func(d *faultdev.Device) {
			for z := range 3 {
				_ = d.Open(z)
			}
		}, "3 zones were explicitly open; the limit is 2"},
		{"active limit", func(d *faultdev.Device) {
			for z := range 4 {
				_ = appendBlocks(d, z, 1)
			}
		}, "4 zones were active; the limit is 3"},
		{"a write with every slot explicitly open", func(d *faultdev.Device) {
			_, _ = d.Open(0), d.Open(1)
			_ = appendBlocks(d, 2, 1)
		}, "zone 2 was written to while 2 other zones"},
		{"more than fits", func(d *faultdev.Device) { _ = appendBlocks(d, 0, 13) }, "took 53248 bytes"},
		{"a write to a full zone", func(d *faultdev.Device) {
			_ = appendBlocks(d, 0, 12)
			_ = appendBlocks(d, 0, 1)
		}, "while full"},
		{"a report that does not agree", func(d *faultdev.Device) { _ = appendBlocks(d, 0, 1) },
			"should be closed with 4096 bytes"},
	} {
		m, err := zone.NewMem(geo, zone.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d := faultdev.New(lawless{m, func(int) error { return nil }}, 1)
		c.do(d)
		if err := d.Audit(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: audit says %v", c.name, err)
		}
	}
}

func TestAuditHoldsUnderParallelWork(t *testing.T) {
	d, _ := newDevice(t)
	d.FailAppend(faultdev.AnyZone, 20, faultdev.MovedPart)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 200 {
				z := (i*7 + w) % geo.Zones
				switch i % 9 {
				case 0:
					_ = d.Open(z)
				case 1:
					_ = d.Finish(z)
				case 2, 3:
					_ = d.Reset(z)
				case 4:
					_ = d.CloseZone(z)
				default:
					_ = appendBlocks(d, z, 3)
				}
			}
		})
	}
	wg.Wait()
}
