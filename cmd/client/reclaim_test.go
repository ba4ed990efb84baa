package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client/clienttest"
	pb "github.com/shingle-store/shingle/api/shingle/v1"
)

type reclaimStream = grpc.ServerStreamingServer[pb.ReclaimResponse]

func TestReclaim(t *testing.T) {
	s := clienttest.New(t)
	answer := &pb.ReclaimResponse{
		State: pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE, BytesFreed: 3 << 20, BytesRelocated: 1 << 20, ZonesReset: 4,
		BlockGroupsDone: 4, BlockGroupsTotal: 4,
	}
	var asked *pb.ReclaimRequest
	s.OnReclaim = func(r *pb.ReclaimRequest, stream reclaimStream) error {
		asked = r
		return stream.Send(answer)
	}
	const text = "freed 3.00 MiB: moved 1.00 MiB out of 4 of 4 block groups, reset 4 zones\n"
	if got := cli(t, s.Addr, "", "reclaim").ok(t); got != text {
		t.Errorf("said %q, want %q", got, text)
	}
	if asked.ThresholdPercent != nil || asked.GetTargetBytes() != 0 || len(asked.GetBlockGroups()) != 0 {
		t.Errorf("asked for %v", asked)
	}
	cli(t, s.Addr, "", "reclaim", "--threshold", "0%", "--target", "2GiB", "-n", "3", "17").ok(t)
	if asked.ThresholdPercent == nil || asked.GetThresholdPercent() != 0 || asked.GetTargetBytes() != 2<<30 || !asked.GetDryRun() ||
		len(asked.GetBlockGroups()) != 2 || asked.GetBlockGroups()[1] != 17 {
		t.Errorf("asked for %v", asked)
	}
	if got := cli(t, s.Addr, "", "reclaim", "-n").ok(t); got != "would free 3.00 MiB in 4 block groups\n" {
		t.Errorf("said %q", got)
	}
	if got := cli(t, s.Addr, "", "reclaim", "-q").ok(t); got != "" {
		t.Errorf("said %q", got)
	}
	var j reclaimedJSON
	unmarshal(t, cli(t, s.Addr, "", "reclaim", "--output", "json").ok(t), &j)
	if j.State != "complete" || j.BytesFreed != 3<<20 || j.ZonesReset != 4 || j.DryRun {
		t.Errorf("%+v", j)
	}
}

func TestReclaimTellsWhatWentWrong(t *testing.T) {
	s := clienttest.New(t)
	s.OnReclaim = func(_ *pb.ReclaimRequest, stream reclaimStream) error {
		return stream.Send(&pb.ReclaimResponse{
			State: pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE_WITH_ERRORS, BytesFreed: 1 << 20, BytesRelocated: 1 << 10, BytesDropped: 2 << 10,
			ZonesReset: 1, PendingResets: 1, BlockGroupsDone: 3, BlockGroupsTotal: 3, FailedBlockGroups: 1, BadBlocks: 2,
			FirstError: "block group 4 (zone 6) cannot be emptied",
		})
	}
	r := cli(t, s.Addr, "", "reclaim")
	r.failed(t, exitError, `^client: block group 4 \(zone 6\) cannot be emptied\n$`)
	const text = "freed 1.00 MiB: moved 1.00 KiB out of 3 of 3 block groups, reset 1 zones; 2.00 KiB died meanwhile; " +
		"1 zones are still to be reset; 1 block groups could not be emptied; 2 bad blocks\n"
	if r.out != text {
		t.Errorf("said %q, want %q", r.out, text)
	}
	s.OnReclaim = func(*pb.ReclaimRequest, reclaimStream) error {
		return clienttest.Errorf(codes.OutOfRange, "OUT_OF_RANGE", nil, "block group 99: there are 10 block groups")
	}
	cli(t, s.Addr, "", "reclaim", "99").failed(t, exitError, "there are 10 block groups")
	for _, args := range [][]string{
		{"x"}, {"-1"}, {"--threshold", "101"}, {"--threshold", "most"}, {"--target", "5 MB"}, {"--target", "-1"}, {"--target", "9999999TiB"},
	} {
		cli(t, s.Addr, "", append([]string{"reclaim"}, args...)...).failed(t, exitUsage, "client: ")
	}
}

// TestReclaimInterrupted says what was done when it is stopped by hand.
func TestReclaimInterrupted(t *testing.T) {
	s := clienttest.New(t)
	ctx, cancel := context.WithCancel(context.Background())
	s.OnReclaim = func(_ *pb.ReclaimRequest, stream reclaimStream) error {
		err := stream.Send(&pb.ReclaimResponse{
			State: pb.MaintenanceState_MAINTENANCE_STATE_RUNNING, BytesFreed: 2 << 20, BytesRelocated: 1 << 20, BlockGroupsDone: 2, BlockGroupsTotal: 9,
		})
		cancel()
		<-stream.Context().Done()
		return err
	}
	r := cliContext(t, ctx, s.Addr, "", "reclaim")
	if r.code != exitError || !strings.Contains(r.err, "interrupted") {
		t.Errorf("exit %d, %q", r.code, r.err)
	}
	if r.out != "" && !strings.HasPrefix(r.out, "freed 2.00 MiB: moved 1.00 MiB out of 2 of 9 block groups") {
		t.Errorf("said %q", r.out)
	}
}
