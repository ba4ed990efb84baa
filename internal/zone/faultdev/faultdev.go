package faultdev

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// Moved says how far a failed append moves the write pointer, and so how much of its data
// is on the device: its caller cannot tell.
type Moved uint8

// The ways an append fails.
const (
	MovedNone Moved = iota
	MovedPart       // at least one block less than all, if there are two
	MovedAll        // the data is complete and only its completion was lost
)

// AnyZone arms a fault for whichever zone comes along.
const AnyZone = -1

// Counts are the calls that reached a Device, refused and failed ones included.
type Counts struct {
	Reads, Writes, Appends, Flushes int
	Opens, Closes, Finishes, Resets int
	Discards, Releases              int
	FailedAppends, FailedReads      int // made to fail by the plan
	FailedFlushes, FailedCommands   int
	// Misplaced are appends, opens, closes, finishes and resets that were sent to a conventional
	// zone, which knows none of them.
	Misplaced int
}

// Device is a zone.Device with faults. All methods may be called at any time from several
// goroutines. Faults armed for the same thing are met in the order they were armed.
type Device struct {
	inner zone.Device
	audit auditor

	mu       sync.Mutex
	rng      *rand.Rand // how much MovedPart is
	appends  []*appendFault
	flushes  []*flushFault
	reads    []*readFault
	failures []*zoneFailure
	stalls   []*stall
	commands []*commandFault
	spoils   []*spoilFault
	spoiled  []Place
	counts   Counts
}

type appendFault struct {
	zone  int
	after int // appends that still pass; below 0: due
	moved Moved
}

type flushFault struct {
	after   int
	reached bool
}

type readFault struct {
	zone    int
	r       extent.Range
	forever bool
}

type zoneFailure struct {
	zone  int
	after int64 // bytes that may still be written
	to    zone.Condition
}

type stall struct {
	kind zone.OpKind
	zone int
	gate <-chan struct{}
	met  chan<- struct{}
}

// conditionSetter is what inner must have for FailZone.
type conditionSetter interface {
	SetCondition(zone int, c zone.Condition) error
}

var _ zone.Device = (*Device)(nil)

// New wraps dev with an empty plan. seed decides how much of an append MovedPart leaves.
// dev's limits are audited from its present state on.
func New(dev zone.Device, seed uint64) *Device {
	d := &Device{inner: dev, rng: rand.New(rand.NewPCG(seed, seed))}
	d.audit.start(dev)
	return d
}

// FailAppend makes the nth (from 1) append from now on to the zone, or to any with AnyZone,
// fail with ErrMedia. Write calls count as appends.
func (d *Device) FailAppend(zone, nth int, moved Moved) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.appends = append(d.appends, &appendFault{zone, nth - 1, moved})
}

// FailFlush makes the nth (from 1) Flush from now on fail with ErrMedia. If reached, the
// device below has flushed all the same; otherwise it is not asked to.
func (d *Device) FailFlush(nth int, reached bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushes = append(d.flushes, &flushFault{nth - 1, reached})
}

// FailRead makes reads that touch n bytes at off in the zone fail with ErrMedia: the next
// one, or every one with forever. A reset of the zone does not mend it; Heal does.
func (d *Device) FailRead(zone int, off, n int64, forever bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads = append(d.reads, &readFault{zone, extent.Range{Off: off, End: off + n}, forever})
}

// FailZone turns the zone ReadOnly or Offline when after more bytes have been written to it:
// the write that would pass them lands up to there, rounded down to the block, and fails.
// With 0 the next write meets the condition. The device below must have SetCondition.
func (d *Device) FailZone(zone int, after int64, to zone.Condition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures = append(d.failures, &zoneFailure{zone, extent.RoundDown(after), to})
}

// Stall holds the next operation of the kind on the zone (AnyZone for any, and for a flush)
// before it reaches the device, until gate is closed. met, if not nil, is closed when the
// operation has arrived.
func (d *Device) Stall(kind zone.OpKind, zone int, gate <-chan struct{}, met chan<- struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stalls = append(d.stalls, &stall{kind, zone, gate, met})
}

// Heal takes every fault that has not been met out of the plan, and those that last.
func (d *Device) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.appends, d.flushes, d.reads, d.failures, d.stalls, d.spoils, d.commands = nil, nil, nil, nil, nil, nil, nil
}

// Counts returns the calls so far.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Audit reports the first moment at which more zones were open or active than the limits
// allow, or at which a zone took a write it could not; nil if there was none. It is computed
// from the calls that went through d alone, so a condition set or a power cut below d calls
// for a new Device. It also compares the conditions it worked out with the device's own
// report; call it with nothing under way.
func (d *Device) Audit() error { return d.audit.verdict(d.inner) }

// wait counts the call and holds it if a stall is armed for it.
func (d *Device) wait(kind zone.OpKind, z int, count func(*Counts)) {
	d.mu.Lock()
	count(&d.counts)
	switch kind {
	case zone.OpAppend, zone.OpOpen, zone.OpCloseZone, zone.OpFinish, zone.OpReset:
		if z >= 0 && !d.inner.Geometry().IsSequential(z) {
			d.counts.Misplaced++
		}
	}
	var s *stall
	for i, c := range d.stalls {
		if c.kind == kind && (c.zone == AnyZone || c.zone == z) {
			s = c
			d.stalls = append(d.stalls[:i:i], d.stalls[i+1:]...)
			break
		}
	}
	d.mu.Unlock()
	if s == nil {
		return
	}
	if s.met != nil {
		close(s.met)
	}
	<-s.gate
}

func mediaError(op string, z int) error {
	where := "device"
	if z >= 0 {
		where = fmt.Sprintf("zone %d", z)
	}
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, where, zone.ErrMedia)
}
