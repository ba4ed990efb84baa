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
	Keep() (giveBack func(n int))
	Drained(ctx context.Context) error
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
	err = sendFile(ctx, rd, req.Offset, stream.SendMsg)
	// The transport holds messages after SendMsg has returned, for as long as the client does not
	// take them. Once the handler has returned nobody tells when, or that the client is gone.
	if derr := rd.Drained(ctx); err == nil {
		err = derr
	}
	return s.status(ctx, err)
}

// sendFile sends all pieces of rd, in the memory that they were read into.
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
			out.Data = halves(p.Data, rd.Keep())
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

// halves wraps a piece for sending as two buffers, so that its reader hears when the transport is
// half through.
func halves(p []byte, giveBack func(n int)) mem.BufferSlice {
	a, b := p[:len(p)/2], p[len(p)/2:]
	return mem.BufferSlice{
		wire.Buffer(a, func() { giveBack(len(a)) }),
		wire.Buffer(b, func() { giveBack(len(b)) }),
	}
}
