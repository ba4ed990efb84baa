package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

const (
	// maxReclaimGroups is the most block groups that one Reclaim names.
	maxReclaimGroups = 1000
	// reclaimInterval is how often Reclaim says how far it is.
	reclaimInterval = time.Second
)

// Reclaim implements the RPC.
func (s *maintenanceService) Reclaim(r *shinglev1.ReclaimRequest, stream grpc.ServerStreamingServer[shinglev1.ReclaimResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	q, err := reclaimRequest(r)
	if err != nil {
		return s.status(ctx, err)
	}
	e, err := s.open("server.Reclaim")
	if err != nil {
		return s.status(ctx, err)
	}
	var now struct {
		sync.Mutex
		p     engine.ReclaimProgress
		begun bool
	}
	type result struct {
		p   engine.ReclaimProgress
		err error
	}
	began := make(chan struct{})
	ended := make(chan result, 1)
	go func() {
		p, err := e.Reclaim(ctx, q, func(p engine.ReclaimProgress) {
			now.Lock()
			defer now.Unlock()
			if now.p = p; !now.begun {
				now.begun = true
				close(began)
			}
		})
		ended <- result{p, err}
	}()
	send := func() error {
		now.Lock()
		p := now.p
		now.Unlock()
		return stream.Send(reclaimProto(p, shinglev1.MaintenanceState_MAINTENANCE_STATE_RUNNING))
	}
	tick := time.NewTicker(reclaimInterval)
	defer tick.Stop()
	draining := s.draining
	for {
		var err error
		select {
		case <-began:
			began, err = nil, send()
		case <-tick.C:
			if began == nil { // else another call is being waited for
				err = send()
			}
		case <-draining:
			draining = nil
			cancel()
		case done := <-ended:
			if stream.Context().Err() != nil {
				return s.status(ctx, stream.Context().Err())
			}
			state := reclaimEnd(done.p)
			if done.err != nil {
				if done.p.Done == 0 && done.p.FirstError == "" {
					return s.status(ctx, done.err)
				}
				state = shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE_WITH_ERRORS
			}
			return stream.Send(reclaimProto(done.p, state))
		}
		if err != nil { // nobody listens any more
			cancel()
			<-ended
			return s.status(stream.Context(), err)
		}
	}
}

func reclaimRequest(r *shinglev1.ReclaimRequest) (q engine.ReclaimRequest, err error) {
	const op = "server.Reclaim"
	q = engine.ReclaimRequest{BlockGroups: r.GetBlockGroups(), Target: r.GetTargetBytes(), DryRun: r.GetDryRun()}
	switch {
	case r.GetThresholdPercent() > 100:
		return q, errdefs.Invalid(op, "threshold_percent", "threshold_percent must be from 0 to 100")
	case len(q.BlockGroups) > maxReclaimGroups:
		return q, errdefs.Invalid(op, "block_groups", "at most 1000 block groups can be named")
	case q.Target < 0:
		return q, errdefs.Invalid(op, "target_bytes", "target_bytes must not be negative")
	}
	if r.ThresholdPercent != nil {
		share := int(r.GetThresholdPercent())
		q.Threshold = &share
	}
	return q, nil
}

// reclaimEnd is the state of the last reply.
func reclaimEnd(p engine.ReclaimProgress) shinglev1.MaintenanceState {
	switch {
	case p.Cancelled:
		return shinglev1.MaintenanceState_MAINTENANCE_STATE_CANCELLED
	case p.Failed > 0:
		return shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE_WITH_ERRORS
	}
	return shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE
}

func reclaimProto(p engine.ReclaimProgress, state shinglev1.MaintenanceState) *shinglev1.ReclaimResponse {
	return &shinglev1.ReclaimResponse{
		State: state, ZonesReset: p.Reset, BytesFreed: p.Freed, BytesRelocated: uint64(p.Moved), BytesDropped: uint64(p.Dropped),
		BlockGroupsDone: p.Done, BlockGroupsTotal: p.Total, BytesTotal: uint64(p.TotalBytes), CurrentBlockGroup: p.Current,
		BadBlocks: p.BadBlocks, FailedBlockGroups: p.Failed, PendingResets: p.PendingResets, FirstError: p.FirstError,
	}
}
