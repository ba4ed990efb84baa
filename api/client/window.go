package client

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/wire"
)

// message is one piece of a write as it goes over the wire. pos is its place in the stream
// (the sum of the lengths before it), off its place in the file. buf counts who reads data: the
// window, and transports, of which one of a broken stream may outlast the message.
type message struct {
	pos, off int64
	data     []byte
	crc      uint32
	buf      mem.Buffer
}

// parts are message buffers of full size. Fresh ones cost more in page faults than the copy
// into them does.
var parts = sync.Pool{New: func() any { p := make([]byte, messageSize); return &p }}

// newPart returns an empty message buffer with room for n bytes. Its content is arbitrary.
func newPart(n int) []byte {
	if n == messageSize {
		return (*parts.Get().(*[]byte))[:0]
	}
	return make([]byte, 0, n)
}

// partBuffer counts readers of data; memory of full size goes back when the last has gone.
func partBuffer(data []byte) mem.Buffer {
	if cap(data) != messageSize {
		return mem.SliceBuffer(data)
	}
	return wire.Buffer(data, func() {
		data = data[:messageSize]
		parts.Put(&data)
	})
}

func (m *message) end() int64 { return m.pos + int64(len(m.data)) }

// window holds what was taken from the caller and is not known to be durable, so that all of
// it can be sent again. All numbers are stream positions in bytes. It is pure: the Writer
// guards it and does the talking.
//
//	base <= durable <= received <= sent <= accepted
//
// where base is the position of the oldest message kept and sent that of the next to send.
type window struct {
	limit    int64 // bytes it may hold
	msgs     []*message
	next     int // index in msgs of the next message to send on the present stream
	accepted int64
	received int64 // as the present stream's server says
	durable  int64
	highest  int64  // received has been, on any stream
	crc      uint32 // of everything accepted, as if it were one run of bytes
}

// base is the oldest position that can be sent again.
func (w *window) base() int64 {
	if len(w.msgs) > 0 {
		return w.msgs[0].pos
	}
	return w.accepted
}

// sent is the position up to which the present stream has been given data.
func (w *window) sent() int64 {
	if w.next < len(w.msgs) {
		return w.msgs[w.next].pos
	}
	return w.accepted
}

// fits reports whether n more bytes may be pushed. An empty window takes anything, so that a
// limit under the message size cannot stop a write for ever.
func (w *window) fits(n int) bool {
	held := w.accepted - w.base()
	return held == 0 || held+int64(n) <= w.limit
}

// push takes data, which newPart made, for file offset off; the window owns it from now on.
func (w *window) push(off int64, data []byte) {
	m := &message{pos: w.accepted, off: off, data: data, crc: csum.Sum(data), buf: partBuffer(data)}
	w.msgs = append(w.msgs, m)
	w.accepted = m.end()
	w.crc = csum.Combine(w.crc, m.crc, int64(len(data)))
}

// pop returns the next message to send, or nil.
func (w *window) pop() *message {
	if w.next == len(w.msgs) {
		return nil
	}
	m := w.msgs[w.next]
	w.next++
	return m
}

// progress takes the server's two positions and lets go of durable messages. It reports
// whether the write got further than it ever was. Positions that go back are old news;
// positions past what was sent are a lie, and an error that changes nothing.
func (w *window) progress(received, durable int64) (further bool, err error) {
	if received > w.sent() || durable > received {
		return false, fmt.Errorf("the server claims %d bytes received and %d durable of %d sent",
			received, durable, w.sent())
	}
	w.received = max(w.received, received)
	if w.received > w.highest {
		w.highest, further = w.received, true
	}
	if durable > w.durable {
		w.durable, further = durable, true
	}
	drop := 0
	for drop < w.next && w.msgs[drop].end() <= w.durable {
		w.msgs[drop].buf.Free()
		w.msgs[drop] = nil
		drop++
	}
	w.msgs = w.msgs[drop:]
	w.next -= drop
	return further, nil
}

// rewind makes pos the next position to send, on a new stream that holds everything before
// it. It fails, changing nothing, if pos was durable once or never accepted.
func (w *window) rewind(pos int64) error {
	if pos < w.durable || pos > w.accepted {
		return fmt.Errorf("the server stands at %d, but %d were durable and %d accepted",
			pos, w.durable, w.accepted)
	}
	i := 0
	for i < len(w.msgs) && w.msgs[i].end() <= pos {
		i++
	}
	if i < len(w.msgs) && w.msgs[i].pos < pos {
		m := w.msgs[i]
		cut := pos - m.pos
		head := &message{pos: m.pos, off: m.off, data: m.data[:cut:cut]}
		tail := &message{pos: pos, off: m.off + cut, data: m.data[cut:]}
		// The two share memory that is left to the garbage collector.
		head.crc, head.buf = csum.Sum(head.data), mem.SliceBuffer(head.data)
		tail.crc, tail.buf = csum.Sum(tail.data), mem.SliceBuffer(tail.data)
		w.msgs = append(w.msgs[:i:i], append([]*message{head, tail}, w.msgs[i+1:]...)...)
		i++
	}
	w.next = i
	w.received = pos
	return nil
}

// release lets go of everything; the window is of no use afterwards.
func (w *window) release() {
	for _, m := range w.msgs {
		m.buf.Free()
	}
	w.msgs, w.next = nil, 0
}

// intact reports whether every held message still has the checksum it was pushed with.
func (w *window) intact() bool {
	for _, m := range w.msgs {
		if csum.Sum(m.data) != m.crc {
			return false
		}
	}
	return true
}
