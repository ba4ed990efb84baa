package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func (c *client) name(ch *Choices) string {
	return c.dir() + pick(ch, "/a", "/b", "/c", "/d/e", "/d/f", "/d/g/h", "/i")
}

func offset(ch *Choices, size int) int64 {
	switch ch.Below(5) {
	case 0:
		return int64(ch.Below(size + 1))
	case 1:
		return int64(size)
	case 2:
		return int64(ch.Below(size+1)) / extent.BlockSize * extent.BlockSize
	case 3:
		return int64(size + ch.Below(20_000))
	}
	return 0
}

func data(ch *Choices) []byte {
	n := 1 + ch.Below(3000)
	switch ch.Below(8) {
	case 6:
		n = extent.BlockSize * (1 + ch.Below(4))
	case 7:
		n = 1 + ch.Below(60_000)
	}
	return content(ch.Seed(), n)
}

// plan chooses the client's next request.
func (c *client) plan(ch *Choices) *op {
	if c.unsure != nil {
		return c.planMakeSure(c.unsure)
	}
	if len(c.doomed) > 0 {
		name := c.doomed[0]
		c.doomed = c.doomed[1:]
		return c.planDelete(name, engine.Preconditions{})
	}
	if c.r.cfg.Shared && ch.Rarely(3) {
		return c.planShared(ch)
	}
	if ch.Rarely(15) {
		return c.planSpace(ch)
	}
	name := c.name(ch)
	m := c.files[name]
	size := 0
	if m != nil {
		size = len(m.cur)
	}
	switch ch.Below(12) {
	case 0:
		return c.planRead(ch, name, size)
	case 1, 2, 3:
		return c.planWrite(name, offset(ch, size), data(ch), ch.Rarely(4))
	case 4, 5:
		return c.planPut(ch, name)
	case 6:
		if ch.Rarely(4) {
			return c.planTrim(ch)
		}
		return c.planSync(ch)
	case 7:
		return c.planTruncate(ch, name, offset(ch, size))
	case 8:
		return c.planPunch(ch, name, offset(ch, size))
	case 9:
		var cond engine.Preconditions
		if ch.Rarely(6) {
			wrong := int64(size) + 1
			cond.Size = &wrong
		}
		return c.planDelete(name, cond)
	case 10:
		if ch.Rarely(2) {
			return c.planStaged(ch)
		}
		return c.planRename(name, c.name(ch))
	case 11:
		if ch.Rarely(2) {
			return c.planClone(ch, name, c.name(ch))
		}
	}
	return c.planLook(ch, name)
}

func (c *client) planWrite(name string, off int64, data []byte, sync bool) *op {
	m := c.files[name]
	o := &op{what: "write", name: name, data: data, off: off, end: off + int64(len(data)), existed: m != nil}
	before := (*model)(nil)
	if m == nil {
		m = &model{}
		c.files[name] = m
	} else {
		before = m.clone()
	}
	m.write(off, data)
	l := c.r.life
	o.run = func(ctx context.Context) error { return c.writeAt(ctx, l, name, off, data, sync) }
	o.after = func(err error) {
		var late *notSynced
		received := errors.As(err, &late)
		if c.took(o, false, 0) {
			if sync {
				m.durable()
			}
			return
		}
		if received || c.r.failed() {
			return
		}
		// It changed nothing, but the file may have been made.
		if before != nil {
			bad := m.bad
			*m = *before
			m.bad = bad
			return
		}
		c.settleMaybe(name)
	}
	return o
}

// settleMaybe finds out whether an empty file was made.
func (c *client) settleMaybe(name string) {
	_, err := c.r.life.e.Get(context.Background(), engine.Ref{Name: name})
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		delete(c.files, name)
	case err == nil:
		*c.files[name] = model{bad: c.files[name].bad}
	default:
		c.r.failf("get %s: %v", name, err)
	}
}

func (c *client) planPut(ch *Choices, name string) *op {
	data := data(ch)
	if c.r.cfg.Tight && ch.Rarely(4) {
		data = content(ch.Seed(), int(c.r.life.e.Usage().Free)*pick(ch, 90, 75, 50, 25)/100)
	}
	if ch.Rarely(10) {
		data = nil
	}
	step := pick(ch, 1<<20, 4096, 10_000)
	var expected *int64
	wrong := false
	if ch.Rarely(4) {
		n := int64(len(data))
		if wrong = ch.Rarely(3); wrong {
			n++
		}
		expected = &n
	}
	o := &op{what: "put", name: name, data: data, end: int64(len(data))}
	l := c.r.life
	o.run = func(ctx context.Context) error { return c.put(ctx, l, name, data, step, expected) }
	o.after = func(error) {
		if c.took(o, wrong, errdefs.Precondition) {
			c.replaced(name, data)
		}
	}
	return o
}

func (c *client) replaced(name string, data []byte) {
	m := &model{cur: slices.Clone(data)}
	m.durable()
	c.files[name] = m
	c.doomed = slices.DeleteFunc(c.doomed, func(n string) bool { return n == name })
}

func (c *client) planDelete(name string, cond engine.Preconditions) *op {
	o := &op{what: "delete", name: name}
	m, l := c.files[name], c.r.life
	o.run = func(ctx context.Context) error {
		_, err := l.e.Delete(ctx, engine.DeleteRequest{Name: name, If: cond})
		return err
	}
	o.after = func(err error) {
		kind := errdefs.NotFound
		if m != nil {
			kind = errdefs.Precondition
		}
		if c.took(o, m == nil || cond.Size != nil, kind) {
			delete(c.files, name)
		} else if m != nil && m.bad && !slices.Contains(c.doomed, name) {
			c.doomed = append(c.doomed, name)
		}
	}
	return o
}

func (c *client) planRename(name, to string) *op {
	o := &op{what: "rename", name: name, to: to}
	m, l := c.files[name], c.r.life
	o.run = func(ctx context.Context) error {
		_, _, err := l.e.Rename(ctx, engine.RenameRequest{Name: name, NewName: to, Replace: true})
		return err
	}
	o.after = func(error) {
		if c.took(o, m == nil, errdefs.NotFound) {
			m.durable()
			delete(c.files, name)
			c.files[to] = m
			if m.bad && name != to {
				c.doomed = append(c.doomed, to)
			}
		}
	}
	return o
}

func (c *client) planTruncate(ch *Choices, name string, size int64) *op {
	o := &op{what: "truncate", name: name, off: size, end: extent.MaxFileSize}
	m, l := c.files[name], c.r.life
	var f engine.File
	o.run = func(ctx context.Context) (err error) {
		f, _, err = l.e.Truncate(ctx, name, size, engine.Preconditions{})
		return err
	}
	o.after = func(error) {
		if c.took(o, m == nil, errdefs.NotFound) {
			m.cur = resized(m.cur, size)
			c.cutDurable(o, m, f)
		} else if m != nil {
			c.unsure = o
		}
	}
	return o
}

// cutDurable notes that a file was cut, durably: with all that was written to it, unless that has
// failed.
func (c *client) cutDurable(o *op, m *model, f engine.File) {
	if !f.SyncFailed {
		m.durable()
		return
	}
	if c.r.life.faults == 0 {
		c.r.failf("%v: a part of it cannot be made durable, with no fault", o)
	}
	c.spoilt(o.name)
}

func (c *client) planPunch(ch *Choices, name string, off int64) *op {
	end := off + 1 + int64(ch.Below(30_000))
	o := &op{what: "punch", name: name, off: off, end: end}
	m, l := c.files[name], c.r.life
	var f engine.File
	o.run = func(ctx context.Context) (err error) {
		f, _, err = l.e.Deallocate(ctx, name, off, end-off, engine.Preconditions{})
		return err
	}
	o.after = func(error) {
		if c.took(o, m == nil, errdefs.NotFound) {
			m.cur = zeroed(m.cur, off, end)
			c.cutDurable(o, m, f)
		} else if m != nil {
			c.unsure = o
		}
	}
	return o
}

func (c *client) planSync(ch *Choices) *op {
	o := &op{what: "sync", tick: c.r.regs.tick()}
	var names []string
	if all := c.names(); len(all) > 0 && ch.Rarely(2) {
		o.name = all[ch.Below(len(all))]
		names = []string{o.name}
	}
	l := c.r.life
	o.run = func(ctx context.Context) error {
		_, err := l.e.Sync(ctx, names, nil)
		return err
	}
	o.after = func(err error) {
		if !c.took(o, false, 0) {
			return
		}
		for name, m := range c.files {
			if names == nil || name == names[0] {
				m.durable()
			}
		}
		if names == nil {
			c.r.regs.synced(o.tick, func(*change) bool { return true })
		}
	}
	return o
}

// planStaged begins a resumable replace, goes on with it from where the engine says it stands, or
// finishes it.
func (c *client) planStaged(ch *Choices) *op {
	if c.staged == nil {
		c.r.stagedIDs++
		c.staged = &staged{id: fmt.Sprintf("w%d", c.r.stagedIDs), name: c.name(ch), data: data(ch)}
	}
	s, l := c.staged, c.r.life
	o := &op{what: "stage", name: s.name, data: s.data}
	n := 1 + ch.Below(len(s.data))
	finish := ch.Rarely(2)
	if finish {
		o.what, o.end = "put", int64(len(s.data))
	}
	o.run = func(ctx context.Context) error {
		w, err := l.e.OpenWriter(ctx, engine.WriterOptions{Name: s.name, Mode: engine.Replace, WriteID: s.id, MaxWait: maxWait})
		if err != nil {
			return err
		}
		defer w.Close()
		at, _ := w.Position()
		if at < s.acked || at > s.sent {
			return fmt.Errorf("a resumed write stands at %d, which is not within [%d, %d]", at, s.acked, s.sent)
		}
		s.acked = at
		to := int64(n)
		if finish {
			to = int64(len(s.data))
		}
		if at < to {
			s.sent = max(s.sent, to)
			if err := w.Write(ctx, nil, [][]byte{s.data[at:to]}, nil); err != nil {
				return err
			}
			s.acked = to
		}
		if !finish {
			return nil
		}
		c.pause(l)
		crc := csum.Sum(s.data)
		_, err = w.Finish(ctx, &crc)
		return err
	}
	o.after = func(error) {
		if c.took(o, false, 0) && finish {
			c.staged = nil
			c.replaced(s.name, s.data)
		} else if errdefs.Is(o.err, errdefs.Device) {
			s.acked = 0 // what could not be made durable may have to be sent again
		}
	}
	o.abandoned = func() {
		if finish {
			c.staged = nil // it may have its name
		}
	}
	return o
}

// begin chooses a request, and now and then a deadline.
func (c *client) begin(ch *Choices) {
	c.start(c.plan(ch), pick(ch, 0, 0, 0, 0, 0, 0, 0, 0, 5*time.Second, time.Second, 20*time.Millisecond, time.Microsecond))
}

// start hands a request to the client's goroutine, with a deadline unless that is 0.
func (c *client) start(o *op, deadline time.Duration) {
	o.client, o.begun = c, time.Now()
	if o.tick == 0 {
		o.tick = c.r.regs.tick()
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	if deadline > 0 {
		o.ctx, o.cancel = context.WithTimeout(context.Background(), deadline)
	}
	c.op = o
	c.r.cov.add("operations "+o.what, 1)
	c.r.notef("%v", o)
	c.todo <- o
}
