package array_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

func TestFlushFails(t *testing.T) {
	for name, c := range map[string]struct {
		nth  []int  // failing flushes of device 1
		want []bool // which flushes answer an error
		out  bool
	}{
		"never":            {nil, []bool{false, false, false}, false},
		"once":             {[]int{1}, []bool{true, false, false}, false},
		"twice":            {[]int{1, 1}, []bool{true, false, false}, true},
		"with one between": {[]int{1, 3}, []bool{true, false, true, false}, false},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, g zone.Geometry) {
				b := newStand(t, g, 2, mirrored(g.Zones))
				b.add(0, 0, 1, 1)
				b.ok(b.Flush())
				b.add(1, 0, 1, 2)
				for i, nth := range c.nth {
					if i > 0 && c.out {
						nth = 2
					}
					b.devs[1].FailFlush(nth, false)
				}
				for i, fails := range c.want {
					if err := b.Flush(); (err != nil) != fails || fails && !errors.Is(err, zone.ErrMedia) {
						t.Fatalf("flush %d: %v", i, err)
					}
				}
				if c.out {
					b.left(1)
				} else {
					b.left()
				}
				b.stale(0, false, false)
				b.stale(1, false, c.out) // durable on the other alone
			})
		})
	}
}

// A member that fails its probe and yet stays, because the others left meanwhile, makes the next
// flush fail, and that one only.
func TestProbeThatFailsIsRemembered(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.add(0, 0, 1, 1)
	gate, met, done := make(chan struct{}), make(chan struct{}), make(chan error)
	b.devs[0].FailAppend(0, 1, faultdev.MovedNone)
	b.devs[0].FailFlush(1, false)
	b.devs[0].Stall(zone.OpFlush, faultdev.AnyZone, gate, met)
	go func() { done <- second(b.Append(0, vec(pattern(2, 1)))) }()
	<-met
	b.Fail(1, zone.ErrMedia)
	close(gate)
	if err := <-done; !errors.Is(err, zone.ErrMedia) {
		t.Fatal(err)
	}
	b.left(1)
	if err := b.Flush(); !errors.Is(err, zone.ErrMedia) {
		t.Fatalf("the flush after a failed probe: %v", err)
	}
	b.ok(b.Flush())
	b.left(1)
	b.stale(0, false, true) // what was flushed nowhere
	b.holds(0, 0, 1, 1, 0)
}

// A flush that fails within one Flush is answered by another that was under way, and by none that
// comes after.
func TestConcurrentFlushesAnswerTheSameFailure(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	gate, met := make(chan struct{}), make(chan struct{})
	b.devs[0].FailFlush(1, false)
	b.devs[0].Stall(zone.OpFlush, faultdev.AnyZone, gate, met)
	first, last := make(chan error), make(chan error)
	go func() { first <- b.Flush() }()
	<-met
	started := make(chan struct{})
	go func() { close(started); last <- b.Flush() }()
	<-started
	for b.devs[1].Counts().Flushes < 2 { // then the second is past its beginning
		runtime.Gosched()
	}
	close(gate)
	for _, c := range []chan error{first, last} {
		if err := <-c; !errors.Is(err, zone.ErrMedia) {
			t.Errorf("%v", err)
		}
	}
	b.ok(b.Flush())
	b.left()
}

// A probe that ends well costs nothing: the member stays, and so does its place.
func TestProbeThatSucceeds(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.devs[1].FailAppend(0, 1, faultdev.MovedNone)
	if _, err := b.Append(0, vec(pattern(1, 1))); err == nil {
		t.Fatal("no error")
	}
	if n := [2]int{b.devs[0].Counts().Flushes, b.devs[1].Counts().Flushes}; n != [2]int{0, 1} {
		t.Errorf("flushes %v: the one that failed is asked, alone", n)
	}
	b.left()
	b.ok(b.Flush())
}
