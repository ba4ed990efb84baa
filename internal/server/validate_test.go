package server

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func TestNames(t *testing.T) {
	c255 := strings.Repeat("c", 255)
	for _, ok := range []string{
		"a", "a/b/c", "…", "a b", ".a", "a.", "...", "\u00e9", "e\u0301", "\n", c255, c255 + "/x",
		strings.Repeat(c255+"/", 15) + strings.Repeat("d", 255), "-", "*", `\`,
	} {
		c := check{op: "op"}
		if c.name("name", ok); c.err != nil {
			t.Errorf("%q: %v", ok, c.err)
		}
	}
	for _, bad := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "a/../b", "./a", "a\x00b", "\x00", "\xff", "a/\xc3",
		c255 + "c", "a/" + c255 + "c", strings.Repeat("a/", 2048) + "a",
	} {
		c := check{op: "op"}
		c.name("name", bad)
		wantField(t, c.err, "name")
	}
}

// wantField checks that err is InvalidArgument and names the field in its words too.
func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var e *errdefs.Error
	if !errors.As(err, &e) || e.Kind != errdefs.InvalidArgument || e.Field != field || !strings.Contains(e.Msg, field) {
		t.Errorf("want InvalidArgument of %s, got %v", field, err)
	}
}

func TestRequests(t *testing.T) {
	long := strings.Repeat("x", 256)
	big := map[string]string{"k": strings.Repeat("v", 64<<10)}
	never := &timestamppb.Timestamp{Seconds: 1, Nanos: -1}
	const most = extent.MaxFileSize
	write := func(o *pb.WriteOptions) error {
		_, err := writerOptions(&pb.WriteRequest{Name: "a", Options: o})
		return err
	}
	later := func(r *pb.WriteRequest) error { return checkWrite(r, "a", false, len(r.Data)) }
	for _, c := range []struct {
		field string // "": valid
		err   error
	}{
		{"", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a", Mtime: timestamppb.Now(), Mode: proto.Uint32(0o100644), Kind: pb.FileKind_FILE_KIND_DIRECTORY}}))},
		{"file", second(createRequest(&pb.CreateFileRequest{}))},
		{"file.name", second(createRequest(&pb.CreateFileRequest{File: &pb.File{}}))},
		{"file.kind", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a", Kind: 3}}))},
		{"file.attributes", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a", Attributes: big}}))},
		{"file.attributes", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a", Attributes: map[string]string{"": "v"}}}))},
		{"file.mtime", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a", Mtime: never}}))},
		{"file.mode", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a", Mode: proto.Uint32(1 << 16)}}))},
		{"file.compression", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a", Compression: 3}}))},
		{"request_id", second(createRequest(&pb.CreateFileRequest{File: &pb.File{Name: "a"}, RequestId: long}))},

		{"", second(getRequest(&pb.GetFileRequest{FileId: 7}))},
		{"name", second(getRequest(&pb.GetFileRequest{}))},
		{"file_id", second(getRequest(&pb.GetFileRequest{FileId: 7, Name: "a"}))},

		{"", third(listRequest(&pb.ListFilesRequest{}))},
		{"", third(listRequest(&pb.ListFilesRequest{Directory: "a/b", StartAfter: "a/b/c/", PageSize: 1 << 30}))},
		{"directory", third(listRequest(&pb.ListFilesRequest{Directory: "a/"}))},
		{"page_size", third(listRequest(&pb.ListFilesRequest{PageSize: -1}))},
		{"start_after", third(listRequest(&pb.ListFilesRequest{StartAfter: strings.Repeat("x", 4098)}))},
		{"start_after", third(listRequest(&pb.ListFilesRequest{StartAfter: "a", PageToken: pageToken("files\x00", "b")}))},

		{"", second(deleteRequest(&pb.DeleteFileRequest{Name: "a", IfMatch: &pb.Preconditions{Generation: proto.Int64(0), Size: proto.Int64(0)}}))},
		{"name", second(deleteRequest(&pb.DeleteFileRequest{Name: ".."}))},
		{"if_match.generation", second(deleteRequest(&pb.DeleteFileRequest{Name: "a", IfMatch: &pb.Preconditions{Generation: proto.Int64(-1)}}))},
		{"if_match.file_id", second(deleteRequest(&pb.DeleteFileRequest{Name: "a", IfMatch: &pb.Preconditions{FileId: proto.Uint64(0)}}))},
		{"if_match.size", second(deleteRequest(&pb.DeleteFileRequest{Name: "a", IfMatch: &pb.Preconditions{Size: proto.Int64(-1)}}))},

		{"", second(renameRequest(&pb.RenameFileRequest{Name: "a", NewName: "b"}))},
		{"new_name", second(renameRequest(&pb.RenameFileRequest{Name: "a"}))},
		{"if_target_match.generation", second(renameRequest(&pb.RenameFileRequest{Name: "a", NewName: "b", IfTargetMatch: &pb.Preconditions{Generation: proto.Int64(-1)}}))},

		{"", second(cloneRequest(&pb.CloneFileRequest{Name: "a", NewName: "b", IfMatch: &pb.Preconditions{Generation: proto.Int64(3)}, RequestId: "r"}))},
		{"name", second(cloneRequest(&pb.CloneFileRequest{NewName: "b"}))},
		{"new_name", second(cloneRequest(&pb.CloneFileRequest{Name: "a", NewName: "b/"}))},
		{"if_match.size", second(cloneRequest(&pb.CloneFileRequest{Name: "a", NewName: "b", IfMatch: &pb.Preconditions{Size: proto.Int64(-1)}}))},
		{"if_target_match.file_id", second(cloneRequest(&pb.CloneFileRequest{Name: "a", NewName: "b", IfTargetMatch: &pb.Preconditions{FileId: proto.Uint64(0)}}))},
		{"request_id", second(cloneRequest(&pb.CloneFileRequest{Name: "a", NewName: "b", RequestId: long}))},

		{"", third(mapRequest(&pb.MapFileRequest{Name: "a", Offset: most, PageSize: 1 << 30}))},
		{"", third(mapRequest(&pb.MapFileRequest{FileId: 1}))},
		{"name", third(mapRequest(&pb.MapFileRequest{}))},
		{"file_id", third(mapRequest(&pb.MapFileRequest{Name: "a", FileId: 1}))},
		{"offset", third(mapRequest(&pb.MapFileRequest{Name: "a", Offset: -1}))},
		{"page_size", third(mapRequest(&pb.MapFileRequest{Name: "a", PageSize: -1}))},

		{"", checkTruncate(&pb.TruncateFileRequest{Name: "a", Size: most})},
		{"size", checkTruncate(&pb.TruncateFileRequest{Name: "a", Size: most + 1})},
		{"size", checkTruncate(&pb.TruncateFileRequest{Name: "a", Size: -1})},

		{"", checkDeallocate(&pb.DeallocateFileRequest{Name: "a", Offset: 1, Length: most - 1})},
		{"offset", checkDeallocate(&pb.DeallocateFileRequest{Name: "a", Offset: -1, Length: 1})},
		{"length", checkDeallocate(&pb.DeallocateFileRequest{Name: "a"})},
		{"length", checkDeallocate(&pb.DeallocateFileRequest{Name: "a", Offset: 1, Length: most})},
		{"length", checkDeallocate(&pb.DeallocateFileRequest{Name: "a", Offset: 1, Length: 1<<63 - 1})},

		{"", checkSync(&pb.SyncRequest{})},
		{"names", checkSync(&pb.SyncRequest{Names: []string{"a", ""}})},
		{"names", checkSync(&pb.SyncRequest{Names: make([]string, 1001)})},

		{"", second(readRequest(&pb.ReadRequest{Name: "a", Length: proto.Int64(0)}))},
		{"", second(readRequest(&pb.ReadRequest{FileId: 1, Offset: most}))},
		{"offset", second(readRequest(&pb.ReadRequest{Name: "a", Offset: -1}))},
		{"length", second(readRequest(&pb.ReadRequest{Name: "a", Length: proto.Int64(-1)}))},
		{"length", second(readRequest(&pb.ReadRequest{Name: "a", Offset: most, Length: proto.Int64(1)}))},
		{"file_id", second(readRequest(&pb.ReadRequest{Name: "a", FileId: 1}))},

		{"", write(nil)},
		{"", write(&pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE, MaxWait: durationpb.New(time.Second), ExpectedSize: proto.Int64(0)})},
		{"options.mode", write(&pb.WriteOptions{Mode: 3})},
		{"options.write_id", write(&pb.WriteOptions{WriteId: long})},
		{"options.max_wait", write(&pb.WriteOptions{MaxWait: durationpb.New(-1)})},
		{"options.max_wait", write(&pb.WriteOptions{MaxWait: &durationpb.Duration{Seconds: 1, Nanos: -1}})},
		{"options.max_wait", write(&pb.WriteOptions{MaxWait: &durationpb.Duration{Seconds: 315_576_000_000}})},
		{"options.expected_size", write(&pb.WriteOptions{ExpectedSize: proto.Int64(-1)})},
		{"options.compression", write(&pb.WriteOptions{Compression: 99})},
		{"options.attributes", write(&pb.WriteOptions{Attributes: big})},
		{"options.mtime", write(&pb.WriteOptions{Mtime: never})},
		{"options.mode_bits", write(&pb.WriteOptions{ModeBits: proto.Uint32(1 << 31)})},
		{"options.if_match.size", write(&pb.WriteOptions{IfMatch: &pb.Preconditions{Size: proto.Int64(-1)}})},

		{"", later(&pb.WriteRequest{})},
		{"", later(&pb.WriteRequest{Name: "a", Offset: proto.Int64(most), Finish: true, ContentCrc32C: proto.Uint32(0)})},
		{"", later(&pb.WriteRequest{Data: make([]byte, 2<<20)})},
		{"data", later(&pb.WriteRequest{Data: make([]byte, 2<<20+1)})},
		{"name", later(&pb.WriteRequest{Name: "b"})},
		{"options", later(&pb.WriteRequest{Options: &pb.WriteOptions{}})},
		{"offset", later(&pb.WriteRequest{Offset: proto.Int64(-1)})},
		{"offset", later(&pb.WriteRequest{Offset: proto.Int64(most), Data: []byte{1}})},
		{"content_crc32c", later(&pb.WriteRequest{ContentCrc32C: proto.Uint32(0)})},

		{"", fourth(zonesRequest(&pb.ListZonesRequest{StartZone: 5, Conditions: []pb.ZoneCondition{pb.ZoneCondition_ZONE_CONDITION_FULL}}))},
		{"conditions", fourth(zonesRequest(&pb.ListZonesRequest{Conditions: []pb.ZoneCondition{0}}))},
		{"conditions", fourth(zonesRequest(&pb.ListZonesRequest{Conditions: []pb.ZoneCondition{99}}))},
		{"start_zone", fourth(zonesRequest(&pb.ListZonesRequest{StartZone: 5, PageToken: pageToken("zones", "5")}))},
		{"page_token", fourth(zonesRequest(&pb.ListZonesRequest{PageToken: pageToken("zones", "five")}))},
		{"page_token", fourth(zonesRequest(&pb.ListZonesRequest{PageToken: pageToken("zones", "99999999999999")}))},

		{"", fourth(blockGroupsRequest(&pb.ListBlockGroupsRequest{MinUnusablePercent: 100}))},
		{"min_unusable_percent", fourth(blockGroupsRequest(&pb.ListBlockGroupsRequest{MinUnusablePercent: 101}))},
		{"states", fourth(blockGroupsRequest(&pb.ListBlockGroupsRequest{States: []pb.BlockGroupState{-1}}))},
	} {
		if c.field == "" {
			if c.err != nil {
				t.Errorf("valid, but: %v", c.err)
			}
			continue
		}
		wantField(t, c.err, c.field)
	}
}

func second[A any](_ A, err error) error               { return err }
func third[A, B any](_ A, _ B, err error) error        { return err }
func fourth[A, B, C any](_ A, _ B, _ C, e error) error { return e }

func TestRequestsArriveWhole(t *testing.T) {
	mtime := time.Unix(5, 6).UTC()
	mode, size, gen, id := uint32(0o644), int64(10), int64(0), uint64(3)
	got, err := writerOptions(&pb.WriteRequest{Name: "a/b", Options: &pb.WriteOptions{
		Mode: pb.WriteMode_WRITE_MODE_REPLACE, IfMatch: &pb.Preconditions{Generation: &gen, FileId: &id, Size: &size},
		WriteId: "w", MaxWait: durationpb.New(time.Minute), ExpectedSize: &size, Compression: pb.Compression_COMPRESSION_ZSTD,
		Nodelalloc: true, Attributes: map[string]string{"k": "v"}, Mtime: timestamppb.New(mtime), ModeBits: &mode, MustExist: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "a/b" || got.Mode != engine.Replace || got.If.Generation != &gen || got.If.FileID != &id || got.If.Size != &size ||
		got.WriteID != "w" || got.MaxWait != time.Minute || got.ExpectedSize != &size || *got.Compression != extent.CodecZstd ||
		!got.NoDelalloc || got.Attributes["k"] != "v" || !got.Mtime.Equal(mtime) || got.FileMode != &mode || !got.MustExist {
		t.Errorf("%+v", got)
	}
	list, query, err := listRequest(&pb.ListFilesRequest{Directory: "d", Recursive: true, PageSize: 5})
	if err != nil || list.Limit != 5 || !list.Recursive || list.Directory != "d" {
		t.Errorf("%+v, %v", list, err)
	}
	next, _, err := listRequest(&pb.ListFilesRequest{Directory: "d", Recursive: true, PageToken: pageToken(query, "d/x/")})
	if err != nil || next.StartAfter != "d/x/" || next.Limit != maxPageSize {
		t.Errorf("%+v, %v", next, err)
	}
	if _, _, err := listRequest(&pb.ListFilesRequest{Directory: "d", PageToken: pageToken(query, "d/x/")}); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("a token of a recursive list: %v", err)
	}
	if c := codecOf(pb.Compression_COMPRESSION_UNSPECIFIED); c != nil {
		t.Errorf("the default is %v", *c)
	}
}

// FuzzRequests sends any bytes through each request's validation, which must not panic, and
// whose errors must all be InvalidArgument with a field.
func FuzzRequests(f *testing.F) {
	for _, m := range []proto.Message{
		&pb.CreateFileRequest{File: &pb.File{Name: "a", Mtime: timestamppb.Now()}},
		&pb.WriteRequest{Name: "a", Offset: proto.Int64(1), Options: &pb.WriteOptions{MaxWait: durationpb.New(1)}, Data: []byte("x")},
		&pb.ListFilesRequest{Directory: "d", PageToken: pageToken("files\x00d", "d/a")},
		&pb.ListZonesRequest{PageToken: pageToken("zones", "3")},
		&pb.RenameFileRequest{Name: "a", NewName: "b", IfMatch: &pb.Preconditions{}},
		&pb.ReadRequest{Name: "a", Length: proto.Int64(3)},
		&pb.CloneFileRequest{Name: "a", NewName: "b", IfTargetMatch: &pb.Preconditions{}, RequestId: "r"},
		&pb.MapFileRequest{FileId: 1, Offset: 4096, PageSize: 10},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, validate := range []func() error{
			func() error {
				return decoded(b, func(r *pb.CreateFileRequest) error { return second(createRequest(r)) })
			},
			func() error { return decoded(b, func(r *pb.GetFileRequest) error { return second(getRequest(r)) }) },
			func() error { return decoded(b, func(r *pb.ListFilesRequest) error { return third(listRequest(r)) }) },
			func() error {
				return decoded(b, func(r *pb.DeleteFileRequest) error { return second(deleteRequest(r)) })
			},
			func() error {
				return decoded(b, func(r *pb.RenameFileRequest) error { return second(renameRequest(r)) })
			},
			func() error {
				return decoded(b, func(r *pb.CloneFileRequest) error { return second(cloneRequest(r)) })
			},
			func() error { return decoded(b, func(r *pb.MapFileRequest) error { return third(mapRequest(r)) }) },
			func() error { return decoded(b, checkTruncate) },
			func() error { return decoded(b, checkDeallocate) },
			func() error { return decoded(b, checkSync) },
			func() error { return decoded(b, func(r *pb.ReadRequest) error { return second(readRequest(r)) }) },
			func() error { return decoded(b, func(r *pb.WriteRequest) error { return second(writerOptions(r)) }) },
			func() error {
				return decoded(b, func(r *pb.WriteRequest) error { return checkWrite(r, "a", false, len(r.Data)) })
			},
			func() error { return decoded(b, func(r *pb.ListZonesRequest) error { return fourth(zonesRequest(r)) }) },
			func() error {
				return decoded(b, func(r *pb.ListBlockGroupsRequest) error { return fourth(blockGroupsRequest(r)) })
			},
		} {
			err := validate()
			var e *errdefs.Error
			if err != nil && (!errors.As(err, &e) || e.Kind != errdefs.InvalidArgument || e.Field == "") {
				t.Fatalf("%v", err)
			}
		}
	})
}

// decoded runs f on b if b is an M at all.
func decoded[T any, M interface {
	*T
	proto.Message
}](b []byte, f func(M) error) error {
	m := M(new(T))
	if proto.Unmarshal(b, m) != nil {
		return nil
	}
	return f(m)
}
