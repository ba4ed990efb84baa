package wire

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// WriteRequest is a shinglev1.WriteRequest whose payload stays in the buffers it came in.
//
// It is no proto.Message, so that nothing can marshal it without its payload by mistake. It
// may be used for many messages, one after the other; it is not safe for concurrent use.
type WriteRequest struct {
	// Header is everything but data: Header.Data is empty after decoding and is ignored by
	// encoding. Decoding makes it if it is nil and replaces its content otherwise.
	Header *shinglev1.WriteRequest
	Payload
}

func (m *WriteRequest) header() proto.Message {
	if m.Header == nil {
		m.Header = new(shinglev1.WriteRequest)
	}
	return m.Header
}

func (m *WriteRequest) swapData(p []byte) []byte {
	old := m.Header.Data
	m.Header.Data = p
	return old
}

// ReadResponse is a shinglev1.ReadResponse whose payload stays in the buffers it came in. It
// is used as WriteRequest is.
type ReadResponse struct {
	// Header is everything but data.
	Header *shinglev1.ReadResponse
	Payload
}

func (m *ReadResponse) header() proto.Message {
	if m.Header == nil {
		m.Header = new(shinglev1.ReadResponse)
	}
	return m.Header
}

func (m *ReadResponse) swapData(p []byte) []byte {
	old := m.Header.Data
	m.Header.Data = p
	return old
}

// Payload holds the data of a message in pieces of any size, in order.
//
// It owns one reference of each buffer. Decoding releases what was held before and holds the
// new; encoding takes references of its own, so after SendMsg, whatever it answers, the
// sender still owns what it put here. The bytes must not be changed before the last
// reference is gone, which after a SendMsg is when the transport has written them.
type Payload struct {
	// Data is the payload. The bytes are read only.
	Data mem.BufferSlice
}

func (p *Payload) payload() *Payload { return p }

// Len returns the length of the payload in bytes.
func (p *Payload) Len() int { return p.Data.Len() }

// Pieces appends the payload's pieces to dst and returns it. They are valid until Free, and
// read only.
func (p *Payload) Pieces(dst [][]byte) [][]byte {
	for _, b := range p.Data {
		if b.Len() > 0 {
			dst = append(dst, b.ReadOnlyData())
		}
	}
	return dst
}

// Free releases the payload. It may be called again, and does nothing then.
func (p *Payload) Free() {
	p.Data.Free()
	p.Data = nil
}

// carrier is what the codec needs of a message of this package. swapData sets the generated
// message's own data field and returns what was there.
type carrier interface {
	header() proto.Message
	swapData(p []byte) []byte
	payload() *Payload
}
