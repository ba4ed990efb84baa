package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// Reclaimed is what a Reclaim did so far: the message of MaintenanceService.
type Reclaimed = shinglev1.ReclaimResponse

// ReclaimOptions say what to reclaim.
type ReclaimOptions struct {
	// Threshold: only block groups of which so many percent are dead; nil: as many as the engine
	// itself asks for; 0: any.
	Threshold *uint32
	// BlockGroups: only these; empty: all.
	BlockGroups []uint32
	// Target: stop when so many bytes were given back; 0: go on while there is something.
	Target int64
	// DryRun changes nothing, and says what would be done.
	DryRun bool
	// Progress, unless nil, is called with each summary as it arrives.
	Progress func(*Reclaimed)
}

// Reclaim gives space back to the store: it has live data moved out of block groups that are mostly
// dead. It answers the last summary, also with an error (nil if there was none): when ctx ends, what
// was done stays done. It is not tried again when the engine goes away in the middle of it: to call it
// again does no harm.
func (c *Client) Reclaim(ctx context.Context, o ReclaimOptions) (*Reclaimed, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.maintenance.Reclaim(ctx, &shinglev1.ReclaimRequest{
		ThresholdPercent: o.Threshold, BlockGroups: o.BlockGroups, TargetBytes: o.Target, DryRun: o.DryRun,
	})
	if err != nil {
		return nil, asError(err)
	}
	var last *Reclaimed
	for {
		r, err := stream.Recv()
		switch {
		case err == nil:
			c.heard(nil)
			if last = r; o.Progress != nil {
				o.Progress(r)
			}
		case errors.Is(err, io.EOF):
			if last == nil || last.GetState() == shinglev1.MaintenanceState_MAINTENANCE_STATE_RUNNING {
				return last, failure(codes.Internal, "", errBroken, "Reclaim ended without saying how")
			}
			return last, nil
		default:
			err = asError(err)
			c.heard(err)
			return last, err
		}
	}
}
