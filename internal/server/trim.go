package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/trim"
)

// summaryInterval is how often a long upkeep call says how far it has come.
const summaryInterval = time.Second

// Trim implements the RPC.
func (s *maintenanceService) Trim(r *shinglev1.TrimRequest, stream grpc.ServerStreamingServer[shinglev1.TrimResponse]) error {
	ctx := stream.Context()
	req := trimRequest(r)
	e, err := s.open("server.Trim")
	if err != nil {
		return s.status(ctx, err)
	}
	first, err := e.BeginTrim(req)
	if err != nil {
		return s.status(ctx, err)
	}
	run := func(ctx context.Context, progress func(engine.TrimResult)) (engine.TrimResult, error) {
		return e.Trim(ctx, req, progress)
	}
	return s.status(ctx, s.summaries(ctx, first, summaryInterval, run, stream.Send))
}

// summaries runs a trim and sends what it has come to: first at once, then every interval, then in
// the end. It returns when run has returned, and lets that end early when the stream ends or the
// server goes down. Sending may block for as long as the client does not read; the trim goes on.
func (s *Server) summaries(
	ctx context.Context, first engine.TrimResult, interval time.Duration,
	run func(context.Context, func(engine.TrimResult)) (engine.TrimResult, error), send func(*shinglev1.TrimResponse) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	latest, last := first, first
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = s.guard(func() (err error) {
			last, err = run(ctx, func(r engine.TrimResult) {
				mu.Lock()
				defer mu.Unlock()
				latest = r
			})
			return err
		})
	}()
	defer func() {
		cancel()
		<-done
	}()
	if err := send(trimProto(first)); err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	draining := s.draining
	for {
		select {
		case <-tick.C:
			mu.Lock()
			r := latest
			mu.Unlock()
			if err := send(trimProto(r)); err != nil {
				return err
			}
		case <-draining:
			cancel()
			draining = nil
		case <-done:
			if draining == nil && errors.Is(err, context.Canceled) {
				last, err = first, nil // while it waited for another one to end
				last.State = trim.Cancelled
			}
			if err != nil {
				return err
			}
			return send(trimProto(last))
		}
	}
}

// CancelTrim implements the RPC.
func (s *maintenanceService) CancelTrim(ctx context.Context, _ *shinglev1.CancelTrimRequest) (*shinglev1.CancelTrimResponse, error) {
	e, err := s.open("server.CancelTrim")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	r, err := e.CancelTrim(ctx)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.CancelTrimResponse{Result: trimProto(r)}, nil
}

// trimRequest leaves the range to the engine, which knows the end of the addresses.
func trimRequest(r *shinglev1.TrimRequest) engine.TrimRequest {
	out := engine.TrimRequest{Start: r.GetStart(), Length: trim.ToEnd, MinLength: r.GetMinLength(), DryRun: r.GetDryRun(), Reclaim: r.GetReclaim()}
	if r.Length != nil {
		out.Length = r.GetLength()
	}
	return out
}

func trimProto(r engine.TrimResult) *shinglev1.TrimResponse {
	out := &shinglev1.TrimResponse{
		State: trimStateProto(r.State), BytesTrimmed: r.Trimmed, ExtentsTrimmed: r.Extents, DiscardCommands: r.Commands,
		ZonesReset: r.ZonesReset, BytesDone: r.Done, BytesTotal: r.Total, NextStart: r.NextStart, EffectiveMinLength: r.MinLength,
		BytesInUse: r.InUse, BytesSkippedAlreadyTrimmed: r.AlreadyTrimmed, BytesSkippedMinLength: r.TooShort,
		BytesSkippedPartialZone: r.PartialZone, BytesSkippedBusy: r.Busy, BytesSkippedUnsupported: r.Unsupported,
		BytesSkippedGap: r.Gap, BytesSkippedQuarantined: r.Quarantined, BytesFailed: r.Failed, FailedZones: r.FailedZones, BytesRelocated: r.Relocated,
	}
	if r.FirstError != nil {
		out.FirstError = clip(errdefs.Sentence(r.FirstError))
	}
	return out
}

func trimStateProto(s trim.State) shinglev1.MaintenanceState {
	switch s {
	case trim.Running:
		return shinglev1.MaintenanceState_MAINTENANCE_STATE_RUNNING
	case trim.Complete:
		return shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE
	case trim.CompleteWithErrors:
		return shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE_WITH_ERRORS
	case trim.Cancelled:
		return shinglev1.MaintenanceState_MAINTENANCE_STATE_CANCELLED
	}
	return shinglev1.MaintenanceState_MAINTENANCE_STATE_UNSPECIFIED
}
