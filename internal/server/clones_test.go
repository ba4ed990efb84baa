package server

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone/array"
)

func TestClonesOverTheWire(t *testing.T) {
	s := newStore(t, small)
	ctx := t.Context()
	data := noise(1, 300_000)
	if _, err := s.write(&pb.WriteRequest{Name: "src", Options: &pb.WriteOptions{Attributes: map[string]string{"k": "v"}}}, data, 100_000); err != nil {
		t.Fatal(err)
	}
	src, err := s.files.GetFile(ctx, &pb.GetFileRequest{Name: "src"})
	if err != nil {
		t.Fatal(err)
	}
	req := &pb.CloneFileRequest{
		Name: "src", NewName: "a/dst", RequestId: "r",
		IfMatch: &pb.Preconditions{FileId: &src.File.FileId, Size: proto.Int64(300_000)}, IfTargetMatch: &pb.Preconditions{Generation: proto.Int64(0)},
	}
	c, err := s.files.CloneFile(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	f := c.File
	if f.GetName() != "a/dst" || f.GetSize() != 300_000 || f.GetDirtyBytes() != 0 || f.GetAttributes()["k"] != "v" || f.GetRequestId() != "r" || f.GetFileId() == src.File.FileId {
		t.Errorf("%v", f)
	}
	req.IfTargetMatch = nil
	if again, err := s.files.CloneFile(ctx, req); err != nil || again.File.GetFileId() != f.GetFileId() {
		t.Errorf("a retry: %v, %v", again, err)
	}
	s.restart()
	for _, name := range []string{"src", "a/dst"} {
		if _, b, err := s.read(&pb.ReadRequest{Name: name}); err != nil || !bytes.Equal(b, data) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	req.RequestId = ""
	_, err = s.files.CloneFile(ctx, req)
	wantReason(t, err, codes.AlreadyExists, "ALREADY_EXISTS")
	req.Replace, req.IfTargetMatch = true, &pb.Preconditions{Size: proto.Int64(1)}
	_, err = s.files.CloneFile(ctx, req)
	wantReason(t, err, codes.FailedPrecondition, "PRECONDITION")
	req.IfTargetMatch = nil
	if c, err := s.files.CloneFile(ctx, req); err != nil || c.GetFreed().GetPendingBytes() == 0 {
		t.Errorf("%v %v", c, err)
	}
	_, err = s.files.CloneFile(ctx, &pb.CloneFileRequest{Name: "a", NewName: "b"})
	wantReason(t, err, codes.FailedPrecondition, "NOT_A_FILE")
	_, err = s.files.CloneFile(ctx, &pb.CloneFileRequest{Name: "src", NewName: "src"})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = s.files.CloneFile(ctx, &pb.CloneFileRequest{Name: "no", NewName: "b"})
	wantReason(t, err, codes.NotFound, "NOT_FOUND")
}

func TestMapOverTheWire(t *testing.T) {
	s := newStore(t, small)
	ctx := t.Context()
	offset := int64(8192)
	if _, err := s.write(&pb.WriteRequest{Name: "f", Offset: &offset, Sync: true, Options: &pb.WriteOptions{Compression: pb.Compression_COMPRESSION_NONE}}, noise(1, 20_000), 20_000); err != nil {
		t.Fatal(err)
	}
	if _, err := s.files.Sync(ctx, &pb.SyncRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.files.CloneFile(ctx, &pb.CloneFileRequest{Name: "f", NewName: "g"}); err != nil {
		t.Fatal(err)
	}
	var all []*pb.FileExtent
	req := &pb.MapFileRequest{Name: "f", PageSize: 1}
	for pages := 1; ; pages++ {
		page, err := s.files.MapFile(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if page.File.GetName() != "f" || len(page.Extents) != 1 {
			t.Fatalf("page %d: %v", pages, page)
		}
		all = append(all, page.Extents...)
		if page.NextOffset == nil {
			break
		}
		req.Offset = *page.NextOffset
	}
	if len(all) != 2 || !proto.Equal(all[0], &pb.FileExtent{Length: 8192, Kind: pb.FileExtentKind_FILE_EXTENT_KIND_HOLE}) {
		t.Fatalf("%v", all)
	}
	x := all[1]
	if x.Offset != 8192 || x.Length != 20_000 || x.Kind != pb.FileExtentKind_FILE_EXTENT_KIND_DATA || x.StoredBytes != 20_480 ||
		x.Compression != pb.Compression_COMPRESSION_NONE || !x.Shared || len(x.Zones) != 1 || x.Address == 0 || x.Zones[0].Offset != x.Address%uint64(small.ZoneSize) {
		t.Errorf("%v", x)
	}
	page, err := s.files.MapFile(ctx, &pb.MapFileRequest{FileId: statOf(t, s, "f").GetFileId(), Offset: 28_192})
	if err != nil || len(page.Extents) != 0 || page.NextOffset != nil {
		t.Errorf("past the end: %v %v", page, err)
	}
	_, err = s.files.MapFile(ctx, &pb.MapFileRequest{Name: "no"})
	wantReason(t, err, codes.NotFound, "NOT_FOUND")
}

func statOf(t *testing.T, s *stored, name string) *pb.File {
	t.Helper()
	r, err := s.files.GetFile(t.Context(), &pb.GetFileRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return r.File
}

// TestFileExtentsAreComplete: each kind carries what the API says of it, and nothing else.
func TestFileExtentsAreComplete(t *testing.T) {
	all := engine.MapExtent{Offset: 1, Length: 2, Address: 3, Places: []array.Place{{Zone: 4}, {Device: 1, Zone: 9}}, ZoneOff: 5, Skip: 6, Stored: 7, Codec: extent.CodecZstd, Shared: true}
	kind := func(k engine.MapKind) *pb.FileExtent { all.Kind = k; return fileExtentProto(all) }
	for k, want := range map[engine.MapKind]*pb.FileExtent{
		engine.MapData: {
			Kind: pb.FileExtentKind_FILE_EXTENT_KIND_DATA, Address: 3, Skip: 6, StoredBytes: 7,
			Compression: pb.Compression_COMPRESSION_ZSTD, Shared: true, Zones: []*pb.ZoneRef{{Device: "0", Zone: 4, Offset: 5}, {Device: "1", Zone: 9, Offset: 5}},
		},
		engine.MapInline: {Kind: pb.FileExtentKind_FILE_EXTENT_KIND_INLINE, StoredBytes: 7, Compression: pb.Compression_COMPRESSION_ZSTD},
		engine.MapHole:   {Kind: pb.FileExtentKind_FILE_EXTENT_KIND_HOLE},
		engine.MapDirty:  {Kind: pb.FileExtentKind_FILE_EXTENT_KIND_DIRTY},
		0:                {},
	} {
		want.Offset, want.Length = 1, 2
		if got := kind(k); !proto.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}
