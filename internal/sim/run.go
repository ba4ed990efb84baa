package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Result is what a run came to.
type Result struct {
	// Err says what was wrong; nil if nothing was.
	Err error
	// History is what happened, a line for each thing that went on.
	History []string
	// Trace is a checksum of the history: equal for equal runs.
	Trace uint32
	// Read is a checksum of what the clients read, in the order of each: for one history under
	// several configurations.
	Read uint32
}

// Run does one run in a bubble of testing/synctest, whose main goroutine the caller's is. dir is an
// empty folder for the metadata. It leaves no goroutine behind unless the engine does, which ends the
// bubble badly.
func Run(cfg Config, ch *Choices, dir string, cov *Coverage) Result {
	r := &run{cfg: cfg, c: ch, cov: cov, meta: filepath.Join(dir, "metadata.db"), regs: newRegisters(sharedNames)}
	r.do()
	return r.result()
}

func (r *run) result() Result {
	res := Result{Err: r.err, History: r.history}
	for _, c := range r.clients {
		res.Read = crc32.Update(res.Read, crc32.IEEETable, binary.LittleEndian.AppendUint32(nil, c.saw))
	}
	for _, line := range r.history {
		res.Trace = crc32.Update(res.Trace, crc32.IEEETable, []byte(line))
	}
	return res
}

// run is one run. All of it but sched belongs to the bubble's main goroutine.
type run struct {
	cfg     Config
	c       *Choices
	cov     *Coverage
	meta    string
	disks   []*disk
	weak    *disk // with two copies on several disks: the one of them that may fail
	sched   sched
	life    *life
	clients []*client
	regs    *registers
	taints  []place // what a read may rightly find bad
	shaky   []place // what could not be read, once
	failing []place // zones that have failed for good
	hurt    bool    // with two copies: of some block groups there may be one less
	forever []place // what cannot be read any more
	inOrder bool    // the last life was closed in order

	images    [2][]byte // memory for images of the metadata
	stagedIDs int
	history   []string
	err       error
}

// life is the time between an open of the store and its end.
type life struct {
	gone   bool // guarded by sched.mu
	e      *engine.Engine
	devs   []*device
	faults int  // injected so far
	stormy bool // there may be some
	// metadataFull is whether the metadata's disk has been full in this life; full, whether it is.
	metadataFull, full bool
	down               bool // it has ended
	cut, power         bool // it was cut, and the power with it
	// ops and commits count down to the end; 0: none.
	ops, commits int
	dies         int    // counts operations of the weak disk down to its death; 0: it lives
	torn         string // how the commit is cut that is being made
	image        []byte // of the metadata, as the end left it
}

func (r *run) failf(format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, a...)
		r.notef("WRONG: %v", r.err)
	}
}

func (r *run) failed() bool { return r.err != nil }

func (r *run) notef(format string, a ...any) {
	r.history = append(r.history, fmt.Sprintf(format, a...))
}

func (r *run) do() {
	r.c.Step()
	if !r.prepare() {
		return
	}
	for i := range r.cfg.Lives {
		if r.failed() {
			break
		}
		if i > 0 {
			r.c.Step()
		}
		if r.birth() && r.verify() {
			if r.twice() && r.c.Rarely(4) {
				r.mendAll()
			}
			if !r.failed() {
				r.work()
			}
		}
		r.death()
	}
	r.finale()
	r.dismiss()
}

// prepare makes the store and its clients.
func (r *run) prepare() bool {
	if !r.format() {
		return false
	}
	for i := range r.cfg.Clients {
		c := newClient(r, i)
		r.clients = append(r.clients, c)
		go c.serve()
	}
	return true
}

func (r *run) dismiss() {
	for _, c := range r.clients {
		close(c.todo)
	}
}

func (r *run) format() bool {
	var err error
	var devices []engine.Device
	for range max(1, r.cfg.Devices) {
		var d *disk
		if d, err = r.newDisk(r.cfg.Geometry); err != nil {
			break
		}
		devices = append(devices, engine.Device{Path: d.path, Device: d.mem})
	}
	if r.several() || r.twice() {
		r.cov.add(fmt.Sprintf("runs with %d devices and %d copies", len(r.disks), max(1, r.cfg.Copies)), 1)
	}
	if r.several() {
		r.weak = r.disks[r.c.Below(len(r.disks))]
	}
	if err == nil {
		err = engine.Format(engine.FormatOptions{
			Devices: devices, Copies: r.cfg.Copies, MetadataPath: r.meta, UUID: [16]byte{1, 2, 3}, Compression: r.cfg.Compression,
			MetadataLimit: r.cfg.MetadataLimit, Now: time.Now, MetadataNoSync: true,
		})
	}
	if err != nil {
		r.failf("format: %v", err)
	}
	return err == nil
}

// options are those of the next life.
func (r *run) options(l *life) engine.Options {
	codec := r.cfg.Compression
	return engine.Options{
		Devices: l.given(), MetadataPath: r.meta, MetadataLimit: r.cfg.MetadataLimit, Compression: &codec,
		NoDelalloc: r.cfg.NoDelalloc, DirtyLimit: r.cfg.DirtyLimit, MaxWait: maxWait,
		WritebackAge: r.cfg.WritebackAge, Workers: r.cfg.Workers, Now: time.Now,
		OpenDevice: func(path string) (zone.Device, error) { return r.openDevice(l, path) },
		Random:     rand.NewChaCha8([32]byte{byte(len(r.history)), byte(len(r.history) >> 8)}), MetadataNoSync: true,
		AroundCommit: func(commit func() error) error { return r.commit(l, commit) },
	}
}

// newLife chooses how the next life will go; calm: without faults.
func (r *run) newLife(calm bool) *life {
	l := &life{stormy: r.cfg.Faults > 0 && r.c.Rarely(2)}
	l.stormy = l.stormy && !calm
	r.gather(l, calm)
	r.life = l
	return l
}

// plot chooses how the life will end: at a device operation, at a commit, or when its steps are over.
func (r *run) plot() {
	switch r.c.Below(8) {
	case 0:
	case 1, 2, 3:
		r.life.commits = 1 + r.c.Below(6)
	default:
		r.life.ops = 1 + r.c.Below(20)
	}
}

// birth opens the store. False means that the life has ended in the middle of it.
func (r *run) birth() bool {
	for {
		l := r.newLife(false)
		if r.c.Rarely(6) {
			l.ops = 1 + r.c.Below(12)
		}
		var e *engine.Engine
		var err error
		if !r.await("open", func() { e, err = engine.Open(context.Background(), r.options(l)) }, true) {
			return false
		}
		if err == nil {
			l.e = e
			if l.down {
				return false
			}
			l.ops = 0
			r.cov.add("lives begun", 1)
			r.notef("open")
			r.callRoll()
			return !r.failed()
		}
		if !l.down && r.notOurs(err) {
			r.death()
			continue
		}
		// One of several devices whose label cannot be read is left out, and may be missed.
		legal := errdefs.Is(err, errdefs.Device) || r.several() && errdefs.Is(err, errdefs.Precondition)
		if !l.down && !((l.faults > 0 || r.lame()) && legal) {
			r.failf("the store does not open: %v", err)
			return false
		}
		r.cov.add("cuts in recovery", 1)
		r.death()
		if r.failed() {
			return false
		}
	}
}

// await runs f in a goroutine and lets what it waits for go on until it returns. With rough the usual
// choices are made meanwhile, which may end the life; without, everything goes well and in order.
func (r *run) await(what string, f func(), rough bool) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	began := time.Now()
	for i := 0; ; i++ {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
		}
		pending := r.sched.pending(time.Now().Add(24 * time.Hour))
		switch {
		case len(pending) == 0:
			time.Sleep(20 * time.Millisecond)
		case rough && !r.life.down:
			if !r.c.Step() {
				rough = false
				continue
			}
			r.complete(pending[r.c.Below(len(pending))])
		default:
			r.calmly(oldest(pending))
		}
		r.mustEnd(what, i, began)
	}
}

// mustEnd ends everything if what has been waited for has not come in many steps or much time: then
// nothing can be let go of any more, not even this run.
func (r *run) mustEnd(what string, steps int, began time.Time) {
	if steps < 10_000 && time.Since(began) < time.Hour {
		return
	}
	for _, line := range r.history[max(0, len(r.history)-100):] {
		fmt.Println(line)
	}
	panic(fmt.Sprintf("%s does not end in %d steps and %v; goroutines:\n%s", what, steps, time.Since(began), stacks()))
}

func stacks() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var keep []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "internal/engine") || strings.Contains(g, "internal/store") {
			keep = append(keep, g)
		}
	}
	return strings.Join(keep, "\n\n")
}

// work is the middle of a life: clients ask, and things go on, until it ends or has had its steps.
func (r *run) work() {
	r.plot()
	for i := 0; i < r.cfg.Steps && !r.life.down && !r.failed(); i++ {
		r.settle()
		if r.life.down || r.failed() || !r.c.Step() {
			return
		}
		r.step()
	}
	r.settle()
}

// settle waits until everything is blocked, and takes in the answers that have come.
func (r *run) settle() {
	synctest.Wait()
	if r.life.down {
		return
	}
	for _, c := range r.clients {
		if c.op != nil && c.op.over.Load() && !r.failed() {
			o := c.op
			o.cancel()
			r.notef("%v answers %s", o, brief(o.err))
			o.after(o.err)
			c.op = nil
		}
	}
	r.checkIdentity()
}

func brief(err error) string {
	if err == nil {
		return "OK"
	}
	var e *errdefs.Error
	if errors.As(err, &e) {
		return fmt.Sprintf("%v %s", e.Kind, errdefs.ReasonOf(err))
	}
	return err.Error()
}

func (r *run) checkIdentity() {
	u := r.life.e.Usage()
	if sum := u.Used + u.Free + u.Unusable + u.Reserved + u.Quarantined; sum != u.Total {
		r.failf("total %d is not used %d + free %d + unusable %d + reserved %d + quarantined %d = %d",
			u.Total, u.Used, u.Free, u.Unusable, u.Reserved, u.Quarantined, sum)
	}
}

// step lets one thing go on.
func (r *run) step() {
	pending := r.sched.pending(time.Now())
	var idle, busy []*client
	for _, c := range r.clients {
		if c.op == nil {
			idle = append(idle, c)
		} else {
			busy = append(busy, c)
		}
	}
	x := r.c.Below(100)
	switch {
	case x < 55 && len(pending) > 0:
		r.complete(pending[r.c.Below(len(pending))])
	case x < 94 && len(idle) > 0:
		idle[r.c.Below(len(idle))].begin(r.c)
	case x == 94 && len(busy) > 0:
		c := busy[r.c.Below(len(busy))]
		r.notef("%v is cancelled", c.op)
		r.cov.add("operations cancelled", 1)
		c.op.cancel()
	case x == 95 && r.life.stormy:
		r.trouble(pending)
	case x > 95 || len(pending) == 0:
		d := pick(r.c, time.Millisecond, 20*time.Millisecond, 300*time.Millisecond, 4*time.Second, 15*time.Second)
		r.notef("%v go by", d)
		time.Sleep(d)
	default:
		r.complete(pending[r.c.Below(len(pending))])
	}
}

// verify holds what an open has found against what it may find, and goes on from there.
func (r *run) verify() bool {
	l := r.life
	for _, x := range l.e.Conditions() {
		legal := r.hurt || len(r.failing) > 0 || len(r.taints)+len(r.shaky) > 0 || l.faults > 0
		if (x.Severity >= engine.Warning || strings.Contains(x.Reason, "LOSS")) && !legal {
			r.failf("a legal end has left a condition: %+v", x)
		}
	}
	r.checkIdentity()
	for _, c := range r.clients {
		if !r.failed() {
			c.adopt()
		}
	}
	r.adoptShared()
	return !r.failed()
}

// readAll reads a whole file in peace.
func (r *run) readAll(name string) (got []byte, size int64, err error) {
	r.await("read "+name, func() {
		var rd *engine.Reader
		rd, err = r.life.e.OpenReader(context.Background(), engine.ReadRequest{Ref: engine.Ref{Name: name}})
		if err != nil {
			return
		}
		defer rd.Close()
		size = rd.File().Size
		for {
			p, perr := rd.Next(context.Background())
			if errors.Is(perr, io.EOF) {
				return
			}
			if perr != nil {
				err = perr
				return
			}
			got = append(got, p.Data...)
			if int64(len(got)) > size+1<<20 {
				err = fmt.Errorf("%d bytes read of a file of %d, and no end", len(got), size)
				return
			}
		}
	}, false)
	return got, size, err
}

// open opens the store in peace.
func (r *run) open() bool {
	for {
		var err error
		r.await("open", func() { r.life.e, err = engine.Open(context.Background(), r.options(r.life)) }, false)
		if err == nil {
			r.callRoll()
			return !r.failed()
		}
		if !r.notOurs(err) {
			r.failf("the store does not open: %v", err)
			return false
		}
		r.death()
		r.newLife(true)
	}
}

// finale lives once more without faults, and goes through everything.
func (r *run) finale() {
	if r.failed() {
		return
	}
	r.newLife(true)
	if !r.open() {
		return
	}
	var err error
	if r.verify() {
		if r.twice() {
			r.mendAll()
		}
		r.await("sync", func() { _, err = r.life.e.Sync(context.Background(), nil, nil) }, false)
		u := r.life.e.Usage()
		switch {
		case err != nil:
			r.failf("the last sync: %v", err)
		case u.Reserved != 0 || u.Dirty != 0:
			r.failf("%d bytes stay reserved and %d dirty after a sync", u.Reserved, u.Dirty)
		}
	}
	r.callRoll()
	if r.failed() {
		r.death() // so that nothing of it is left
		return
	}
	r.await("close", func() {
		if cerr := r.life.e.Close(context.Background()); err == nil {
			err = cerr
		}
	}, false)
	if err != nil {
		r.failf("the last close: %v", err)
	}
	r.audit(r.life)
	r.check()
}

// check looks over the store that nobody has open.
func (r *run) check() {
	if r.failed() {
		return
	}
	var devices []engine.Device
	for _, d := range r.disks {
		if d.gone {
			continue
		}
		devices = append(devices, engine.Device{Path: d.path, Device: d.mem})
	}
	err := engine.Check(context.Background(), engine.CheckOptions{
		Devices: devices, MetadataPath: r.meta, MetadataLimit: r.cfg.MetadataLimit, ReadData: len(r.taints) == 0,
	}, func(p engine.Problem) {
		if !r.excused(p) {
			r.failf("check: %v", p)
		}
	})
	if err != nil {
		r.failf("check: %v", err)
	}
	r.cov.add("lives checked", 1)
}

// excused reports whether the run has done something that a problem may come of.
func (r *run) excused(p engine.Problem) bool {
	number, z := 0, 0
	if n, _ := fmt.Sscanf(p.Object, "device %d zone %d", &number, &z); n < 2 {
		number = 0
		fmt.Sscanf(p.Object, "zone %d", &z)
	}
	d := r.numbered(number)
	hit := func(t place) bool { return d != nil && t.disk == d.index && t.Zone == z }
	if z > 0 && (slices.ContainsFunc(r.failing, hit) || slices.ContainsFunc(r.taints, hit)) {
		return true
	}
	if !strings.HasPrefix(p.Object, "block group") {
		return r.someUnsure() && strings.HasPrefix(p.Object, "device")
	}
	return len(r.failing) > 0 || r.hurt && strings.Contains(p.Msg, "copies of")
}

// audit holds what the engine has had the disks do against their limits.
func (r *run) audit(l *life) {
	for _, d := range l.devs {
		if err := d.plan.Audit(); err != nil {
			r.failf("%v", err)
		}
	}
}

// someUnsure reports whether a disk is joining or leaving, which may have ended since it was asked for.
func (r *run) someUnsure() bool {
	return slices.ContainsFunc(r.disks, func(d *disk) bool { return d.unsure && !d.gone })
}
