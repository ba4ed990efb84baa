package server

import "sync"

// syncer runs the syncs of one Write beside its reading. Requests that come while one runs
// are answered by one more run together.
type syncer struct {
	sync func() error
	done func() // after each successful run
	// failed is closed at the first error, after which nothing runs any more.
	failed chan struct{}

	mu struct {
		sync.Mutex
		wanted  uint64 // requests so far
		running bool
		err     error
	}
	running sync.WaitGroup
}

// request asks for a sync that covers everything written before. It never blocks.
func (s *syncer) request() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.wanted++
	if s.mu.running || s.mu.err != nil {
		return
	}
	s.mu.running = true
	s.running.Go(s.loop)
}

func (s *syncer) loop() {
	for {
		s.mu.Lock()
		covered := s.mu.wanted
		s.mu.Unlock()

		err := s.sync()
		if err == nil {
			s.done()
		}
		s.mu.Lock()
		if err != nil {
			s.mu.err = err
			close(s.failed)
		}
		s.mu.running = err == nil && s.mu.wanted != covered
		again := s.mu.running
		s.mu.Unlock()
		if !again {
			return
		}
	}
}

// wait returns when all requests so far are answered, with the first error. It must not run
// together with request.
func (s *syncer) wait() error {
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.err
}
