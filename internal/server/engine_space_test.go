package server

import (
	"bytes"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestTheStoreOverTheWire(t *testing.T) {
	s := newStore(t, small)
	ctx := t.Context()
	if _, err := s.write(&pb.WriteRequest{Name: "a", Options: replace}, noise(4, 2<<20), 1<<20); err != nil {
		t.Fatal(err)
	}
	i := info(s)
	if i.Version != "v1" || i.Revision != "r1" || i.StoreUuid != "ab000000-0000-0000-0000-000000000000" || i.BootId == 0 || i.Copies != 1 ||
		i.DefaultCompression != pb.Compression_COMPRESSION_ZSTD || i.Geometry.GetZones() != 40 || i.Geometry.GetDialect() != pb.ZoneDialect_ZONE_DIALECT_ZNS {
		t.Errorf("%v", i)
	}
	if l := i.Limits; l.MaxDataBytes != 2<<20 || l.AckIntervalBytes <= 0 || l.MaxExtentSize <= 0 || l.DirtyLimitBytes != 16<<20 ||
		l.DefaultMaxWait.AsDuration() <= 0 || l.StagedWriteTtl.AsDuration() <= 0 {
		t.Errorf("%v", l)
	}
	if !slices.IsSorted(i.Features) {
		t.Errorf("%v", i.Features)
	}
	u, err := s.store.GetUsage(ctx, &pb.GetUsageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if v := u.Usage; v.TotalBytes != v.UsedBytes+v.FreeBytes+v.ZoneUnusableBytes+v.ReservedBytes+v.QuarantinedBytes || v.UsedBytes < 2<<20 {
		t.Errorf("%v", v)
	}
	if c, err := s.store.ListConditions(ctx, &pb.ListConditionsRequest{}); err != nil || len(c.Conditions) != 0 {
		t.Errorf("%v, %v", c, err)
	}
	if c, err := s.store.GetCounters(ctx, &pb.GetCountersRequest{}); err != nil || c.BootId != i.BootId || len(c.Counters) == 0 {
		t.Errorf("%v, %v", c, err)
	}
	zones := 0
	live := uint64(0)
	for token := ""; ; {
		p, err := s.store.ListZones(ctx, &pb.ListZonesRequest{PageSize: 7, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, z := range p.Zones {
			if z.Zone != uint32(zones) || z.Size != 1<<20 || z.Capacity != 768<<10 || z.Condition == 0 || z.Use == 0 || z.Start != uint64(zones)<<20 {
				t.Errorf("%v", z)
			}
			zones++
			live += z.LiveBytes
		}
		if token = p.NextPageToken; token == "" {
			break
		}
	}
	if zones != 40 || live != uint64(u.Usage.UsedBytes) {
		t.Errorf("%d zones with %d live bytes; used %d", zones, live, u.Usage.UsedBytes)
	}
	full, err := s.store.ListZones(ctx, &pb.ListZonesRequest{Conditions: []pb.ZoneCondition{pb.ZoneCondition_ZONE_CONDITION_FULL}})
	if err != nil || len(full.Zones) < 2 {
		t.Errorf("%v, %v", full, err)
	}
	groups, err := s.store.ListBlockGroups(ctx, &pb.ListBlockGroupsRequest{})
	if err != nil || len(groups.BlockGroups) == 0 {
		t.Fatalf("%v, %v", groups, err)
	}
	used := uint64(0)
	for _, b := range groups.BlockGroups {
		used += b.Used
		if b.Start != uint64(b.BlockGroup)<<20 || len(b.Zones) != 1 || b.State == 0 {
			t.Errorf("%v", b)
		}
	}
	if used != live {
		t.Errorf("block groups hold %d, zones %d", used, live)
	}
	none, err := s.store.ListBlockGroups(ctx, &pb.ListBlockGroupsRequest{MinUnusablePercent: 100})
	if err != nil || len(none.BlockGroups) != 0 {
		t.Errorf("%v, %v", none, err)
	}
}

func TestAFullStore(t *testing.T) {
	s := newStore(t, zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 12, MaxActive: 6})
	ctx := t.Context()
	o := &pb.WriteOptions{Compression: pb.Compression_COMPRESSION_NONE, MaxWait: durationpb.New(200 * time.Millisecond)}
	_, err := s.write(&pb.WriteRequest{Name: "a", Options: o}, noise(5, 12<<20), 256<<10)
	st := status.Convert(err)
	if st.Code() != codes.ResourceExhausted {
		t.Fatalf("%v", err)
	}
	received := detail[*pb.WriteDetail](st).GetLast().GetReceivedBytes()
	if received < 1<<20 || received%(256<<10) != 0 || detail[*pb.SpaceDetail](st).GetUsage() == nil {
		t.Errorf("%v", st.Details())
	}
	if _, err := s.files.Sync(ctx, &pb.SyncRequest{}); err != nil {
		t.Errorf("sync on a full store: %v", err)
	}
	if _, b, err := s.read(&pb.ReadRequest{Name: "a"}); err != nil || !bytes.Equal(b, noise(5, 12<<20)[:received]) {
		t.Errorf("what was received: %d bytes, %v", len(b), err)
	}
	if _, err := s.files.DeleteFile(ctx, &pb.DeleteFileRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	o.MaxWait = durationpb.New(5 * time.Second)
	if _, err := s.write(&pb.WriteRequest{Name: "b", Options: o}, noise(6, 3<<20), 256<<10); err != nil {
		t.Errorf("after the delete: %v", err)
	}
}

func TestResumeAndFence(t *testing.T) {
	s := newStore(t, small)
	data := noise(7, 600_000)
	o := &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE, WriteId: "11111111-2222-3333-4444-555555555555"}
	old := openWrite(t, s.files)
	send(t, old, &pb.WriteRequest{Name: "a", Data: data[:200_000], Options: o, Sync: true})
	for r := recv(t, old); r.DurableBytes < 200_000; r = recv(t, old) {
	}
	newer := openWrite(t, s.files)
	send(t, newer, &pb.WriteRequest{Name: "a", Options: o})
	at := recv(t, newer).ReceivedBytes
	if at != 200_000 {
		t.Fatalf("goes on at %d", at)
	}
	_ = old.Send(&pb.WriteRequest{Data: []byte("late")})
	_, _, err := rest(old)
	wantReason(t, err, codes.Aborted, "FENCED")
	send(t, newer, &pb.WriteRequest{Data: data[at:]})
	send(t, newer, &pb.WriteRequest{Finish: true, ContentCrc32C: proto.Uint32(crc32.Checksum(data, castagnoli))})
	if last, _, err := rest(newer); err != nil || last.File.GetSize() != 600_000 {
		t.Fatalf("%v, %v", last, err)
	}
	if _, b, err := s.read(&pb.ReadRequest{Name: "a"}); err != nil || !bytes.Equal(b, data) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestDrainThenReopen(t *testing.T) {
	s := newStore(t, small)
	stream := openWrite(t, s.files)
	send(t, stream, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Report: true})
	recv(t, stream)
	s.e.Draining()
	s.s.Drain()
	_, _, err := rest(stream)
	wantReason(t, err, codes.Unavailable, "DRAINING")
	_, err = s.write(&pb.WriteRequest{Name: "b"}, []byte("x"), 1)
	wantReason(t, err, codes.Unavailable, "DRAINING")
	s.restart()
	if _, b, err := s.read(&pb.ReadRequest{Name: "a"}); err != nil || string(b) != "abc" {
		t.Errorf("%q, %v", b, err)
	}
}
