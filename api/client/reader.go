package client

import (
	"context"
	"io"

	"google.golang.org/grpc/codes"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/wire"
)

// ReadOptions say what to read.
type ReadOptions struct {
	Offset int64  // first byte
	Length *int64 // at most so many bytes; nil: to the end of the file
	// IfMatch is checked when the file is opened.
	IfMatch *Preconditions
	// FileID names the file instead of the name; 0: the name does.
	FileID uint64
}

// HoleWriter is a destination of Reader.WriteTo that takes a hole for what it is.
type HoleWriter interface {
	io.Writer
	// WriteHole stands for writing n zeros, n > 0.
	WriteHole(n int64) error
}

// Reader reads a range of a file in order. It is an io.ReadCloser and io.WriterTo, for one
// goroutine. Close it.
//
// Every byte was verified by the engine against what is on media, and by this end against
// what the engine sent. DATA_LOSS (see Error.Corruption) comes after the good bytes before it.
type Reader struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelFunc // of the present stream; nil: there is none
	st     shinglev1.FileService_ReadClient
	name   string
	o      ReadOptions

	file    *File
	started bool  // the first message is in
	next    int64 // offset of the byte after buf and hole
	msg     wire.ReadResponse
	buf     [][]byte // pieces of msg not yet handed out, none empty
	hole    int64    // or zeros
	crc     uint32   // of everything before next
	err     error    // after buf and hole; final

	pause   *patience
	mangled int // messages whose checksum was wrong on arrival, in a row
}

// Read opens a file for reading and waits for the first answer, so that a missing file shows
// here. ctx governs the Reader until Close. A range past the end of the file is empty.
func (c *Client) Read(ctx context.Context, name string, o ReadOptions) (*Reader, error) {
	r := &Reader{c: c, ctx: ctx, name: name, o: o, next: o.Offset, pause: c.patience()}
	for !r.started && r.err == nil {
		r.fill()
	}
	if !r.started {
		r.hangUp()
		if r.err == io.EOF {
			return nil, failure(codes.Internal, "", nil, "read %q: the server answered nothing", name)
		}
		return nil, r.err
	}
	return r, nil
}

// File is the file as it was when it was opened.
func (r *Reader) File() *File { return r.file }

// Close releases the Reader. It never fails.
func (r *Reader) Close() error {
	r.hangUp()
	if r.err == nil {
		r.err = io.ErrClosedPipe
	}
	r.buf, r.hole = nil, 0
	r.msg.Free()
	return nil
}

// Read takes up to len(p) bytes, holes as zeros.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.buf) == 0 && r.hole == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	if r.hole > 0 {
		n := int(min(r.hole, int64(len(p))))
		clear(p[:n])
		r.hole -= int64(n)
		return n, nil
	}
	n := 0
	for n < len(p) && len(r.buf) > 0 {
		k := copy(p[n:], r.buf[0])
		n += k
		r.used(k)
	}
	return n, nil
}

// used drops n bytes from the front of the first piece.
func (r *Reader) used(n int) {
	if r.buf[0] = r.buf[0][n:]; len(r.buf[0]) == 0 {
		r.buf = r.buf[1:]
	}
}

// WriteTo writes everything that is left to dst without copying it in between. A HoleWriter
// is given holes, any other writer zeros.
func (r *Reader) WriteTo(dst io.Writer) (n int64, err error) {
	sparse, _ := dst.(HoleWriter)
	for {
		for len(r.buf) == 0 && r.hole == 0 {
			if r.err == io.EOF {
				return n, nil
			}
			if r.err != nil {
				return n, r.err
			}
			r.fill()
		}
		switch {
		case len(r.buf) > 0:
			k, err := dst.Write(r.buf[0])
			n += int64(k)
			r.used(k)
			if err != nil {
				return n, err
			}
		case sparse != nil:
			if err := sparse.WriteHole(r.hole); err != nil {
				return n, err
			}
			n, r.hole = n+r.hole, 0
		default:
			k, err := dst.Write(zeros[:min(r.hole, int64(len(zeros)))])
			n, r.hole = n+int64(k), r.hole-int64(k)
			if err != nil {
				return n, err
			}
		}
	}
}

var zeros [64 << 10]byte

// fill receives one message, opening a stream if there is none. It sets r.err when nothing
// more will come.
func (r *Reader) fill() {
	err := r.receive()
	if err == nil {
		err = r.take()
	}
	switch {
	case err == nil:
	case err == io.EOF:
		r.hangUp()
		r.err = r.complete()
	default:
		r.hangUp()
		r.err = r.goOn(err)
	}
}

// receive gets the next message of the stream into r.msg.
func (r *Reader) receive() error {
	if r.st == nil {
		if r.started && r.left() == 0 {
			return io.EOF
		}
		ctx, cancel := context.WithCancel(r.ctx)
		r.cancel = cancel
		st, err := r.c.files.Read(ctx, r.request(), payload)
		if err != nil {
			return asError(err)
		}
		r.st = st
	}
	err := r.st.RecvMsg(&r.msg)
	if err == io.EOF {
		return err
	}
	err = asError(err)
	r.c.heard(err)
	return err
}

// request asks for what is left. Once the file is known it must still be the same content.
func (r *Reader) request() *shinglev1.ReadRequest {
	req := &shinglev1.ReadRequest{
		Name: r.name, FileId: r.o.FileID, Offset: r.next, Length: r.o.Length, IfMatch: r.o.IfMatch,
		ReportHoles: true,
	}
	if req.FileId != 0 {
		req.Name = ""
	}
	if r.started {
		id, generation := r.file.GetFileId(), r.file.GetGeneration()
		req.Name, req.FileId = "", id
		req.IfMatch = &Preconditions{FileId: &id, Generation: &generation}
		if r.o.Length != nil {
			left := r.left()
			req.Length = &left
		}
	}
	return req
}

// left is how many bytes are still to come by what is known.
func (r *Reader) left() int64 {
	end := r.file.GetSize()
	if r.o.Length != nil && *r.o.Length < end-r.o.Offset {
		end = r.o.Offset + *r.o.Length
	}
	return max(end-r.next, 0)
}

// take checks r.msg and makes it the next to hand out.
func (r *Reader) take() error {
	m, hole, size := r.msg.Header, r.msg.Header.GetHoleBytes(), r.msg.Len()
	if f := m.GetFile(); f != nil && !r.started {
		r.file, r.started = f, true
	}
	if !r.started {
		return failure(codes.Internal, "", nil, "read %q: the first message is without the file", r.name)
	}
	if size == 0 && hole == 0 {
		return nil
	}
	switch {
	case m.GetOffset() != r.next:
		return failure(codes.Internal, "", nil, "read %q: the server sent offset %d for %d", r.name, m.GetOffset(), r.next)
	case hole < 0 || hole > 0 && size > 0:
		return failure(codes.Internal, "", nil, "read %q: hole of %d bytes with %d of data", r.name, hole, size)
	case size > 0 && m.Crc32C == nil:
		return failure(codes.Internal, "", nil, "read %q: data at %d without a checksum", r.name, r.next)
	}
	pieces, sum := r.msg.Pieces(r.buf[:0]), uint32(0)
	for _, p := range pieces {
		sum = csum.Update(sum, p)
	}
	if size > 0 && sum != m.GetCrc32C() {
		var cause error
		if r.mangled++; r.mangled < mangledMessages {
			cause = errBroken
		}
		return failure(codes.DataLoss, reasonPayloadChecksum, cause,
			"read %q: %d bytes at %d arrived with crc32c %08x, sent with %08x", r.name, size, r.next, sum, m.GetCrc32C())
	}
	if hole > 0 {
		sum = zeroSum(hole)
	}
	r.crc = csum.Combine(r.crc, sum, int64(size)+hole)
	r.buf, r.hole = pieces, hole
	r.next += int64(size) + hole
	r.mangled = 0
	r.pause.ok()
	return nil
}

// goOn decides about an error: nil means that a new stream is worth trying.
func (r *Reader) goOn(err error) error {
	if r.ctx.Err() != nil {
		return asError(context.Cause(r.ctx))
	}
	if !passing(err) && CodeOf(err) != codes.Canceled || !r.pause.wait(r.ctx) {
		return err
	}
	return nil
}

// complete checks the whole content at the end, if it was read from end to end and its
// checksum is known. It returns io.EOF if nothing is wrong.
func (r *Reader) complete() error {
	if !r.started || r.o.Offset != 0 || r.file.ContentCrc32C == nil {
		return io.EOF
	}
	if r.o.Length != nil && *r.o.Length < r.file.GetSize() {
		return io.EOF
	}
	if r.next == r.file.GetSize() && r.crc == r.file.GetContentCrc32C() {
		return io.EOF
	}
	// A file that is written to while it is read has no one content to check.
	now, err := r.c.files.GetFile(r.ctx, &shinglev1.GetFileRequest{FileId: r.file.GetFileId()})
	if err != nil || now.GetFile().GetGeneration() != r.file.GetGeneration() {
		return io.EOF
	}
	return failure(codes.DataLoss, reasonCorruption, nil,
		"read %q: %d bytes with crc32c %08x came for %d with %08x", r.name, r.next, r.crc,
		r.file.GetSize(), r.file.GetContentCrc32C())
}

// hangUp ends the present stream, if there is one.
func (r *Reader) hangUp() {
	if r.cancel != nil {
		r.cancel()
	}
	r.cancel, r.st = nil, nil
}

// zeroSum is the crc32c of n zeros, by doubling.
func zeroSum(n int64) uint32 {
	var sum uint32
	power, size := csum.Sum([]byte{0}), int64(1)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			sum = csum.Combine(sum, power, size)
		}
		power, size = csum.Combine(power, power, size), size*2
	}
	return sum
}

var _ interface {
	io.ReadCloser
	io.WriterTo
} = (*Reader)(nil)
