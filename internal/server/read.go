package server

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/wire"
)

// reader is what Read needs of *engine.Reader.
type reader interface {
	File() engine.File
	Next(ctx context.Context) (engine.Piece, error)
	Close()
}

// Read implements the RPC.
func (s *fileService) Read(r *shinglev1.ReadRequest, stream grpc.ServerStreamingServer[shinglev1.ReadResponse]) error {
	ctx := stream.Context()
	req, err := readRequest(r)
	if err != nil {
		return s.status(ctx, err)
	}
	e, err := s.open("server.Read")
	if err != nil {
		return s.status(ctx, err)
	}
	rd, err := e.OpenReader(ctx, req)
	if err != nil {
		return s.status(ctx, err)
	}
	defer rd.Close()
	return s.status(ctx, sendFile(ctx, rd, req.Offset, stream.SendMsg))
}

// sendFile sends all pieces of rd. Each goes out in memory of its own, because the transport
// may hold a message after send has returned, and the reader's buffer is good for one piece.
func sendFile(ctx context.Context, rd reader, offset int64, send func(any) error) error {
	file := fileProto(rd.File())
	for first := true; ; first = false {
		p, err := rd.Next(ctx)
		switch {
		case err == io.EOF && !first:
			return nil
		case err == io.EOF:
			p = engine.Piece{Offset: offset}
		case err != nil:
			return err
		}
		out := wire.ReadResponse{Header: &shinglev1.ReadResponse{Offset: p.Offset, HoleBytes: p.Hole}}
		if first {
			out.Header.File = file
		}
		if len(p.Data) > 0 {
			out.Header.Crc32C = &p.CRC
			out.Data = mem.BufferSlice{wire.Copy(p.Data)}
		}
		sendErr := send(&out)
		out.Free()
		if sendErr != nil {
			return sendErr
		}
		if err == io.EOF {
			return nil
		}
	}
}
