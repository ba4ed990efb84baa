package clienttest

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// Scrubs is what the calls of scrub answer. There is one scrub, which reads nothing: it goes on as
// SetScrub says.
type Scrubs struct {
	// Findings is what ListScrubFindings answers, in pages of Server.PageSize.
	Findings []*shinglev1.Corruption
	// Starts, Watches and Lists are the requests so far. Read them when no call runs.
	Starts  []*shinglev1.StartScrubRequest
	Watches []*shinglev1.WatchScrubRequest
	Lists   []*shinglev1.ListScrubFindingsRequest

	// Guarded by Server.mu.
	now       *shinglev1.Scrub
	requestID string
	begun     int
	changed   chan struct{} // closed when now changes
}

// SetScrub makes s the scrub that there is; every watch sends it.
func (s *Server) SetScrub(scrub *shinglev1.Scrub) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setScrubLocked(proto.CloneOf(scrub))
}

// Scrub returns the scrub that there is; nil: none.
func (s *Server) Scrub() *shinglev1.Scrub {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.CloneOf(s.Scrubs.now)
}

func (s *Server) setScrubLocked(scrub *shinglev1.Scrub) {
	s.Scrubs.now = scrub
	if s.Scrubs.changed != nil {
		close(s.Scrubs.changed)
		s.Scrubs.changed = nil
	}
}

// scrubLocked returns a copy of the scrub if there is one with the id.
func (s *Server) scrubLocked(id string) (*shinglev1.Scrub, error) {
	if now := s.Scrubs.now; now != nil && (id == "" || id == now.GetScrubId()) {
		return proto.CloneOf(now), nil
	}
	return nil, Errorf(codes.NotFound, "NOT_FOUND", nil, "there is no such scrub")
}

// turn takes the scrub from one of the states to another.
func (s *Server) turn(id string, to shinglev1.ScrubState, from ...shinglev1.ScrubState) (*shinglev1.Scrub, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.scrubLocked(id)
	if err != nil {
		return nil, err
	}
	for _, state := range from {
		if now.GetState() == state {
			now.State = to
			s.setScrubLocked(now)
			return proto.CloneOf(now), nil
		}
	}
	return nil, Errorf(codes.FailedPrecondition, "FAILED_PRECONDITION", nil, fmt.Sprintf("scrub %s is %v", now.GetScrubId(), now.GetState()))
}

// StartScrub implements the RPC.
func (s *Server) StartScrub(_ context.Context, r *shinglev1.StartScrubRequest) (*shinglev1.StartScrubResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Scrubs.Starts = append(s.Scrubs.Starts, r)
	if now := s.Scrubs.now; now.GetState() == shinglev1.ScrubState_SCRUB_STATE_RUNNING || now.GetState() == shinglev1.ScrubState_SCRUB_STATE_PAUSED {
		if r.GetRequestId() != "" && r.GetRequestId() == s.Scrubs.requestID {
			return &shinglev1.StartScrubResponse{Scrub: proto.CloneOf(now)}, nil
		}
		return nil, Errorf(codes.AlreadyExists, "SCRUB_RUNNING", nil, fmt.Sprintf("scrub %s is running", now.GetScrubId()))
	}
	s.Scrubs.begun++
	s.Scrubs.requestID = r.GetRequestId()
	s.setScrubLocked(&shinglev1.Scrub{
		ScrubId: fmt.Sprintf("scrub-%d", s.Scrubs.begun), State: shinglev1.ScrubState_SCRUB_STATE_RUNNING, Scope: r.GetScope(),
		ReadOnly: r.GetReadOnly(), LimitBytesPerSecond: r.GetLimitBytesPerSecond(), Counters: &shinglev1.ScrubCounters{},
	})
	return &shinglev1.StartScrubResponse{Scrub: proto.CloneOf(s.Scrubs.now)}, nil
}

// GetScrub implements the RPC.
func (s *Server) GetScrub(_ context.Context, r *shinglev1.GetScrubRequest) (*shinglev1.GetScrubResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.scrubLocked(r.GetScrubId())
	return &shinglev1.GetScrubResponse{Scrub: now}, err
}

// WatchScrub implements the RPC: instead of at an interval it sends the scrub when it changes.
func (s *Server) WatchScrub(r *shinglev1.WatchScrubRequest, stream grpc.ServerStreamingServer[shinglev1.WatchScrubResponse]) error {
	if f := s.Faults.Call; f != nil {
		if err := f("WatchScrub"); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.Scrubs.Watches = append(s.Scrubs.Watches, r)
	s.mu.Unlock()
	for {
		s.mu.Lock()
		now, err := s.scrubLocked(r.GetScrubId())
		if s.Scrubs.changed == nil {
			s.Scrubs.changed = make(chan struct{})
		}
		changed := s.Scrubs.changed
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if err := stream.Send(&shinglev1.WatchScrubResponse{Scrub: now}); err != nil {
			return err
		}
		if now.GetState() != shinglev1.ScrubState_SCRUB_STATE_RUNNING {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// PauseScrub implements the RPC.
func (s *Server) PauseScrub(_ context.Context, r *shinglev1.PauseScrubRequest) (*shinglev1.PauseScrubResponse, error) {
	now, err := s.turn(r.GetScrubId(), shinglev1.ScrubState_SCRUB_STATE_PAUSED, shinglev1.ScrubState_SCRUB_STATE_RUNNING)
	return &shinglev1.PauseScrubResponse{Scrub: now}, err
}

// ResumeScrub implements the RPC.
func (s *Server) ResumeScrub(_ context.Context, r *shinglev1.ResumeScrubRequest) (*shinglev1.ResumeScrubResponse, error) {
	now, err := s.turn(r.GetScrubId(), shinglev1.ScrubState_SCRUB_STATE_RUNNING, shinglev1.ScrubState_SCRUB_STATE_PAUSED,
		shinglev1.ScrubState_SCRUB_STATE_CANCELLED, shinglev1.ScrubState_SCRUB_STATE_INTERRUPTED)
	return &shinglev1.ResumeScrubResponse{Scrub: now}, err
}

// CancelScrub implements the RPC.
func (s *Server) CancelScrub(_ context.Context, r *shinglev1.CancelScrubRequest) (*shinglev1.CancelScrubResponse, error) {
	now, err := s.turn(r.GetScrubId(), shinglev1.ScrubState_SCRUB_STATE_CANCELLED, shinglev1.ScrubState_SCRUB_STATE_RUNNING,
		shinglev1.ScrubState_SCRUB_STATE_PAUSED, shinglev1.ScrubState_SCRUB_STATE_INTERRUPTED)
	return &shinglev1.CancelScrubResponse{Scrub: now}, err
}

// SetScrubLimit implements the RPC.
func (s *Server) SetScrubLimit(_ context.Context, r *shinglev1.SetScrubLimitRequest) (*shinglev1.SetScrubLimitResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.scrubLocked("")
	if err != nil {
		return nil, err
	}
	now.LimitBytesPerSecond = r.GetLimitBytesPerSecond()
	s.setScrubLocked(now)
	return &shinglev1.SetScrubLimitResponse{Scrub: proto.CloneOf(now)}, nil
}

// ListScrubFindings implements the RPC.
func (s *Server) ListScrubFindings(_ context.Context, r *shinglev1.ListScrubFindingsRequest) (*shinglev1.ListScrubFindingsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Scrubs.Lists = append(s.Scrubs.Lists, r)
	if _, err := s.scrubLocked(r.GetScrubId()); err != nil {
		return nil, err
	}
	var all []*shinglev1.Corruption
	for _, f := range s.Scrubs.Findings {
		if !r.GetUncorrectedOnly() || f.GetOutcome() != shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_REPAIRED {
			all = append(all, f)
		}
	}
	found, next := page(all, s.PageSize, r.GetPageToken())
	return &shinglev1.ListScrubFindingsResponse{Findings: found, NextPageToken: next}, nil
}
