package zone

import (
	"sync"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// MemOptions are the choices a memory device has.
type MemOptions struct {
	// Garbage lets PowerOn fill the last surviving block of an unflushed write with bytes
	// that nobody wrote, as a drive does that loses power inside a block.
	Garbage bool
}

// Mem is a zoned device in memory with a volatile cache: what was not flushed may be lost
// when the power is cut. It is the device of tests and of the crash simulator.
//
// Memory is taken 256 KiB at a time where zones are written, so that a large device costs
// what is in it, and given back by the flush after a reset. A write costs one copy.
//
// Locks: a zone's io lock is taken before mu. Reads and writes share io while they copy;
// whatever replaces content holds it alone. mu guards the machine and is never held while
// data is copied.
type Mem struct {
	geo   Geometry
	opts  MemOptions
	hook  atomic.Pointer[func(Op) error]
	index atomic.Uint64
	pool  segmentPool
	zones []memZone
	flush sync.Mutex // one flush at a time; taken before any io lock

	mu     sync.Mutex
	m      *Machine
	dirty  []int // zones changed since the last flush, each once (memZone.dirty)
	power  powerState
	boot   uint64 // + 1 a PowerOn: tells calls that began before a cut
	closed bool
}

type powerState uint8

const (
	powerOn powerState = iota
	powerOff
)

var _ Device = (*Mem)(nil)

// NewMem returns an empty memory device, powered on. The error is that of Geometry.Validate.
func NewMem(g Geometry, opts MemOptions) (*Mem, error) {
	d := &Mem{geo: g, opts: opts}
	m, err := NewMachine(g, d.changedLocked)
	if err != nil {
		return nil, err
	}
	d.m = m
	d.pool.size = min(segmentSize, g.ZoneSize)
	d.zones = make([]memZone, g.Zones)
	for i := range d.zones {
		d.zones[i].durable.cond = m.zones[i].cond
	}
	return d, nil
}

// changedLocked remembers a zone whose state is not durable.
func (d *Mem) changedLocked(zone int) {
	if z := &d.zones[zone]; !z.dirty {
		z.dirty = true
		d.dirty = append(d.dirty, zone)
	}
}

// SetHook makes f be called before and after every ReadAt, Write, Append, Flush, Open,
// CloseZone, Finish and Reset, with no lock held, so it may call any method of d. An error
// before the operation makes it fail with that error and without effect; an error after it
// is ignored. A nil f takes the hook away.
func (d *Mem) SetHook(f func(Op) error) {
	if f == nil {
		d.hook.Store(nil)
		return
	}
	d.hook.Store(&f)
}

// call is one operation under way.
type call struct {
	op   Op
	hook *func(Op) error
	boot uint64
	name string
}

// begin admits an operation: hook first, then power.
func (d *Mem) begin(name string, kind OpKind, zone int, off, n int64) (call, error) {
	c := call{op: Op{Kind: kind, Zone: zone, Off: off, Len: n}, hook: d.hook.Load(), name: name}
	c.op.Index = d.index.Add(1) - 1
	if c.hook != nil {
		if err := (*c.hook)(c.op); err != nil {
			return c, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.boot = d.boot
	return c, d.upLocked(c)
}

// end lets the hook see the operation and finds out whether the power held until now.
func (d *Mem) end(c call) error {
	if c.hook != nil {
		c.op.After = true
		_ = (*c.hook)(c.op)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.upLocked(c)
}

// upLocked reports whether the device is open and has had power since c began.
func (d *Mem) upLocked(c call) error {
	switch {
	case d.closed:
		return deviceError(c, ErrClosed)
	case d.power != powerOn || d.boot != c.boot:
		return deviceError(c, ErrPowerLost)
	}
	return nil
}

func deviceError(c call, cause error) error {
	where := "device"
	if c.op.Zone >= 0 {
		where = object(c.op.Zone)
	}
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, c.name, where, cause)
}

// Geometry implements Device.
func (d *Mem) Geometry() Geometry { return d.geo }

// Report implements Device.
func (d *Mem) Report(first, n int) ([]Zone, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.upLocked(call{name: "zone.Report", op: Op{Zone: -1}, boot: d.boot}); err != nil {
		return nil, err
	}
	return d.m.Report(first, n)
}

// Stats implements Device.
func (d *Mem) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.m.Stats()
}

// Close implements Device. Later calls fail with ErrClosed, a second Close too.
func (d *Mem) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return deviceError(call{name: "zone.Close", op: Op{Zone: -1}}, ErrClosed)
	}
	d.closed = true
	return nil
}

// ReadAt implements Device.
func (d *Mem) ReadAt(zone int, off int64, p []byte) error {
	c, err := d.begin("zone.ReadAt", OpRead, zone, off, int64(len(p)))
	if err != nil {
		return err
	}
	if err := d.read(c, p); err != nil {
		return err
	}
	return d.end(c)
}

func (d *Mem) read(c call, p []byte) error {
	z := d.zone(c.op.Zone)
	z.io.RLock()
	defer z.io.RUnlock()
	d.mu.Lock()
	written, err := int64(0), d.upLocked(c)
	if err == nil {
		written, err = d.m.CheckRead(c.op.Zone, c.op.Off, c.op.Len)
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	z.read(d.pool.size, c.op.Off, p[:written])
	clear(p[written:])
	return nil
}

// zone returns the zone, or a stand-in to lock for a number that the machine will refuse.
func (d *Mem) zone(i int) *memZone {
	if i < 0 || i >= len(d.zones) {
		return &memZone{}
	}
	return &d.zones[i]
}

// Write implements Device.
func (d *Mem) Write(zone int, off int64, bufs [][]byte) error {
	c, err := d.begin("zone.Write", OpWrite, zone, off, TotalLen(bufs))
	if err != nil {
		return err
	}
	if err := d.put(&c, bufs); err != nil {
		return err
	}
	return d.end(c)
}

// Append implements Device.
func (d *Mem) Append(zone int, bufs [][]byte) (int64, error) {
	c, err := d.begin("zone.Append", OpAppend, zone, -1, TotalLen(bufs))
	if err != nil {
		return 0, err
	}
	if err := d.put(&c, bufs); err != nil {
		return 0, err
	}
	if err := d.end(c); err != nil {
		return 0, err
	}
	return c.op.Off, nil
}

// put moves the write pointer and then copies; the place of an append is left in c.
func (d *Mem) put(c *call, bufs [][]byte) error {
	z := d.zone(c.op.Zone)
	if c.op.Kind == OpWrite && !d.geo.IsSequential(c.op.Zone) {
		z.io.Lock() // overwrites may meet reads of the same bytes
		defer z.io.Unlock()
	} else {
		z.io.RLock()
		defer z.io.RUnlock()
	}
	d.mu.Lock()
	err := d.upLocked(*c)
	if err == nil && c.op.Kind == OpAppend {
		c.op.Off, err = d.m.StartAppend(c.op.Zone, c.op.Len)
	} else if err == nil {
		err = d.m.StartWrite(c.op.Zone, c.op.Off, c.op.Len)
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if !d.geo.IsSequential(c.op.Zone) {
		z.saveOld(&d.pool, c.op.Off, c.op.Len)
	}
	z.write(&d.pool, c.op.Off, bufs)
	d.mu.Lock()
	d.m.EndWrite(c.op.Zone, c.op.Off)
	d.mu.Unlock()
	return nil
}

// TotalLen returns the number of bytes in bufs.
func TotalLen(bufs [][]byte) int64 {
	n := int64(0)
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// Open implements Device.
func (d *Mem) Open(zone int) error {
	return d.command("zone.Open", OpOpen, zone, d.m.Open)
}

// CloseZone implements Device.
func (d *Mem) CloseZone(zone int) error {
	return d.command("zone.CloseZone", OpCloseZone, zone, d.m.Close)
}

// Finish implements Device.
func (d *Mem) Finish(zone int) error {
	return d.command("zone.Finish", OpFinish, zone, d.m.Finish)
}

// Reset implements Device. It waits for reads and writes of the zone that are under way.
func (d *Mem) Reset(zone int) error {
	return d.command("zone.Reset", OpReset, zone, func(zone int) error {
		if zone < 0 || zone >= len(d.zones) || d.m.zones[zone].cond == Empty {
			return d.m.Reset(zone)
		}
		before := settled{}
		before.data, before.finished = d.m.Written(zone)
		if err := d.m.Reset(zone); err != nil {
			return err
		}
		d.zones[zone].displace(&d.pool, before)
		return nil
	})
}

// command runs a command that moves no data with the zone's content at rest.
func (d *Mem) command(name string, kind OpKind, zone int, run func(zone int) error) error {
	c, err := d.begin(name, kind, zone, 0, 0)
	if err != nil {
		return err
	}
	z := d.zone(zone)
	z.io.Lock()
	d.mu.Lock()
	if err = d.upLocked(c); err == nil {
		err = run(zone)
	}
	d.mu.Unlock()
	z.io.Unlock()
	if err != nil {
		return err
	}
	return d.end(c)
}

// Flush implements Device.
func (d *Mem) Flush() error {
	c, err := d.begin("zone.Flush", OpFlush, -1, 0, 0)
	if err != nil {
		return err
	}
	if err := d.settleDirty(c); err != nil {
		return err
	}
	return d.end(c)
}

func (d *Mem) settleDirty(c call) error {
	d.flush.Lock()
	defer d.flush.Unlock()
	d.mu.Lock()
	todo := d.dirty
	d.dirty = nil
	d.mu.Unlock()
	for _, i := range todo {
		z := &d.zones[i]
		z.io.Lock()
		d.mu.Lock()
		err := d.upLocked(c)
		if err == nil {
			z.settle(&d.pool, d.stateLocked(i))
		}
		d.mu.Unlock()
		z.io.Unlock()
		if err != nil {
			return err // PowerOn looks at memZone.dirty, so the rest is not forgotten
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.upLocked(c); err != nil {
		return err
	}
	d.m.CountFlush()
	return nil
}

func (d *Mem) stateLocked(zone int) settled {
	s := settled{cond: d.m.zones[zone].cond}
	s.data, s.finished = d.m.Written(zone)
	return s
}
