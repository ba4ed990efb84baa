package client

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client/clienttest"
	pb "github.com/shingle-store/shingle/api/shingle/v1"
)

type reclaimStream = grpc.ServerStreamingServer[pb.ReclaimResponse]

func TestReclaim(t *testing.T) {
	share := uint32(30)
	for _, c := range []struct {
		name    string
		replies []*pb.ReclaimResponse
		err     error
		want    int64 // bytes freed of the answer; below 0: there is none
		code    codes.Code
	}{
		{"whole", []*pb.ReclaimResponse{
			{State: pb.MaintenanceState_MAINTENANCE_STATE_RUNNING},
			{State: pb.MaintenanceState_MAINTENANCE_STATE_RUNNING, BytesFreed: 1},
			{State: pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE, BytesFreed: 2},
		}, nil, 2, codes.OK},
		{"refused", nil, clienttest.Errorf(codes.OutOfRange, "OUT_OF_RANGE", nil, "no such block group"), -1, codes.OutOfRange},
		{"broken in the middle", []*pb.ReclaimResponse{{State: pb.MaintenanceState_MAINTENANCE_STATE_RUNNING, BytesFreed: 7}},
			clienttest.Errorf(codes.Unavailable, "DRAINING", nil, "going down"), 7, codes.Unavailable},
		{"without an end", []*pb.ReclaimResponse{{State: pb.MaintenanceState_MAINTENANCE_STATE_RUNNING, BytesFreed: 3}}, nil, 3, codes.Internal},
		{"without anything", nil, nil, -1, codes.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clienttest.New(t)
			s.OnReclaim = func(r *pb.ReclaimRequest, stream reclaimStream) error {
				if r.GetThresholdPercent() != 30 || r.GetTargetBytes() != 99 || !r.GetDryRun() || len(r.GetBlockGroups()) != 2 {
					t.Errorf("asked for %v", r)
				}
				for _, m := range c.replies {
					if err := stream.Send(m); err != nil {
						return err
					}
				}
				return c.err
			}
			cl, err := Dial(s.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			seen := 0
			got, err := cl.Reclaim(context.Background(), ReclaimOptions{
				Threshold: &share, BlockGroups: []uint32{1, 2}, Target: 99, DryRun: true, Progress: func(*Reclaimed) { seen++ },
			})
			if CodeOf(err) != c.code && (err != nil || c.code != codes.OK) {
				t.Errorf("got %v, want %v", err, c.code)
			}
			if (got == nil) != (c.want < 0) || got != nil && got.GetBytesFreed() != c.want {
				t.Errorf("answers %v", got)
			}
			if seen != len(c.replies) {
				t.Errorf("%d of %d summaries were shown", seen, len(c.replies))
			}
		})
	}
}

// TestReclaimInterrupted keeps what was done when the caller has enough.
func TestReclaimInterrupted(t *testing.T) {
	s := clienttest.New(t)
	ended := make(chan struct{})
	s.OnReclaim = func(_ *pb.ReclaimRequest, stream reclaimStream) error {
		defer close(ended)
		_ = stream.Send(&pb.ReclaimResponse{State: pb.MaintenanceState_MAINTENANCE_STATE_RUNNING, BytesFreed: 5})
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	cl, err := Dial(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithCancel(context.Background())
	got, err := cl.Reclaim(ctx, ReclaimOptions{Progress: func(*Reclaimed) { cancel() }})
	if CodeOf(err) != codes.Canceled || got.GetBytesFreed() != 5 {
		t.Errorf("%v, %v", got, err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the engine was not told")
	}
}
