package sim

import (
	"bytes"
	"context"
	"hash/crc32"
	"slices"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

func (c *client) planRead(ch *Choices, name string, size int) *op {
	o := &op{what: "read", name: name}
	var length *int64
	if ch.Rarely(2) {
		o.off = offset(ch, size)
		n := int64(ch.Below(50_000))
		length = &n
		o.end = o.off + n
	}
	holes := ch.Rarely(3)
	m, l := c.files[name], c.r.life
	o.run = func(ctx context.Context) error { return c.read(ctx, o, l, length, holes) }
	o.after = func(err error) {
		whole := c.took(o, m == nil, errdefs.NotFound)
		if m == nil || m.bad || c.r.failed() {
			return
		}
		want := m.cur[min(o.off, int64(len(m.cur))):]
		if length != nil {
			want = want[:min(*length, int64(len(want)))]
		}
		if !whole {
			want = want[:min(len(want), len(o.got))]
		}
		if !bytes.Equal(o.got, want) {
			c.r.failf("%v: %d bytes differ at %d of %d", o, len(o.got), firstDifference(o.got, want), len(want))
		}
		c.saw = crc32.Update(c.saw, crc32.IEEETable, o.got)
	}
	return o
}

// planMakeSure reads a file that a truncate or punch was to change which did not wait for the answer:
// it has happened or not, as a whole. That it is read does not make it durable: what it stands on may
// be data that cannot be stored, which its answer would have said. So it is synced too.
func (c *client) planMakeSure(cut *op) *op {
	o := &op{what: "make sure of", name: cut.name}
	m, l := c.files[cut.name], c.r.life
	o.run = func(ctx context.Context) error {
		if err := c.read(ctx, o, l, nil, false); err != nil {
			return err
		}
		_, err := l.e.Sync(ctx, []string{o.name}, nil)
		return err
	}
	o.after = func(error) {
		if !c.took(o, false, 0) {
			if m.bad {
				c.unsure = nil
			}
			return
		}
		c.unsure = nil
		happened := cut.outcome(m.cur)
		switch {
		case bytes.Equal(o.got, m.cur):
		case bytes.Equal(o.got, happened):
			m.cur = happened
			m.durable()
		default:
			c.r.failf("%v, which was %v, and the file is neither as before nor as after (%d bytes differ at %d and %d)", o, cut,
				len(o.got), firstDifference(o.got, m.cur), firstDifference(o.got, happened))
		}
	}
	return o
}

// outcome is what a truncate or punch makes of a file's content.
func (o *op) outcome(cur []byte) []byte {
	if o.what == "truncate" {
		return resized(cur, o.off)
	}
	return zeroed(cur, o.off, o.end)
}

// planLook asks what there is: a file, or the client's directory; or makes an empty file.
func (c *client) planLook(ch *Choices, name string) *op {
	m, l := c.files[name], c.r.life
	switch ch.Below(3) {
	case 0:
		o := &op{what: "get", name: name}
		var f engine.File
		o.run = func(ctx context.Context) (err error) {
			f, err = l.e.Get(ctx, engine.Ref{Name: name})
			return err
		}
		o.after = func(error) {
			if c.took(o, m == nil, errdefs.NotFound) && !m.bad && f.Size != int64(len(m.cur)) {
				c.r.failf("%v: size %d, want %d", o, f.Size, len(m.cur))
			}
		}
		return o
	case 1:
		o := &op{what: "list", name: c.dir()}
		var files []engine.File
		o.run = func(ctx context.Context) (err error) {
			files, _, err = l.e.List(ctx, engine.ListRequest{Directory: c.dir(), Recursive: true})
			return err
		}
		o.after = func(error) {
			missing := errdefs.Is(o.err, errdefs.NotFound) && len(c.files) == 0 // so may be the directory
			if !missing && c.took(o, false, 0) {
				c.checkList(o, files)
			}
		}
		return o
	}
	o := &op{what: "create", name: name, existed: m != nil}
	o.run = func(ctx context.Context) error {
		_, err := l.e.Create(ctx, engine.CreateRequest{Name: name, Exclusive: true})
		return err
	}
	o.after = func(error) {
		if c.took(o, m != nil, errdefs.AlreadyExists) {
			c.files[name] = &model{}
		}
	}
	return o
}

func (c *client) checkList(o *op, files []engine.File) {
	var got []string
	for _, f := range files {
		if !f.Directory {
			got = append(got, f.Name)
		}
	}
	if want := c.names(); !slices.Equal(got, want) {
		c.r.failf("%v: the store lists %q, the model has %q", o, got, want)
	}
}
