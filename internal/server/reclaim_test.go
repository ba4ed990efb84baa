package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/zone"
)

// garbage fills zones with a file of which most is deleted again, and returns what is left of it.
func garbage(s *stored) []byte {
	s.t.Helper()
	data := noise(1, 2<<20)
	if _, err := s.write(&pb.WriteRequest{Name: "f", Options: &pb.WriteOptions{Compression: pb.Compression_COMPRESSION_NONE}}, data, 1<<20); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.files.Sync(s.t.Context(), &pb.SyncRequest{}); err != nil {
		s.t.Fatal(err)
	}
	for off := 0; off < len(data); off += 64 << 10 {
		if _, err := s.files.DeallocateFile(s.t.Context(), &pb.DeallocateFileRequest{Name: "f", Offset: int64(off), Length: 32 << 10}); err != nil {
			s.t.Fatal(err)
		}
		clear(data[off : off+32<<10])
	}
	return data
}

func reclaimAll(s *stored, r *pb.ReclaimRequest) (replies []*pb.ReclaimResponse, err error) {
	stream, err := s.maintenance.Reclaim(s.t.Context(), r)
	if err != nil {
		return nil, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return replies, nil
		}
		if err != nil {
			return replies, err
		}
		replies = append(replies, m)
	}
}

func TestReclaimOverTheWire(t *testing.T) {
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 512 << 10, ZoneCapacity: 512 << 10, Zones: 24, MaxOpen: 4, MaxActive: 5}
	s := newStore(t, g)
	want := garbage(s)
	before, err := s.store.GetUsage(t.Context(), &pb.GetUsageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if why := before.GetUsage().GetUnusable(); why.GetDeadBytes() < 900<<10 || why.GetRelocatableBytes() < 900<<10 {
		t.Errorf("half of 2 MiB was cut away, and df says %v", why)
	}
	zero := uint32(0)
	dry, err := reclaimAll(s, &pb.ReclaimRequest{ThresholdPercent: &zero, DryRun: true})
	if err != nil || len(dry) != 1 || dry[0].GetState() != pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE ||
		dry[0].GetBlockGroupsTotal() < 3 || dry[0].GetBytesRelocated() != 0 || dry[0].GetBytesFreed() < 700<<10 {
		t.Fatalf("%v, %v", dry, err)
	}
	got, err := reclaimAll(s, &pb.ReclaimRequest{ThresholdPercent: &zero})
	if err != nil || len(got) < 2 || got[0].GetState() != pb.MaintenanceState_MAINTENANCE_STATE_RUNNING {
		t.Fatalf("%v, %v", got, err)
	}
	last := got[len(got)-1]
	if last.GetState() != pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE || last.GetBlockGroupsDone() != last.GetBlockGroupsTotal() ||
		last.GetBytesRelocated() != last.GetBytesTotal() || last.GetBytesFreed() != dry[0].GetBytesFreed() || last.GetZonesReset() == 0 {
		t.Errorf("%v after a dry run of %v", last, dry[0])
	}
	if _, data, err := s.read(&pb.ReadRequest{Name: "f"}); err != nil || string(data) != string(want) {
		t.Errorf("the file holds something else, %v", err)
	}
	after, err := s.store.GetUsage(t.Context(), &pb.GetUsageRequest{})
	if err != nil || after.GetUsage().GetFreeBytes() < before.GetUsage().GetFreeBytes()+last.GetBytesFreed() {
		t.Errorf("%v free became %v, %v", before.GetUsage(), after.GetUsage(), err)
	}
	// Nothing is left to do.
	if again, err := reclaimAll(s, &pb.ReclaimRequest{}); err != nil || again[len(again)-1].GetBlockGroupsTotal() != 0 {
		t.Errorf("%v, %v", again, err)
	}
}

func TestReclaimRefuses(t *testing.T) {
	s := newStore(t, zone.Geometry{Dialect: zone.ZNS, ZoneSize: 512 << 10, ZoneCapacity: 512 << 10, Zones: 12, MaxOpen: 4, MaxActive: 5})
	share := uint32(101)
	for _, c := range []struct {
		r      *pb.ReclaimRequest
		code   codes.Code
		reason string
	}{
		{&pb.ReclaimRequest{ThresholdPercent: &share}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		{&pb.ReclaimRequest{TargetBytes: -1}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		{&pb.ReclaimRequest{BlockGroups: make([]uint32, 1001)}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		{&pb.ReclaimRequest{BlockGroups: []uint32{10}}, codes.OutOfRange, "OUT_OF_RANGE"},
	} {
		_, err := reclaimAll(s, c.r)
		wantReason(t, err, c.code, c.reason)
	}
	if got, err := reclaimAll(s, &pb.ReclaimRequest{BlockGroups: []uint32{9, 0}}); err != nil || got[len(got)-1].GetBlockGroupsTotal() != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestReclaimOneAtATime lets a second call wait, and ends both when the server drains.
func TestReclaimOneAtATime(t *testing.T) {
	s := newStore(t, zone.Geometry{Dialect: zone.ZNS, ZoneSize: 512 << 10, ZoneCapacity: 512 << 10, Zones: 24, MaxOpen: 4, MaxActive: 5})
	garbage(s)
	zero := uint32(0)
	ends := make(chan error, 4)
	for range 4 {
		go func() {
			got, err := reclaimAll(s, &pb.ReclaimRequest{ThresholdPercent: &zero})
			if err == nil && got[len(got)-1].GetState() == pb.MaintenanceState_MAINTENANCE_STATE_RUNNING {
				err = fmt.Errorf("it ended with %v", got[len(got)-1])
			}
			ends <- err
		}()
	}
	for range 4 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	stream, err := s.maintenance.Reclaim(ctx, &pb.ReclaimRequest{})
	for err == nil {
		_, err = stream.Recv()
	}
	s.s.Drain()
	if got, err := reclaimAll(s, &pb.ReclaimRequest{ThresholdPercent: &zero}); err == nil {
		if st := got[len(got)-1].GetState(); st != pb.MaintenanceState_MAINTENANCE_STATE_CANCELLED && st != pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE {
			t.Errorf("while draining it ended with %v", st)
		}
	}
}
