package sim

import (
	"context"
	"slices"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// planClone has a file cloned to another name of the same client. All that was received of it is
// durable when that is answered, in both. Of a bad file nobody knows what a clone would have.
func (c *client) planClone(ch *Choices, name, to string) *op {
	o := &op{what: "clone", name: name, to: to}
	m, l := c.files[name], c.r.life
	switch {
	case m != nil && m.bad:
		return c.planLook(ch, name)
	case m != nil:
		o.data = slices.Clone(m.cur)
	}
	kind := errdefs.NotFound
	if name == to {
		kind = errdefs.InvalidArgument
	}
	o.run = func(ctx context.Context) error {
		_, _, err := l.e.Clone(ctx, engine.CloneRequest{Name: name, NewName: to, Replace: true})
		return err
	}
	o.after = func(error) {
		if !c.took(o, m == nil || name == to, kind) {
			return
		}
		m.durable()
		c.replaced(to, o.data)
	}
	return o
}

// adoptClone says what a clone that the life's end interrupted stands for: a put of its name with
// what the source had. Where it took place, so did all that the source had received.
func (c *client) adoptClone(o *op, found map[string][]byte, sizes map[string]int64) *op {
	if m := c.files[o.name]; m != nil && c.files[o.to] == nil {
		if got, there := found[o.to]; there && prefixOf(got, o.data, sizes[o.to]) {
			m.durable()
		}
	}
	return &op{client: c, what: "put", name: o.to, data: o.data}
}
