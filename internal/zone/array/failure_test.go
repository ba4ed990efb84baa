package array_test

import (
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// One append fails on one member, which is otherwise well: the set is torn until it is finished or
// reset, and what was acknowledged before can be read.
func TestTornSets(t *testing.T) {
	for _, moved := range []faultdev.Moved{faultdev.MovedNone, faultdev.MovedPart, faultdev.MovedAll} {
		for _, on := range []int{0, 1} {
			everywhere(t, func(t *testing.T, g zone.Geometry) {
				b := newStand(t, g, 2, mirrored(g.Zones))
				b.add(0, 0, 2, 1)
				b.devs[on].FailAppend(0, 1, moved)
				if _, err := b.Append(0, vec(pattern(2, 2))); !errors.Is(err, zone.ErrMedia) || !errdefs.Is(err, errdefs.Device) {
					t.Fatalf("append that failed on device %d: %v", on, err)
				}
				for _, err := range []error{b.Write(0, 4*blk, vec(pattern(3, 1))), b.Write(0, 2*blk, vec(pattern(3, 1)))} {
					if !errors.Is(err, zone.ErrMedia) {
						t.Fatalf("write to a torn set: %v", err)
					}
				}
				if _, err := b.Append(0, vec(pattern(3, 1))); !errors.Is(err, zone.ErrMedia) || !b.Torn(0) || b.Torn(1) {
					t.Fatalf("append to a torn set: %v; torn %v, another %v", err, b.Torn(0), b.Torn(1))
				}
				b.holds(0, 0, 2, 1, -1)
				b.add(1, 0, 1, 4)
				b.ok(b.Finish(0))
				if b.Torn(0) {
					t.Error("torn after Finish")
				}
				b.holds(0, 0, 2, 1, -1)
				b.ok(b.Reset(0))
				b.add(0, 0, 2, 5)
				b.add(0, 2, 1, 6)
				b.stale(0, false, false)
				b.left()
				b.ok(b.Flush())
				b.ok(b.Close())
			})
		}
	}
}

// A torn set of which one place is left goes on where that place ends.
func TestTornSetGoesOnAlone(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.add(0, 0, 2, 1)
	b.devs[1].FailAppend(0, 1, faultdev.MovedAll)
	if _, err := b.Append(0, vec(pattern(2, 3))); err == nil || !b.Torn(0) {
		t.Fatalf("%v, torn %v", err, b.Torn(0))
	}
	b.Fail(0, zone.ErrMedia)
	if b.Torn(0) {
		t.Error("one place differs from none")
	}
	b.add(0, 5, 1, 3)
	b.holds(0, 0, 2, 1, 1)
	b.holds(0, 5, 1, 3, 1)
}

// A command that one of two cannot do leaves them apart.
func TestFinishThatOneRefuses(t *testing.T) {
	g := geometries["zns"]
	g.MaxOpen = 2
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.add(0, 0, 1, 1)
	b.ok(b.CloseZone(0))
	for z := range 2 { // behind the array's back
		b.ok(b.mems[1].Open(4 + z))
	}
	if err := b.Finish(0); !errors.Is(err, zone.ErrTooManyOpen) || !b.Torn(0) {
		t.Fatalf("%v, torn %v", err, b.Torn(0))
	}
	if _, err := b.Append(0, vec(pattern(1, 1))); !errors.Is(err, zone.ErrMedia) {
		t.Error(err)
	}
	b.ok(b.mems[1].CloseZone(4))
	b.ok(b.Finish(0))
	if b.Torn(0) {
		t.Error("torn after Finish")
	}
	b.left()
}

func TestResetMendsTornSets(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.devs[1].FailAppend(0, 1, faultdev.MovedAll)
	if _, err := b.Append(0, vec(pattern(1, 1))); err == nil {
		t.Fatal("no error")
	}
	b.devs[0].FailCommand(zone.OpReset, 0, false)
	if err := b.Reset(0); !errors.Is(err, zone.ErrMedia) || !b.Torn(0) {
		t.Fatalf("reset that failed on one: %v, torn %v", err, b.Torn(0))
	}
	before := b.devs[1].Counts().Resets
	b.ok(b.Reset(0))
	if got := b.devs[1].Counts().Resets; got != before {
		t.Error("an empty place was reset again")
	}
	if b.Torn(0) {
		t.Error("torn after Reset")
	}
	b.add(0, 0, 2, 2)
}

// A refusal that all places agree on changes nothing; one that they do not tears the set.
func TestRefusals(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.add(0, 0, 2, 1)
	for i := range 2 {
		b.devs[i].FailFlush(1, false) // nobody may ask for one
	}
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"too large":        {second(b.Append(0, vec(make([]byte, 11*blk)))), zone.ErrBoundary},
		"off the pointer":  {b.Write(0, 0, vec(make([]byte, blk))), zone.ErrUnalignedWrite},
		"close, when not":  {b.CloseZone(1), zone.ErrInvalidTransition},
		"read past it":     {b.ReadAt(0, 2*blk, make([]byte, blk)), zone.ErrInvalidRead},
		"discard in order": {b.Discard(0, blocks(0, 1)), zone.ErrInvalidTransition},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if b.Torn(0) {
		t.Fatal("refusals tore the set")
	}
	b.add(0, 2, 1, 2)
	b.ok(b.mems[1].Finish(0)) // behind the array's back, as a drive may do
	if _, err := b.Append(0, vec(pattern(3, 1))); !errors.Is(err, zone.ErrZoneFull) || !b.Torn(0) {
		t.Fatalf("append that one refused: %v, torn %v", err, b.Torn(0))
	}
	b.left()
}

func second(_ int64, err error) error { return err }

// A dead member is taken out by whatever meets it first, and the call succeeds on the others.
func TestDeadMemberIsTakenOut(t *testing.T) {
	for name, meet := range map[string]func(b *stand) error{
		"append": func(b *stand) error { return second(b.Append(0, vec(pattern(9, 1)))) },
		"write":  func(b *stand) error { return b.Write(0, 2*blk, vec(pattern(9, 1))) },
		"finish": func(b *stand) error { return b.Finish(0) },
		"reset":  func(b *stand) error { return b.Reset(0) },
		"open":   func(b *stand) error { return b.Open(0) },
		"close":  func(b *stand) error { return b.CloseZone(0) },
	} {
		for dead := range 2 {
			t.Run(name, func(t *testing.T) {
				everywhere(t, func(t *testing.T, g zone.Geometry) {
					b := newStand(t, g, 2, mirrored(g.Zones))
					b.add(0, 0, 2, 1)
					b.add(1, 0, 2, 2)
					b.ok(b.Flush())
					b.add(2, 0, 2, 3) // not durable there, so not to be believed there
					b.mems[dead].CutPower()
					b.ok(meet(b))
					b.left(dead)
					writes := name == "append" || name == "write" || name == "reset"
					b.stale(0, writes && dead == 0, writes && dead == 1)
					b.stale(1, false, false)
					b.stale(2, dead == 0, dead == 1)
					if writes {
						b.heard(0, 2)
					} else {
						b.heard(2)
					}
					if b.Copies(1) != 1 || b.Torn(0) {
						t.Errorf("%d copies of zone 1, torn %v", b.Copies(1), b.Torn(0))
					}
					b.holds(1, 0, 2, 2, 1-dead)
					b.holds(2, 0, 2, 3, 1-dead)
					b.add(1, 2, 1, 4)
					b.stale(1, dead == 0, dead == 1)
					b.holds(1, 2, 1, 4, 1-dead)
					b.add(3, 0, 1, 5)
					b.ok(b.Reset(4))
					b.stale(4, dead == 0, dead == 1)
					b.stale(5, false, false) // never written: as good as the other
					b.ok(b.Flush())
					b.left(dead)
				})
			})
		}
	}
}

// Reads find no member dead: they only go elsewhere.
func TestReadsGoElsewhere(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.add(0, 0, 3, 1)
	b.devs[0].FailRead(0, 0, blk, true)
	b.holds(0, 0, 3, 1, 1)
	if err := b.ReadCopy(0, 0, 0, make([]byte, blk)); !errors.Is(err, zone.ErrMedia) {
		t.Errorf("the bad copy alone: %v", err)
	}
	b.ok(b.ReadCopy(0, 1, 0, make([]byte, blk)))
	b.devs[1].FailRead(0, 0, blk, true)
	if err := b.ReadAt(0, 0, make([]byte, blk)); !errors.Is(err, zone.ErrMedia) {
		t.Errorf("both bad: %v", err)
	}
	b.left()
}

// Who is the last with a copy of anything stays, and its errors are answered.
func TestLastCopyIsNeverTakenOut(t *testing.T) {
	g := geometries["smr"]
	for name, c := range map[string]struct {
		members int
		sets    [][]array.Place
		before  func(b *stand)
		dead    int
	}{
		"one device":         {1, single(0, 6), nil, 0},
		"two on one device":  {1, [][]array.Place{{{Zone: 0}, {Zone: 1}}}, nil, 0},
		"side by side":       {2, append(single(0, 3), single(1, 3)...), nil, 0},
		"one set of many":    {2, append(mirrored(3), single(1, 6)[5:]...), nil, 1},
		"the other is stale": {2, mirrored(2), func(b *stand) { b.SetPlaces(1, []array.Place{{Device: 0, Zone: 1}, {Device: 1, Zone: 1, Stale: true}}) }, 0},
		"the other is out":   {2, mirrored(2), func(b *stand) { b.Fail(1, zone.ErrMedia) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newStand(t, g, c.members, c.sets)
			if c.before != nil {
				c.before(b)
			}
			gone := len(b.gone)
			b.mems[c.dead].CutPower()
			z := 0
			if c.dead == 1 {
				z = len(c.sets) - 1
			}
			for range 3 {
				if _, err := b.Append(z, vec(pattern(1, 1))); err == nil {
					t.Error("an append that went nowhere")
				}
				if b.Flush() == nil {
					t.Error("a flush that flushed nothing")
				}
				if b.Finish(z) == nil || b.Open(z) == nil {
					t.Error("a command that went nowhere")
				}
			}
			if len(b.gone) != gone || b.Member(c.dead) == nil {
				t.Errorf("members %v are out", b.gone)
			}
		})
	}
}

// What dies on several members at once leaves one of them.
func TestAllDead(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.add(0, 0, 1, 1)
	b.ok(b.Flush())
	b.mems[0].CutPower()
	b.mems[1].CutPower()
	if _, err := b.Append(0, vec(pattern(1, 1))); !errors.Is(err, zone.ErrPowerLost) {
		t.Fatal(err)
	}
	b.left(0)
	b.stale(0, false, false)
}

// Fail leaves what it must, and the next Flush says that something went with it.
func TestFail(t *testing.T) {
	g := geometries["zns"]
	why := errors.New("pulled out")
	b := newStand(t, g, 2, append(single(0, 2), mirrored(4)[2:]...))
	b.add(0, 0, 1, 1)
	b.add(2, 0, 1, 2)
	b.Fail(0, why)
	b.Fail(0, why)
	b.Fail(7, why)
	b.left(0)
	if m := b.Members()[0]; !errors.Is(m.Err, why) || m.Geometry != g || m.Stats.Appends != 1 {
		t.Errorf("%+v", m)
	}
	b.stale(0, false) // there is nothing better
	b.stale(2, true, false)
	b.heard(2)
	for what, err := range map[string]error{
		"read": b.ReadAt(0, 0, make([]byte, blk)), "copy": b.ReadCopy(0, 0, 0, make([]byte, blk)),
		"append": second(b.Append(0, vec(pattern(1, 1)))), "write": b.Write(0, blk, vec(pattern(1, 1))),
		"reset": b.Reset(0), "finish": b.Finish(0), "release": b.Release(0),
	} {
		if !errors.Is(err, zone.ErrZoneOffline) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if r, err := b.Report(0, -1); err != nil || r[0].Condition != zone.Offline || r[0].Capacity != g.ZoneCapacity ||
		r[2].Condition != zone.ImplicitOpen {
		t.Errorf("%+v, %v", r, err)
	}
	if err := b.Flush(); !errors.Is(err, why) {
		t.Errorf("the flush after a loss: %v", err)
	}
	b.ok(b.Flush())
	b.holds(2, 0, 1, 2, 1)
}

// A write of the only place that ends well after its member was taken out is not acknowledged.
func TestFailDuringAnAppend(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 1, single(0, 3))
	gate, met, done := make(chan struct{}), make(chan struct{}), make(chan error)
	b.devs[0].Stall(zone.OpAppend, 0, gate, met)
	go func() { done <- second(b.Append(0, vec(pattern(1, 1)))) }()
	<-met
	b.Fail(0, zone.ErrMedia)
	close(gate)
	if err := <-done; !errors.Is(err, zone.ErrZoneOffline) {
		t.Errorf("acknowledged: %v", err)
	}
	for range 2 {
		if b.Flush() == nil {
			t.Error("a flush of nothing at all")
		}
	}
}
