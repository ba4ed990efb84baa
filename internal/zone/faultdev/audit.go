package faultdev

import (
	"errors"
	"fmt"
	"sync"

	"github.com/shingle-store/shingle/internal/zone"
)

// auditor works out from the calls alone which zones are active, and checks the limits. It
// shares no code with zone.Machine.
//
// Calls run in parallel and the device orders them as it likes, so what the auditor counts is
// what must be true whatever the order was: a zone is active from the return of the call that
// made it so to the start of the next call that may end it. A zone whose calls overlapped so
// that the outcome depends on their order is unknown until its next lone reset.
type auditor struct {
	geo       zone.Geometry
	maxOpen   int // 0: no limit
	maxActive int

	mu       sync.Mutex
	zones    []auditZone
	active   int // zones active for certain
	explicit int // zones explicitly open for certain
	let      int // how often one of those began to be left
	failure  error
}

type auditZone struct {
	cond     zone.Condition // Closed stands for closed or implicitly open
	data     int64          // bytes written
	landing  int64          // bytes of writes under way
	commands int            // commands under way
	writes   int            // writes under way
	begun    int            // writes and commands so far
	unknown  bool
	active   bool // counted in auditor.active
	explicit bool // counted in auditor.explicit
}

func (a *auditor) start(dev zone.Device) {
	a.geo = dev.Geometry()
	sequential := a.geo.Zones - a.geo.Conventional
	if a.geo.MaxOpen < sequential {
		a.maxOpen = a.geo.MaxOpen
	}
	if a.geo.MaxActive < sequential {
		a.maxActive = a.geo.MaxActive
	}
	a.zones = make([]auditZone, a.geo.Zones)
	report, err := dev.Report(0, -1)
	for i := range a.zones {
		z := &a.zones[i]
		if err != nil {
			z.unknown = true
			continue
		}
		z.cond, z.data = report[i].Condition, report[i].WP
		if z.cond == zone.ImplicitOpen {
			z.cond = zone.Closed
		}
		a.recount(z)
	}
}

// write follows a write of n bytes that do carries out.
func (a *auditor) write(i int, n int64, do func() (int64, error)) (int64, error) {
	if i < 0 || i >= len(a.zones) {
		return do()
	}
	z := &a.zones[i]
	a.mu.Lock()
	z.writes++
	z.begun++
	z.landing += n
	z.unknown = z.unknown || z.commands > 0
	a.recount(z)
	others, let := a.explicit-count(z.explicit), a.let
	a.mu.Unlock()

	off, err := do()

	a.mu.Lock()
	defer a.mu.Unlock()
	z.writes--
	z.landing -= n
	switch {
	case z.cond == zone.NotWP:
	case err == nil:
		if a.let != let {
			others = 0 // nothing is certain about the moment in between at which it was carried out
		}
		a.landed(i, n, others)
	case errors.Is(err, zone.ErrMedia) || errors.Is(err, zone.ErrPowerLost):
		z.unknown = true // the device may have moved the write pointer
	}
	a.recount(z)
	return off, err
}

// landed counts n bytes written to the zone while so many others were explicitly open throughout.
func (a *auditor) landed(i int, n int64, others int) {
	z := &a.zones[i]
	z.data += n
	if z.unknown {
		return
	}
	switch capacity := a.geo.CapacityOf(i); {
	case z.cond == zone.Full || z.cond == zone.ReadOnly || z.cond == zone.Offline:
		a.fail("zone %d took a write while %v", i, z.cond)
	case z.data > capacity:
		a.fail("zone %d took %d bytes and holds %d", i, z.data, capacity)
	case z.data == capacity:
		z.cond = zone.Full
	case z.cond == zone.Empty:
		z.cond = zone.Closed
	}
	if a.maxOpen > 0 && others >= a.maxOpen {
		a.fail("zone %d was written to while %d other zones were explicitly open; the limit is %d",
			i, others, a.maxOpen)
	}
}

// command follows a command that leaves the zone in the condition to if it succeeds.
func (a *auditor) command(i int, to zone.Condition, do func() error) error {
	if i < 0 || i >= len(a.zones) {
		return do()
	}
	z := &a.zones[i]
	a.mu.Lock()
	z.commands++
	z.begun++
	lone, begun := z.commands == 1 && z.writes == 0, z.begun
	z.unknown = z.unknown || !lone
	a.recount(z)
	a.mu.Unlock()

	err := do()

	a.mu.Lock()
	defer a.mu.Unlock()
	z.commands--
	lone = lone && z.begun == begun // nothing overlapped it, not even in part
	switch {
	case errors.Is(err, zone.ErrPowerLost):
		z.unknown = true
	case err == nil && to == zone.Empty:
		z.cond, z.data = zone.Empty, 0
		z.unknown = !lone
	case err == nil && to == zone.Closed && z.data == 0 && a.geo.Dialect == zone.SMR:
		z.cond = zone.Empty
	case err == nil:
		z.cond = to
	}
	a.recount(z)
	return err
}

// recount brings the counts up to date with what is certain of z, and checks the limits.
func (a *auditor) recount(z *auditZone) {
	certain := !z.unknown && z.commands == 0
	capacity := a.geo.ZoneCapacity
	if z == &a.zones[len(a.zones)-1] {
		capacity = a.geo.CapacityOf(len(a.zones) - 1)
	}
	open := certain && z.cond == zone.ExplicitOpen && z.data+z.landing < capacity
	active := open || certain && z.cond == zone.Closed && z.data+z.landing < capacity
	a.active += count(active) - count(z.active)
	a.let += count(z.explicit && !open)
	a.explicit += count(open) - count(z.explicit)
	z.active, z.explicit = active, open
	if a.maxActive > 0 && a.active > a.maxActive {
		a.fail("%d zones were active; the limit is %d", a.active, a.maxActive)
	}
	if a.maxOpen > 0 && a.explicit > a.maxOpen {
		a.fail("%d zones were explicitly open; the limit is %d", a.explicit, a.maxOpen)
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (a *auditor) fail(format string, args ...any) {
	if a.failure == nil {
		a.failure = fmt.Errorf("faultdev: "+format, args...)
	}
}

// verdict returns the first failure, or the first difference from the device's report.
func (a *auditor) verdict(dev zone.Device) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failure != nil {
		return a.failure
	}
	report, err := dev.Report(0, -1)
	if err != nil {
		return err
	}
	open, active := 0, 0
	for _, r := range report {
		open += count(r.Condition.IsOpen())
		active += count(r.Condition.IsActive())
		if z := a.zones[r.Index]; !z.unknown && z.commands == 0 && z.writes == 0 && !z.agrees(r) {
			return fmt.Errorf("faultdev: zone %d should be %v with %d bytes; the device reports %v at %d",
				r.Index, z.cond, z.data, r.Condition, r.WP)
		}
	}
	switch {
	case a.maxOpen > 0 && open > a.maxOpen:
		return fmt.Errorf("faultdev: the device reports %d open zones; the limit is %d", open, a.maxOpen)
	case a.maxActive > 0 && active > a.maxActive:
		return fmt.Errorf("faultdev: the device reports %d active zones; the limit is %d", active, a.maxActive)
	}
	return nil
}

func (z auditZone) agrees(r zone.Zone) bool {
	switch z.cond {
	case zone.Closed:
		return (r.Condition == zone.Closed || r.Condition == zone.ImplicitOpen) && r.WP == z.data
	case zone.ExplicitOpen, zone.Empty:
		return r.Condition == z.cond && r.WP == z.data
	}
	return r.Condition == z.cond
}
