package server

import "sync"

// syncsAtOnce is how many syncs of one Write run together: while the data of one is flushed and
// committed, that of the next is appended.
const syncsAtOnce = 2

// syncer runs the syncs of one Write beside its reading. Requests that come while syncsAtOnce run
// are answered by one more run together.
type syncer struct {
	sync func() error
	done func() // after each successful run
	// failed is closed at the first error, after which nothing runs any more.
	failed chan struct{}

	mu struct {
		sync.Mutex
		pending bool // requests that no run has begun after
		running int
		err     error
	}
	running sync.WaitGroup
}

// request asks for a sync that covers everything written before. It never blocks.
func (s *syncer) request() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.err != nil {
		return
	}
	s.mu.pending = true
	if s.mu.running < syncsAtOnce {
		s.mu.running++
		s.running.Go(s.loop)
	}
}

func (s *syncer) loop() {
	for s.begin() {
		err := s.sync()
		if err == nil {
			s.done()
			continue
		}
		s.mu.Lock()
		if s.mu.err == nil {
			s.mu.err = err
			close(s.failed)
		}
		s.mu.Unlock()
	}
}

// begin takes what has been requested. False: there is nothing to do, and the loop has ended.
func (s *syncer) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.pending || s.mu.err != nil {
		s.mu.running--
		return false
	}
	s.mu.pending = false
	return true
}

// wait returns when all requests so far are answered, with the first error. It must not run
// together with request.
func (s *syncer) wait() error {
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.err
}
