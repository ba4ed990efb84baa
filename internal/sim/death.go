package sim

import (
	"context"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store/storetest"
)

// cut ends the life, with the power or without: from here on nothing of it takes effect. The answers
// that have come are good; those under way mean nothing.
func (r *run) cut(power bool, why string) {
	l := r.life
	if l.down {
		return
	}
	l.down, l.cut, l.power = true, true, power
	r.inOrder = false
	r.notef("CUT (power %t) %s", power, why)
	r.coverReclaim(l)
	if power {
		for _, d := range r.disks {
			d.mem.CutPower()
		}
	}
	if l.image == nil {
		var err error
		if r.images[0], err = storetest.ImageInto(r.images[0], r.meta); err != nil {
			r.failf("image: %v", err)
		}
		l.image = r.images[0]
	}
	r.sched.end(l)
}

// commit stands around each metadata transaction of a life.
func (r *run) commit(l *life, commit func() error) error {
	v := r.sched.wait(&event{kind: "commit", life: l})
	if v.err != nil {
		return v.err
	}
	err := commit()
	if v.hold {
		// Written, and nobody knows: what must wait for this commit must still be waiting.
		if v := r.sched.wait(&event{kind: "committed", life: l}); v.err != nil {
			return v.err
		}
	}
	return err
}

// completeCommit lets a commit go on, or ends the life around it.
func (r *run) completeCommit(ev *event) {
	l := r.life
	r.notef("commit")
	if l.full {
		r.cov.add("faults metadata disk full", 1)
		r.sched.let(ev, verdict{err: errdefs.New(errdefs.NoSpace, errdefs.ReasonMetadataSpace, "sim.commit", "metadata", "its disk is full")})
		return
	}
	if l.commits == 0 {
		r.sched.let(ev, verdict{})
		return
	}
	if l.commits--; l.commits > 0 {
		r.sched.let(ev, verdict{})
		return
	}
	where := pick(r.c, "before", "after", "middle", "torn")
	if where == "before" {
		r.cov.add("cuts commit before", 1)
		r.cut(true, "before a commit")
		return
	}
	var err error
	r.images[0], err = storetest.ImageInto(r.images[0], r.meta)
	if err != nil {
		r.failf("image: %v", err)
	}
	l.torn = where
	r.sched.let(ev, verdict{hold: true})
}

// completeCommitted ends the life with the commit that has just been written: as if it had been cut
// before its end, or after it.
func (r *run) completeCommitted() {
	l := r.life
	before := r.images[0]
	after, err := storetest.ImageInto(r.images[1], r.meta)
	r.images[1] = after
	if err != nil {
		r.failf("image: %v", err)
	}
	seed := rand.New(rand.NewSource(int64(r.c.Seed())))
	switch l.torn {
	case "after":
		l.image = after
	case "middle":
		l.image = storetest.Mixtures(before, after, seed)
	case "torn":
		l.image = storetest.TornMeta(before, after, seed)
	}
	r.cov.add("cuts commit "+l.torn, 1)
	r.cut(true, "at a commit, "+l.torn)
}

// death ends a life that has not ended, lets go of the engine, and brings the device back with what
// survived.
func (r *run) death() {
	l := r.life
	if l == nil || r.failed() && l.e == nil {
		return
	}
	if !l.down && l.e != nil && r.c.Rarely(4) && !r.failed() {
		r.close()
	}
	if l.down && !l.cut {
		return
	}
	if !l.down {
		kill := r.c.Rarely(3)
		r.cov.add(pick2(kill, "cuts process killed", "cuts idle"), 1)
		r.cut(!kill, "when idle")
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range r.clients {
		if c.op != nil {
			c.op.cancel()
		}
	}
	r.awaitClients()
	if l.e != nil {
		r.await("the end of a life", func() { l.e.Close(ended) }, false)
	}
	r.cov.add("cuts all", 1)
	if err := storetest.Write(r.meta, l.image); err != nil {
		r.failf("image: %v", err)
	}
	r.spoiled(l)
	if l.power {
		for _, d := range r.disks {
			d.mem.PowerOn(randv2.New(randv2.NewPCG(r.c.Seed(), 2)))
		}
	}
}

// coverReclaim counts what was moved in a life, and whether it ends in the middle of that.
func (r *run) coverReclaim(l *life) {
	if l.e == nil {
		return
	}
	n := l.e.Counters()
	r.cov.add("reclaim block groups emptied", int(n["reclaim_emptied"]))
	r.cov.add("reclaim bytes moved", int(n["reclaim_bytes_moved"]))
	if l.e.Reclaiming() {
		r.cov.add("cuts while live data moves or zones are reset", 1)
	}
}

func pick2[T any](cond bool, a, b T) T {
	if cond {
		return a
	}
	return b
}

// awaitClients waits until no client is in the engine any more.
func (r *run) awaitClients() {
	began := time.Now()
	for i := 0; ; i++ {
		synctest.Wait()
		if !slices.ContainsFunc(r.clients, func(c *client) bool { return c.op != nil && !c.op.over.Load() }) {
			return
		}
		if pending := r.sched.pending(time.Now().Add(24 * time.Hour)); len(pending) > 0 {
			r.calmly(oldest(pending))
		} else {
			time.Sleep(50 * time.Millisecond)
		}
		r.mustEnd("a request, after the end of the store,", i, began)
	}
}

// close ends a life in order.
func (r *run) close() {
	l := r.life
	l.ops, l.commits, l.full = 0, 0, false
	r.inOrder = true
	for _, d := range l.devs {
		d.plan.Heal()
	}
	began := time.Now()
	for i := 0; slices.ContainsFunc(r.clients, func(c *client) bool { return c.op != nil }) && !r.failed(); i++ {
		r.settle()
		if pending := r.sched.pending(time.Now().Add(24 * time.Hour)); len(pending) > 0 {
			r.calmly(oldest(pending))
		} else {
			time.Sleep(20 * time.Millisecond)
		}
		r.mustEnd("a request", i, began)
	}
	if r.failed() {
		return
	}
	var err error
	r.notef("close")
	r.await("close", func() { err = l.e.Close(context.Background()) }, false)
	l.down = true
	r.sched.end(l)
	r.cov.add("lives closed in order", 1)
	r.coverReclaim(l)
	r.spoiled(l)
	if err != nil {
		r.inOrder = false
		if l.faults == 0 {
			r.failf("close: %v", err)
		}
		return
	}
	for _, c := range r.clients {
		for _, m := range c.files {
			m.durable()
		}
	}
	now := r.regs.tick()
	r.regs.synced(now, func(*change) bool { return true })
	if l.faults == 0 && len(r.failing) == 0 {
		r.audit(l)
	}
}

// adopt holds what a client's files are after an open against what they may be.
func (c *client) adopt() {
	r := c.r
	o := c.op
	c.op = nil
	if o == nil {
		o = &op{client: c, what: "nothing"}
	}
	if o.abandoned != nil {
		o.abandoned()
	}
	if c.staged != nil && !r.inOrder {
		c.staged.acked = 0
	}
	if c.unsure != nil { // nothing else has been asked since but to make sure of it
		o, c.unsure = c.unsure, nil
	}
	found, sizes := map[string][]byte{}, map[string]int64{}
	for _, name := range r.list(c.dir()) {
		got, size, err := r.readAll(name)
		if err != nil {
			o.err = err
			c.checkCorruption(&op{client: c, what: "read", name: name, err: err})
		}
		found[name], sizes[name] = got, size
		if err != nil {
			c.doomed = append(c.doomed, name)
		}
		if r.failed() {
			return
		}
	}
	bad := func(format string, a ...any) {
		r.failf("after the end of a life in %v: %s", o, fmt.Sprintf(format, a...))
	}
	if o.what == "rename" && o.name != o.to && c.files[o.name] != nil {
		if _, there := found[o.name]; !there { // it took place, with all the data
			cur := c.files[o.name].cur
			c.files[o.to] = &model{base: cur, cur: cur}
			delete(c.files, o.name)
		}
	}
	if o.what == "clone" {
		o = c.adoptClone(o, found, sizes)
	}
	for name, m := range c.files {
		got, there := found[name]
		mine := name == o.name
		whole := int64(len(got)) == sizes[name]
		switch {
		case !there:
			if !(mine && (o.what == "delete" || (o.what == "write" || o.what == "create") && !o.existed)) {
				bad("%s is gone", name)
				return
			}
			continue
		case m.bad:
			continue
		case mine && o.what == "put" && prefixOf(got, o.data, sizes[name]):
			continue
		case mine && (o.what == "truncate" || o.what == "punch") && prefixOf(got, o.outcome(m.cur), sizes[name]):
			continue
		}
		if !whole {
			got = got[:len(got)/4096*4096]
		}
		if err := m.afterCrash(got, sizes[name], o.cutRange(mine)); err != nil {
			bad("%s: %v", name, err)
			return
		}
	}
	for name, got := range found {
		if c.files[name] != nil {
			continue
		}
		made := name == o.name && (o.what == "put" && prefixOf(got, o.data, sizes[name]) || o.what == "create" && len(got) == 0)
		if !made {
			bad("%s has come from nowhere", name)
			return
		}
	}
	c.files = map[string]*model{}
	for name, got := range found {
		m := &model{cur: got, bad: int64(len(got)) != sizes[name]}
		m.durable()
		c.files[name] = m
	}
	c.doomed = slices.DeleteFunc(c.doomed, func(n string) bool { return c.files[n] == nil })
}
