package server

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// fakeReader answers pieces from buffers that it overwrites as soon as the contract of
// engine.Reader allows.
type fakeReader struct {
	pieces []engine.Piece
	err    error // after the pieces
	buf    []byte
	kept   sync.WaitGroup
}

func (r *fakeReader) File() engine.File { return engine.File{Name: "a", ID: 42, Size: 1 << 30} }
func (r *fakeReader) Close()            {}

func (r *fakeReader) Keep() func(int) {
	r.kept.Add(1)
	buf, left := r.buf, atomic.Int64{}
	left.Store(int64(len(buf)))
	r.buf = nil
	return func(n int) {
		if left.Add(-int64(n)) == 0 {
			clear(buf)
			r.kept.Done()
		}
	}
}

func (r *fakeReader) Drained(context.Context) error {
	r.kept.Wait()
	return nil
}

func (r *fakeReader) Next(context.Context) (engine.Piece, error) {
	clear(r.buf[:cap(r.buf)])
	if len(r.pieces) == 0 {
		return engine.Piece{}, r.err
	}
	p := r.pieces[0]
	r.pieces = r.pieces[1:]
	r.buf = append(r.buf[:0], p.Data...)
	p.Data = r.buf
	return p, nil
}

// readService serves Read over one fakeReader.
type readService struct {
	pb.UnimplementedFileServiceServer
	s *Server
	r *fakeReader
}

func (f *readService) Read(r *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.ReadResponse]) error {
	ctx := stream.Context()
	err := sendFile(ctx, f.r, r.GetOffset(), stream.SendMsg)
	_ = f.r.Drained(ctx)
	return f.s.status(ctx, err)
}

func readAll(t *testing.T, r *fakeReader) ([]*pb.ReadResponse, error) {
	t.Helper()
	o := Options{Now: time.Now}
	srv := NewGRPC(o)
	pb.RegisterFileServiceServer(srv, &readService{s: New(nil, o), r: r})
	stream, err := pb.NewFileServiceClient(serve(t, srv)).Read(t.Context(), &pb.ReadRequest{Name: "a", Offset: 7})
	if err != nil {
		t.Fatal(err)
	}
	var out []*pb.ReadResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

func piece(offset int64, b byte, n int) engine.Piece {
	data := bytes.Repeat([]byte{b}, n)
	return engine.Piece{Offset: offset, Data: data, CRC: crc32.Checksum(data, castagnoli)}
}

func TestReadSendsPieces(t *testing.T) {
	in := []engine.Piece{
		piece(7, 'a', 1<<20), piece(7+1<<20, 'b', 1<<20), {Offset: 7 + 2<<20, Hole: 4096}, piece(7+2<<20+4096, 'c', 3), piece(9<<20, 'd', 100<<10),
	}
	out, err := readAll(t, &fakeReader{pieces: append([]engine.Piece(nil), in...), err: io.EOF})
	if err != nil || len(out) != len(in) {
		t.Fatalf("%d messages, %v", len(out), err)
	}
	for i, m := range out {
		if m.Offset != in[i].Offset || m.HoleBytes != in[i].Hole || !bytes.Equal(m.Data, in[i].Data) {
			t.Errorf("message %d: offset %d, hole %d, %d bytes", i, m.Offset, m.HoleBytes, len(m.Data))
		}
		if (m.File != nil) != (i == 0) {
			t.Errorf("message %d: file %v", i, m.File)
		}
		if len(m.Data) > 0 && (m.Crc32C == nil || *m.Crc32C != crc32.Checksum(m.Data, castagnoli)) || len(m.Data) == 0 && m.Crc32C != nil {
			t.Errorf("message %d: crc32c %v", i, m.Crc32C)
		}
	}
	if out[0].File.GetFileId() != 42 {
		t.Errorf("%v", out[0].File)
	}
}

func TestReadOfNothingSendsTheFile(t *testing.T) {
	out, err := readAll(t, &fakeReader{err: io.EOF})
	if err != nil || len(out) != 1 || out[0].File.GetName() != "a" || len(out[0].Data) != 0 || out[0].Offset != 7 {
		t.Errorf("%v, %v", out, err)
	}
}

func TestReadSendsTheGoodPrefix(t *testing.T) {
	bad := &errdefs.Error{
		Kind: errdefs.Corruption, Reason: errdefs.ReasonCorruption, Op: "engine.Read", Object: "file a",
		Msg: "bad block", Detail: &engine.CorruptionDetail{Name: "a", Offset: 4103, Length: 4096, Zone: 3},
	}
	out, err := readAll(t, &fakeReader{pieces: []engine.Piece{piece(7, 'a', 4096)}, err: bad})
	st := status.Convert(err)
	if len(out) != 1 || len(out[0].Data) != 4096 || st.Code() != codes.DataLoss {
		t.Fatalf("%d messages, %v", len(out), err)
	}
	if d := detail[*pb.Corruption](st); d.GetOffset() != 4103 || d.GetZone().GetZone() != 3 {
		t.Errorf("%v", d)
	}
}
