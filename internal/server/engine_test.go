package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	mathrand "math/rand"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// keep is a device that stays when an engine closes it, as a drive does.
type keep struct{ zone.Device }

func (keep) Close() error { return nil }

// stored is a store on a memory device and a client of the engine that has it open.
type stored struct {
	t           *testing.T
	o           engine.Options
	e           *engine.Engine
	s           *Server
	files       pb.FileServiceClient
	store       pb.StoreServiceClient
	maintenance pb.MaintenanceServiceClient
	conn        *grpc.ClientConn
	closed      func()
}

func newStore(t *testing.T, g zone.Geometry) *stored {
	t.Helper()
	mem, err := zone.NewMem(g, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &stored{t: t, o: engine.Options{
		Devices: []engine.Device{{Device: keep{mem}}}, MetadataPath: filepath.Join(t.TempDir(), "meta"), MetadataNoSync: true,
		DirtyLimit: 16 << 20, Now: time.Now, Random: rand.Reader,
	}}
	err = engine.Format(engine.FormatOptions{
		Devices: []engine.Device{{Device: mem}}, MetadataPath: s.o.MetadataPath, UUID: [16]byte{0xab}, Compression: extent.CodecZstd, Now: time.Now, MetadataNoSync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.start()
	return s
}

// start opens the engine and serves it to a new client.
func (s *stored) start() {
	s.t.Helper()
	e, err := engine.Open(context.Background(), s.o)
	if err != nil {
		s.t.Fatal(err)
	}
	o := Options{Version: "v1", Revision: "r1", Now: time.Now}
	s.e, s.s = e, New(e, o)
	srv := NewGRPC(o)
	s.s.Register(srv)
	// Cleanups run last first: the server stops before its engine is closed.
	s.t.Cleanup(func() { _ = e.Close(context.Background()) })
	conn := serve(s.t, srv)
	s.conn, s.files, s.store = conn, pb.NewFileServiceClient(conn), pb.NewStoreServiceClient(conn)
	s.maintenance = pb.NewMaintenanceServiceClient(conn)
	s.closed = func() {
		srv.Stop()
		_ = e.Close(context.Background())
	}
}

func (s *stored) restart() {
	s.closed()
	s.start()
}

var small = zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 40, MaxOpen: 4, MaxActive: 6}

// write sends data in messages of size bytes, with first's name and options in the first.
func (s *stored) write(first *pb.WriteRequest, data []byte, size int) (*pb.WriteResponse, error) {
	s.t.Helper()
	stream, err := s.files.Write(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	m := proto.Clone(first).(*pb.WriteRequest)
	for {
		n := min(size, len(data))
		m.Data = data[:n]
		sum := crc32.Checksum(m.Data, castagnoli)
		m.Crc32C = &sum
		data = data[n:]
		m.Finish = len(data) == 0
		if err := stream.Send(m); err != nil || m.Finish {
			break // the error is in Recv
		}
		m = &pb.WriteRequest{}
	}
	last, _, err := rest(stream)
	return last, err
}

func (s *stored) read(r *pb.ReadRequest) (*pb.File, []byte, error) {
	s.t.Helper()
	stream, err := s.files.Read(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	var f *pb.File
	var out []byte
	for at := r.Offset; ; {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return f, out, nil
		}
		if err != nil {
			return f, out, err
		}
		if f == nil {
			f = m.File
		}
		if len(m.Data) > 1<<20 || m.Offset != at || len(m.Data) > 0 && m.GetCrc32C() != crc32.Checksum(m.Data, castagnoli) {
			s.t.Errorf("a piece at %d of %d bytes; expected at %d", m.Offset, len(m.Data), at)
		}
		out = append(out, m.Data...)
		out = append(out, make([]byte, m.HoleBytes)...)
		at += int64(len(m.Data)) + m.HoleBytes
	}
}

func noise(seed int64, n int) []byte {
	b := make([]byte, n)
	mathrand.New(mathrand.NewSource(seed)).Read(b)
	return b
}

var replace = &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE}

func TestReplaceAndReadAcrossRestart(t *testing.T) {
	s := newStore(t, small)
	want := map[string][]byte{
		"empty": {}, "tiny": []byte("hello"), "d/text": bytes.Repeat([]byte("all work and no play "), 50_000), "d/e/noise": noise(1, 3<<20+17),
	}
	mtime := timestamppb.New(time.Unix(1_700_000_000, 123))
	for name, data := range want {
		o := &pb.WriteOptions{
			Mode: pb.WriteMode_WRITE_MODE_REPLACE, Attributes: map[string]string{"k": name}, Mtime: mtime, ModeBits: proto.Uint32(0o640),
			ExpectedSize: proto.Int64(int64(len(data))),
		}
		last, err := s.write(&pb.WriteRequest{Name: name, Options: o}, data, 256<<10)
		if err != nil {
			t.Fatal(err)
		}
		if n := int64(len(data)); last.ReceivedBytes != n || last.DurableBytes != n || last.File.GetSize() != n || last.File.GetName() != name {
			t.Errorf("%s: %v", name, last)
		}
	}
	boot := info(s).BootId
	for range 2 {
		for name, data := range want {
			f, got, err := s.read(&pb.ReadRequest{Name: name})
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%s: %d bytes, %v", name, len(got), err)
			}
			if f.GetMode() != 0o640 || !proto.Equal(f.GetMtime(), mtime) || f.GetAttributes()["k"] != name ||
				f.ContentCrc32C == nil || f.GetContentCrc32C() != crc32.Checksum(data, castagnoli) {
				t.Errorf("%s: %v", name, f)
			}
			if len(data) > 100 {
				_, part, err := s.read(&pb.ReadRequest{FileId: f.FileId, Offset: 99, Length: proto.Int64(int64(len(data)))})
				if err != nil || !bytes.Equal(part, data[99:]) {
					t.Errorf("%s from 99: %d bytes, %v", name, len(part), err)
				}
			}
			if f, past, err := s.read(&pb.ReadRequest{Name: name, Offset: 1 << 40}); err != nil || len(past) != 0 || f.GetName() != name {
				t.Errorf("%s past the end: %v, %d bytes, %v", name, f, len(past), err)
			}
		}
		s.restart()
		if again := info(s).BootId; again == boot {
			t.Error("a restart keeps the boot id")
		}
	}
}

func info(s *stored) *pb.GetServerInfoResponse {
	s.t.Helper()
	i, err := s.store.GetServerInfo(s.t.Context(), &pb.GetServerInfoRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

func TestSyncMakesAStreamDurable(t *testing.T) {
	s := newStore(t, small)
	stream := openWrite(t, s.files)
	data := noise(2, 100_000)
	send(t, stream, &pb.WriteRequest{Name: "a", Data: data, Sync: true})
	for r := recv(t, stream); r.DurableBytes < int64(len(data)); r = recv(t, stream) {
		if r.BootId != info(s).BootId {
			t.Fatalf("%v", r)
		}
	}
	// Another boot id is refused by Sync, this one is not.
	boot := info(s).BootId
	if _, err := s.files.Sync(t.Context(), &pb.SyncRequest{Names: []string{"a"}, BootId: &boot}); err != nil {
		t.Error(err)
	}
	boot++
	_, err := s.files.Sync(t.Context(), &pb.SyncRequest{BootId: &boot})
	wantReason(t, err, codes.Aborted, "RESTARTED")
	send(t, stream, &pb.WriteRequest{Data: []byte("tail"), Finish: true})
	if last, _, err := rest(stream); err != nil || last.File.GetSize() != 100_004 {
		t.Errorf("%v, %v", last, err)
	}
}

func wantReason(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code || detail[*errdetails.ErrorInfo](st).GetReason() != reason {
		t.Errorf("want %v %s, got %v %v", code, reason, err, st.Details())
	}
	if n := proto.Size(st.Proto()); n > maxStatusBytes {
		t.Errorf("a status of %d bytes", n)
	}
}

func TestFilesOverTheWire(t *testing.T) {
	s := newStore(t, small)
	ctx := t.Context()
	made, err := s.files.CreateFile(ctx, &pb.CreateFileRequest{File: &pb.File{Name: "x/y", Kind: pb.FileKind_FILE_KIND_DIRECTORY}})
	if err != nil || made.File.GetKind() != pb.FileKind_FILE_KIND_DIRECTORY || made.File.GetFileId() == 0 {
		t.Fatalf("%v, %v", made, err)
	}
	create := func(id string) (*pb.CreateFileResponse, error) {
		return s.files.CreateFile(ctx, &pb.CreateFileRequest{File: &pb.File{Name: "x/f"}, RequestId: id, Exclusive: true})
	}
	first, err := create("one")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := create("one"); err != nil || again.File.GetFileId() != first.File.GetFileId() {
		t.Errorf("a retry: %v, %v", again, err)
	}
	_, err = create("two")
	wantReason(t, err, codes.AlreadyExists, "ALREADY_EXISTS")
	if r := detail[*errdetails.ResourceInfo](status.Convert(err)); !strings.Contains(r.GetResourceName(), "x/f") {
		t.Errorf("%v", r)
	}
	_, err = s.files.GetFile(ctx, &pb.GetFileRequest{Name: "nothing"})
	wantReason(t, err, codes.NotFound, "NOT_FOUND")
	got, err := s.files.GetFile(ctx, &pb.GetFileRequest{FileId: first.File.GetFileId()})
	if err != nil || got.File.GetName() != "x/f" || got.File.GetKind() != pb.FileKind_FILE_KIND_FILE {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := s.write(&pb.WriteRequest{Name: "x/f"}, noise(3, 50_000), 50_000); err != nil {
		t.Fatal(err)
	}
	trunc, err := s.files.TruncateFile(ctx, &pb.TruncateFileRequest{Name: "x/f", Size: 40_000})
	if err != nil || trunc.File.GetSize() != 40_000 {
		t.Errorf("%v, %v", trunc, err)
	}
	hole, err := s.files.DeallocateFile(ctx, &pb.DeallocateFileRequest{Name: "x/f", Offset: 4096, Length: 8192})
	if err != nil || hole.File.GetSize() != 40_000 {
		t.Errorf("%v, %v", hole, err)
	}
	want := append([]byte(nil), noise(3, 50_000)[:40_000]...)
	clear(want[4096 : 4096+8192])
	for _, holes := range []bool{false, true} {
		if _, b, err := s.read(&pb.ReadRequest{Name: "x/f", ReportHoles: holes}); err != nil || !bytes.Equal(b, want) {
			t.Errorf("holes %v: %d bytes, %v", holes, len(b), err)
		}
	}
	_, err = s.files.RenameFile(ctx, &pb.RenameFileRequest{Name: "x/f", NewName: "z/g", IfMatch: &pb.Preconditions{Size: proto.Int64(1)}})
	wantReason(t, err, codes.FailedPrecondition, "PRECONDITION")
	ren, err := s.files.RenameFile(ctx, &pb.RenameFileRequest{Name: "x/f", NewName: "z/g", IfMatch: &pb.Preconditions{FileId: &got.File.FileId}})
	if err != nil || ren.File.GetName() != "z/g" || ren.File.GetFileId() != got.File.GetFileId() {
		t.Errorf("%v, %v", ren, err)
	}
	_, err = s.files.DeleteFile(ctx, &pb.DeleteFileRequest{Name: "x"})
	wantReason(t, err, codes.FailedPrecondition, "DIRECTORY_NOT_EMPTY")
	_, err = s.write(&pb.WriteRequest{Name: "x"}, []byte("a"), 1)
	wantReason(t, err, codes.FailedPrecondition, "NOT_A_FILE")
	if _, err := s.files.DeleteFile(ctx, &pb.DeleteFileRequest{Name: "z/g"}); err != nil {
		t.Error(err)
	}
	_, err = s.files.DeleteFile(ctx, &pb.DeleteFileRequest{Name: "z/g"})
	wantReason(t, err, codes.NotFound, "NOT_FOUND")
	if _, err := s.files.DeleteFile(ctx, &pb.DeleteFileRequest{Name: "z/g", AllowMissing: true}); err != nil {
		t.Error(err)
	}
	_, err = s.write(&pb.WriteRequest{Name: "new", Options: &pb.WriteOptions{MustExist: true}}, []byte("a"), 1)
	wantReason(t, err, codes.NotFound, "NOT_FOUND")
}

func TestListPages(t *testing.T) {
	s := newStore(t, small)
	ctx := t.Context()
	var want []string
	for i := range 25 {
		name := fmt.Sprintf("dir/f%02d", i)
		if i%5 == 0 {
			name += "/leaf"
		}
		if _, err := s.files.CreateFile(ctx, &pb.CreateFileRequest{File: &pb.File{Name: name}}); err != nil {
			t.Fatal(err)
		}
		want = append(want, strings.TrimSuffix(name, "/leaf"))
	}
	list := func(r *pb.ListFilesRequest) (names []string) {
		for {
			page, err := s.files.ListFiles(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			if r.PageSize > 0 && len(page.Files) > int(r.PageSize) {
				t.Fatalf("a page of %d", len(page.Files))
			}
			for _, f := range page.Files {
				names = append(names, f.Name)
			}
			if page.NextPageToken == "" {
				return names
			}
			r = proto.Clone(r).(*pb.ListFilesRequest)
			r.PageToken, r.StartAfter = page.NextPageToken, ""
		}
	}
	for _, size := range []int32{0, 1, 3, 25, 26} {
		if d := cmp.Diff(want, list(&pb.ListFilesRequest{Directory: "dir", PageSize: size})); d != "" {
			t.Errorf("pages of %d: %s", size, d)
		}
		if all := list(&pb.ListFilesRequest{Recursive: true, PageSize: size}); len(all) != 1+25+5 {
			t.Errorf("recursive, pages of %d: %v", size, all)
		}
	}
	if got := list(&pb.ListFilesRequest{Directory: "dir", StartAfter: "dir/f22"}); !slices.Equal(got, []string{"dir/f23", "dir/f24"}) {
		t.Errorf("start after: %v", got)
	}
	if got := list(&pb.ListFilesRequest{}); !slices.Equal(got, []string{"dir"}) {
		t.Errorf("root: %v", got)
	}
	_, err := s.files.ListFiles(ctx, &pb.ListFilesRequest{PageToken: "tampered"})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
}

// TestAFullStore: the refusal carries the position and the numbers, and deletes bring the
// store back.
// TestResumeAndFence: a newer stream with the same write_id goes on where the older stood.
// TestDrainThenReopen: what a drained stream had received is there after the final sync.
