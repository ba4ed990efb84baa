package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// op is one request of a client's: what it is for the history, what it does, and what it means for
// the model. Only run runs in the client's goroutine; all else is the run's.
type op struct {
	client         *client
	what, name, to string
	off, end       int64
	data           []byte
	existed        bool

	ctx       context.Context
	cancel    context.CancelFunc
	begun     time.Time
	tick      int64 // of the registers
	run       func(ctx context.Context) error
	after     func(err error) // not called if the life ends first
	abandoned func()          // called instead: what is not known to have happened, unless nil

	over atomic.Bool // set last by the client's goroutine
	err  error
	got  []byte
	size int64
}

func (o *op) String() string {
	s := fmt.Sprintf("client %d: %s", o.client.id, o.what)
	if o.name != "" {
		s += " " + o.name
	}
	if o.to != "" {
		s += " to " + o.to
	}
	if o.end > 0 {
		s += fmt.Sprintf(" [%d, %d)", o.off, o.end)
	}
	return s
}

// client is one client. It has a directory of its own, whose files it alone changes.
type client struct {
	r    *run
	id   int
	todo chan *op
	op   *op // under way

	files  map[string]*model
	staged *staged
	saw    uint32   // checksum of what it read
	unsure *op      // a truncate or punch whose answer was not waited for
	doomed []string // files to delete, to make room or because they are bad
}

// staged is a resumable replace that goes on over many steps and lives.
type staged struct {
	id, name string
	data     []byte
	// What was received is not more than sent; in this life, or after one that was closed in order,
	// not less than acked.
	sent, acked int64
}

func newClient(r *run, id int) *client {
	return &client{r: r, id: id, todo: make(chan *op), files: map[string]*model{}}
}

// serve is the client's goroutine.
func (c *client) serve() {
	for o := range c.todo {
		o.err = o.run(o.ctx)
		o.over.Store(true)
	}
}

// pause lets the run put something else in between two steps of a request.
func (c *client) pause(l *life) { c.r.sched.wait(&event{kind: "client", zone: c.id, life: l}) }

func (c *client) dir() string { return fmt.Sprintf("c%d", c.id) }

func (c *client) names() []string {
	var names []string
	for n := range c.files {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// read reads a range of a file in pieces, with a pause between them.
func (c *client) read(ctx context.Context, o *op, l *life, length *int64, holes bool) error {
	r, err := l.e.OpenReader(ctx, engine.ReadRequest{Ref: engine.Ref{Name: o.name}, Offset: o.off, Length: length, ReportHoles: holes})
	if err != nil {
		return err
	}
	defer r.Close()
	o.size = r.File().Size
	for at := o.off; ; {
		p, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if p.Offset != at {
			return fmt.Errorf("a piece at %d, where %d was to come", p.Offset, at)
		}
		n := int64(len(p.Data)) + p.Hole
		if n == 0 || n > 1<<30 {
			return fmt.Errorf("a piece of %d bytes", n)
		}
		at += n
		if p.Hole > 0 {
			o.got = append(o.got, make([]byte, p.Hole)...)
		}
		o.got = append(o.got, p.Data...)
		c.pause(l)
	}
}

// put replaces a file in messages of at most step bytes.
func (c *client) put(ctx context.Context, l *life, name string, data []byte, step int, expected *int64) error {
	w, err := l.e.OpenWriter(ctx, engine.WriterOptions{Name: name, Mode: engine.Replace, ExpectedSize: expected, MaxWait: maxWait})
	if err != nil {
		return err
	}
	defer w.Close()
	for off := 0; off < len(data); off += step {
		if err := w.Write(ctx, nil, [][]byte{data[off:min(len(data), off+step)]}, nil); err != nil {
			return err
		}
		c.pause(l)
	}
	_, err = w.Finish(ctx, nil)
	return err
}

// writeAt writes one message in place, and syncs it.
func (c *client) writeAt(ctx context.Context, l *life, name string, off int64, data []byte, sync bool) error {
	w, err := l.e.OpenWriter(ctx, engine.WriterOptions{Name: name, MaxWait: maxWait})
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Write(ctx, &off, [][]byte{data}, nil); err != nil || !sync {
		return err
	}
	c.pause(l)
	if err := w.Sync(ctx); err != nil {
		return &notSynced{err}
	}
	return nil
}

// notSynced says that a write was received and its sync failed.
type notSynced struct{ error }

func (n *notSynced) Unwrap() error { return n.error }

// maxWait is how long the clients' writes wait for space or memory.
const maxWait = 3 * time.Second

// took holds an answer against what is legal, and reports whether the request took place. wantErr
// says that it must be refused as kind.
func (c *client) took(o *op, wantErr bool, kind errdefs.Kind) bool {
	r, err := c.r, o.err
	switch {
	case err == nil && wantErr:
		r.failf("%v must be refused as %v", o, kind)
	case err == nil:
		return true
	case wantErr && errdefs.Is(err, kind):
	case o.ctx.Err() != nil && errors.Is(err, o.ctx.Err()):
		r.cov.add("refused ended by its context", 1)
	case errdefs.Is(err, errdefs.NoSpace):
		c.checkRefusal(o)
	case errdefs.Is(err, errdefs.Corruption):
		c.checkCorruption(o)
	case errdefs.Is(err, errdefs.Device) && r.life.faults > 0:
		r.cov.add("refused device", 1)
		c.spoilt(o.name)
	default:
		r.failf("%v: %v", o, err)
	}
	return false
}

// spoilt has a file replaced by nothing, soon.
func (c *client) spoilt(name string) {
	if m := c.files[name]; m != nil && !m.bad {
		m.bad = true
		c.doomed = append(c.doomed, name)
	}
}

// checkRefusal agrees with a refusal only if the space was really not there.
func (c *client) checkRefusal(o *op) {
	r := c.r
	reason := errdefs.ReasonOf(o.err)
	r.cov.add("refused "+string(reason), 1)
	switch reason {
	case errdefs.ReasonMetadataSpace:
		if r.cfg.MetadataLimit > 8<<20 && !r.life.metadataFull {
			r.failf("%v: %v, with no lack of metadata space", o, o.err)
		}
	case errdefs.ReasonNoSpace:
		u := r.life.e.Usage()
		need := int64(0)
		for _, x := range r.clients {
			if x.op != nil {
				// Inline data moves out with the first write: up to a frame more.
				need += extent.RoundUp(int64(len(x.op.data))) + 2*extent.BlockSize + extent.MaxFrameSize
			}
		}
		if u.Free+u.Reclaimable >= need {
			r.failf("%v: refused with %d free, %d to come from resets, and %d wanted by all: %v", o, u.Free, u.Reclaimable, need, o.err)
		}
		for i, n := range c.names() {
			if i%2 == 0 && !slices.Contains(c.doomed, n) {
				c.doomed = append(c.doomed, n)
			}
		}
	default: // something was on its way, and did not come in time
		if waited := time.Since(o.begun); waited < maxWait {
			r.failf("%v: refused after %v, before its time: %v", o, waited, o.err)
		}
	}
}

// checkCorruption agrees with DATA_LOSS only where a fault has hit.
func (c *client) checkCorruption(o *op) {
	r := c.r
	var e *errdefs.Error
	if !errors.As(o.err, &e) {
		r.failf("%v: %v", o, o.err)
		return
	}
	d, ok := e.Detail.(*engine.CorruptionDetail)
	if !ok {
		r.failf("%v: data loss that says not where: %v", o, o.err)
		return
	}
	// A read that fails may fail when it is tried again, too.
	unlucky := errdefs.ReasonOf(o.err) == errdefs.ReasonDeviceIO && r.within(r.shaky, int(d.Device), d.Zone, d.ZoneOff)
	if r.twice() {
		r.failf("%v: a block is lost that is good in one of its copies: %v", o, o.err)
	}
	if !r.within(r.taints, int(d.Device), d.Zone, d.ZoneOff) && !unlucky {
		r.failf("%v: a good block is called bad: %v", o, o.err)
	}
	r.cov.add("found bad blocks", 1)
	c.spoilt(o.name)
}
