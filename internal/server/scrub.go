package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// StartScrub implements the RPC.
func (s *maintenanceService) StartScrub(ctx context.Context, r *shinglev1.StartScrubRequest) (*shinglev1.StartScrubResponse, error) {
	const op = "server.StartScrub"
	req, err := startScrubRequest(op, r)
	scrub, err := s.scrub(ctx, op, err, func(e *engine.Engine) (engine.Scrub, error) { return e.StartScrub(ctx, req) })
	if err != nil {
		return nil, err
	}
	return &shinglev1.StartScrubResponse{Scrub: scrub}, nil
}

// GetScrub implements the RPC.
func (s *maintenanceService) GetScrub(ctx context.Context, r *shinglev1.GetScrubRequest) (*shinglev1.GetScrubResponse, error) {
	const op = "server.GetScrub"
	scrub, err := s.scrub(ctx, op, checkScrubID(op, r.GetScrubId()), func(e *engine.Engine) (engine.Scrub, error) {
		return e.GetScrub(ctx, r.GetScrubId())
	})
	if err != nil {
		return nil, err
	}
	return &shinglev1.GetScrubResponse{Scrub: scrub}, nil
}

// PauseScrub implements the RPC.
func (s *maintenanceService) PauseScrub(ctx context.Context, r *shinglev1.PauseScrubRequest) (*shinglev1.PauseScrubResponse, error) {
	const op = "server.PauseScrub"
	scrub, err := s.scrub(ctx, op, checkScrubID(op, r.GetScrubId()), func(e *engine.Engine) (engine.Scrub, error) {
		return e.PauseScrub(ctx, r.GetScrubId())
	})
	if err != nil {
		return nil, err
	}
	return &shinglev1.PauseScrubResponse{Scrub: scrub}, nil
}

// ResumeScrub implements the RPC.
func (s *maintenanceService) ResumeScrub(ctx context.Context, r *shinglev1.ResumeScrubRequest) (*shinglev1.ResumeScrubResponse, error) {
	const op = "server.ResumeScrub"
	scrub, err := s.scrub(ctx, op, checkScrubID(op, r.GetScrubId()), func(e *engine.Engine) (engine.Scrub, error) {
		return e.ResumeScrub(ctx, r.GetScrubId())
	})
	if err != nil {
		return nil, err
	}
	return &shinglev1.ResumeScrubResponse{Scrub: scrub}, nil
}

// CancelScrub implements the RPC.
func (s *maintenanceService) CancelScrub(ctx context.Context, r *shinglev1.CancelScrubRequest) (*shinglev1.CancelScrubResponse, error) {
	const op = "server.CancelScrub"
	scrub, err := s.scrub(ctx, op, checkScrubID(op, r.GetScrubId()), func(e *engine.Engine) (engine.Scrub, error) {
		return e.CancelScrub(ctx, r.GetScrubId())
	})
	if err != nil {
		return nil, err
	}
	return &shinglev1.CancelScrubResponse{Scrub: scrub}, nil
}

// SetScrubLimit implements the RPC.
func (s *maintenanceService) SetScrubLimit(ctx context.Context, r *shinglev1.SetScrubLimitRequest) (*shinglev1.SetScrubLimitResponse, error) {
	c := check{op: "server.SetScrubLimit"}
	limit := c.scrubLimit(r.GetLimitBytesPerSecond())
	scrub, err := s.scrub(ctx, c.op, c.err, func(e *engine.Engine) (engine.Scrub, error) { return e.SetScrubLimit(ctx, limit) })
	if err != nil {
		return nil, err
	}
	return &shinglev1.SetScrubLimitResponse{Scrub: scrub}, nil
}

// scrub makes a call that answers how a scrub stands, unless its request is invalid. Its error is a
// status.
func (s *Server) scrub(
	ctx context.Context, op string, invalid error, call func(*engine.Engine) (engine.Scrub, error),
) (*shinglev1.Scrub, error) {
	if invalid != nil {
		return nil, s.status(ctx, invalid)
	}
	e, err := s.open(op)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	scrub, err := call(e)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return scrubProto(scrub), nil
}

// WatchScrub implements the RPC.
func (s *maintenanceService) WatchScrub(r *shinglev1.WatchScrubRequest, stream grpc.ServerStreamingServer[shinglev1.WatchScrubResponse]) error {
	ctx := stream.Context()
	every, err := watchScrubRequest(r)
	if err != nil {
		return s.status(ctx, err)
	}
	e, err := s.open("server.WatchScrub")
	if err != nil {
		return s.status(ctx, err)
	}
	watch := func(ctx context.Context, fn func(engine.Scrub) error) error {
		return e.WatchScrub(ctx, r.GetScrubId(), every, fn)
	}
	return s.status(ctx, s.watchScrub(ctx, watch, stream.Send))
}

// watchScrub sends what watch sees until watch ends, the stream ends, or the server goes down. Sending
// may block for as long as the client does not read; the scrub goes on.
func (s *Server) watchScrub(
	ctx context.Context, watch func(context.Context, func(engine.Scrub) error) error, send func(*shinglev1.WatchScrubResponse) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	down := errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, "server.WatchScrub", "", "the server is going down")
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-s.draining:
			cancel(down)
		case <-ctx.Done():
		}
	}()
	defer func() {
		cancel(nil)
		<-watched
	}()
	err := watch(ctx, func(r engine.Scrub) error { return send(&shinglev1.WatchScrubResponse{Scrub: scrubProto(r)}) })
	if err != nil && context.Cause(ctx) == down {
		return down
	}
	return err
}

// ListScrubFindings implements the RPC.
func (s *maintenanceService) ListScrubFindings(ctx context.Context, r *shinglev1.ListScrubFindingsRequest) (*shinglev1.ListScrubFindingsResponse, error) {
	q, query, err := findingsRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.ListScrubFindings")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	if q.ID == "" {
		// The pages to come are about the same one, whatever is begun meanwhile.
		scrub, err := e.GetScrub(ctx, "")
		if err != nil {
			return nil, s.status(ctx, err)
		}
		q.ID = scrub.ID
	}
	found, next, err := e.ScrubFindings(ctx, q)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	out := &shinglev1.ListScrubFindingsResponse{}
	for _, f := range found {
		out.Findings = append(out.Findings, findingProto(f))
	}
	if next != 0 {
		out.NextPageToken = pageToken(query, findingsPosition(next, q.ID))
	}
	return out, nil
}

func scrubProto(r engine.Scrub) *shinglev1.Scrub {
	out := &shinglev1.Scrub{
		ScrubId: r.ID, State: scrubStateProto(r.State), Scope: scrubScopeProto(r.Scope), ReadOnly: r.ReadOnly,
		LimitBytesPerSecond: uint64(r.Limit), StartTime: timeProto(r.Started), EndTime: timeProto(r.Ended),
		ActiveTime: durationpb.New(r.Active), TotalBytes: uint64(r.Total), DoneBytes: uint64(r.Done), SkippedBytes: uint64(r.Skipped),
		RateBytesPerSecond: uint64(r.Rate), Counters: scrubCountersProto(r.Counters), Findings: r.Findings, Error: clip(r.Error),
	}
	if r.ETA > 0 {
		out.Eta = durationpb.New(r.ETA)
	}
	return out
}
