package engine

import "sync"

// epochs lets a zone reset wait for the reads that may still look at the zone. A read enters
// before it looks up metadata and exits after its device read; a reset waits for all reads
// that had entered before the call, and later ones cannot find what was freed. So no read
// needs to know its block groups before the look-up, and no reset waits for a later read.
type epochs struct {
	mu struct {
		sync.Mutex
		now    uint64
		active map[uint64]int // epoch -> reads in it
		empty  chan struct{}  // closed and replaced whenever an epoch runs empty
	}
}

func newEpochs() *epochs {
	p := &epochs{}
	p.mu.active = map[uint64]int{}
	p.mu.empty = make(chan struct{})
	return p
}

// enter pins what the metadata shows from now on, until exit of the returned epoch.
func (p *epochs) enter() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.active[p.mu.now]++
	return p.mu.now
}

func (p *epochs) exit(epoch uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.active[epoch]--
	if p.mu.active[epoch] == 0 {
		delete(p.mu.active, epoch)
		close(p.mu.empty)
		p.mu.empty = make(chan struct{})
	}
}

// wait returns when every read that entered before the call has exited, or false when stop
// is closed first.
func (p *epochs) wait(stop <-chan struct{}) bool {
	p.mu.Lock()
	last := p.mu.now
	p.mu.now++
	for {
		busy := false
		for e := range p.mu.active {
			busy = busy || e <= last
		}
		if !busy {
			p.mu.Unlock()
			return true
		}
		empty := p.mu.empty
		p.mu.Unlock()
		select {
		case <-empty:
		case <-stop:
			return false
		}
		p.mu.Lock()
	}
}
