package scrub

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

// step is what one look found, while it is being read.
type step struct {
	look  Look
	bytes int64 // that its reads read
	claim int64 // of the window
	left  atomic.Int64
	done  chan struct{} // closed when all its reads have ended and it has let go of what it looked up

	mu struct {
		sync.Mutex
		tally
	}
}

// tally is what came of reads.
type tally struct {
	found      []Finding
	moved      []int64 // addresses of blocks that are not what was looked up any more; of each copy
	unverified uint64  // blocks that failed in a large read and were good alone
	unreadable bool
	reads      uint64
	bytes      uint64
	dropped    bool // something was not read
	err        error
}

func (t *tally) add(o tally) {
	t.found = append(t.found, o.found...)
	t.moved, t.unverified = append(t.moved, o.moved...), t.unverified+o.unverified
	t.unreadable, t.dropped = t.unreadable || o.unreadable, t.dropped || o.dropped
	t.reads, t.bytes = t.reads+o.reads, t.bytes+o.bytes
}

// ended notes what came of one read of the step. Whoever ends the last one closes the step.
func (j *job) ended(s *step, t tally) {
	s.mu.Lock()
	s.mu.add(t)
	unreadable := s.mu.unreadable
	s.mu.Unlock()
	if s.left.Add(-1) > 0 {
		return
	}
	if unreadable {
		// Of a device that is gone every block fails, and none of them is bad.
		err := j.space.Alive()
		s.mu.Lock()
		s.mu.err = err
		s.mu.Unlock()
	}
	s.look.Release()
	if !s.mendable() {
		close(s.done)
		return
	}
	// Apart from the readers: it waits for commits.
	j.spawn(func() {
		defer close(s.done)
		s.mu.Lock()
		found := s.mu.found
		s.mu.Unlock()
		if err := j.space.Mend(j.ctx, found); err != nil {
			s.mu.Lock()
			s.mu.dropped = true
			s.mu.Unlock()
		}
	})
}

// mendable reports whether something that was found can be mended. All its reads have ended.
func (s *step) mendable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.err == nil && !s.mu.dropped && slices.ContainsFunc(s.mu.found, func(f Finding) bool { return f.Mend })
}

// movedBlocks is how many blocks were not what was looked up any more.
func (t *tally) movedBlocks() int64 {
	slices.Sort(t.moved)
	return int64(len(slices.Compact(t.moved)))
}

// result returns what came of the step, which is done. Findings are in the order of their addresses.
func (s *step) result() tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.mu.found, func(a, b Finding) int { return cmp.Compare(a.Address, b.Address) })
	return s.mu.tally
}

// reader reads and verifies until the queue is closed. What it finds in the queue after the scrub was
// told to stop is not read.
func (j *job) reader(queue <-chan read, stop <-chan struct{}) {
	var buf []byte
	for r := range queue {
		select {
		case <-stop:
			j.ended(r.step, tally{dropped: true})
			continue
		default:
		}
		if buf == nil {
			buf = slab.Aligned(readMost)
		}
		j.ended(r.step, j.verify(&r, buf[:r.n]))
	}
}

// verify reads and holds each block against its checksum.
func (j *job) verify(r *read, p []byte) (t tally) {
	err := j.space.Read(r.slot, r.copy, r.off, p)
	t.reads, t.bytes = 1, uint64(len(p))
	for _, part := range r.parts {
		data := p[part.off:][:part.bytes()]
		if part.header {
			j.header(r, data, err, &t)
			continue
		}
		for i, want := range part.sums {
			b := data[i*extent.BlockSize:][:extent.BlockSize]
			if err == nil && csum.Sum(b) == want {
				continue
			}
			j.alone(r, r.off+part.off+int64(i)*extent.BlockSize, part.at+int64(i)*extent.BlockSize, want, b, &t)
		}
	}
	return t
}

// alone reads a block that failed once more, by itself.
func (j *job) alone(r *read, off, at int64, want uint32, b []byte, t *tally) {
	err := j.space.Read(r.slot, r.copy, off, b)
	t.reads, t.bytes = t.reads+1, t.bytes+uint64(len(b))
	got := uint32(0)
	if err == nil {
		if got = csum.Sum(b); got == want {
			t.unverified++
			return
		}
	}
	f, verdict := j.space.Judge(at, r.copy, want, got, err)
	switch verdict {
	case Moved:
		t.moved = append(t.moved, at)
		return
	case Bad:
		t.found = append(t.found, f)
	}
	t.unreadable = t.unreadable || err != nil
}

// header judges a zone header, read once more if it is not right.
func (j *job) header(r *read, b []byte, err error, t *tally) {
	if err == nil && j.space.Header(r.slot, r.copy, b) {
		return
	}
	err = j.space.Read(r.slot, r.copy, 0, b)
	t.reads, t.bytes = t.reads+1, t.bytes+uint64(len(b))
	if err == nil && j.space.Header(r.slot, r.copy, b) {
		t.unverified++
		return
	}
	if f, verdict := j.space.JudgeHeader(r.slot, r.copy, b, err); verdict == Bad {
		t.found = append(t.found, f)
	}
	t.unreadable = t.unreadable || err != nil
}
