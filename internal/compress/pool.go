package compress

import "sync"

// Pool is a fixed set of workers, each with scratch memory of its own.
type Pool struct {
	work    chan func(*ChunkBuf)
	workers sync.WaitGroup
}

// NewPool starts workers, at least one. The caller must Close it.
func NewPool(workers int) *Pool {
	p := &Pool{work: make(chan func(*ChunkBuf))}
	for range max(1, workers) {
		p.workers.Go(func() {
			scratch := NewChunkBuf()
			for f := range p.work {
				f(scratch)
			}
		})
	}
	return p
}

// Go hands f to a worker, waiting until one is free, so no more work is ever queued than there
// are workers. f gets the worker's scratch memory for as long as it runs. f must not call Go:
// with every worker doing so none would ever be free. Go panics after Close.
func (p *Pool) Go(f func(scratch *ChunkBuf)) { p.work <- f }

// Close waits until all work handed over is done and ends the workers. It is called once, when
// nothing calls Go any more.
func (p *Pool) Close() {
	close(p.work)
	p.workers.Wait()
}
