package sim

import (
	"path/filepath"
	"testing/synctest"
	"time"
)

// Same does a run in which what the clients ask depends on requests alone, so that it reads the same
// under every configuration and whatever goes first: each client makes so many requests, on files of its
// own, one after the other; nothing fails, nobody loses patience, and the device is large enough.
// ch chooses what goes first and when the store is closed and opened again. dir and cov are as for Run.
func Same(cfg Config, requests uint64, each int, ch *Choices, dir string, cov *Coverage) Result {
	cfg.Shared, cfg.Tight, cfg.Faults = false, false, 0
	r := &run{cfg: cfg, c: ch, cov: cov, meta: filepath.Join(dir, "metadata.db"), regs: newRegisters(sharedNames)}
	ch.Step()
	if !r.prepare() {
		return r.result()
	}
	left := make([]int, cfg.Clients)
	for i := range left {
		left[i] = each
	}
	for !r.failed() {
		r.newLife(true)
		if !r.open() || !r.verify() {
			break
		}
		over := r.serveSome(requests, left)
		if !r.failed() {
			r.close()
		}
		if over {
			break
		}
	}
	r.finale()
	r.dismiss()
	return r.result()
}

// serveSome lets the clients go on with their plans until they are over or the choices want the store
// opened anew. It reports whether they are over.
func (r *run) serveSome(requests uint64, left []int) bool {
	began := time.Now()
	for i := 0; !r.failed(); i++ {
		r.settle()
		r.c.Step()
		pending := r.sched.pending(time.Now())
		var idle []*client
		over := true
		for j, c := range r.clients {
			if c.op == nil && left[j] > 0 {
				idle = append(idle, c)
			}
			over = over && c.op == nil && left[j] == 0
		}
		switch {
		case over:
			return true
		case r.c.Rarely(300):
			return false
		case len(pending) > 0 && (len(idle) == 0 || r.c.Below(2) == 0):
			r.complete(pending[r.c.Below(len(pending))])
		case len(idle) > 0:
			c := idle[r.c.Below(len(idle))]
			left[c.id]--
			// Choices of its own for each request: how many another one took must not matter.
			plan := Fresh(requests + uint64(c.id)<<32 + uint64(left[c.id])<<40)
			plan.Step()
			c.start(c.plan(plan), 0)
		default:
			time.Sleep(pick(r.c, time.Millisecond, 30*time.Millisecond, time.Second))
		}
		synctest.Wait()
		r.mustEnd("the clients' work", i/100, began)
	}
	return true
}
