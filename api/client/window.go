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
//	base <= durable <= received <= sent <= loaded <= summed <= accepted
//
// where base is the position of the oldest message kept and sent that of the next to send. The
// last three are the same unless reread is set: then what is sent is not kept, a rewind may go
// back behind base, and whoever pushes goes on where loaded is then.
type window struct {
	limit    int64 // bytes it may hold
	reread   bool  // the source can be read again; accepted is its size from the start
	msgs     []*message
	next     int   // index in msgs of the next message to send on the present stream
	loaded   int64 // where the next push goes
	summed   int64 // how far the bytes have ever been pushed
	accepted int64
	received int64 // as the present stream's server says
	durable  int64
	highest  int64  // received has been, on any stream
	crc      uint32 // of everything summed, as if it were one run of bytes
}

// base is the oldest position that can be sent again from here.
func (w *window) base() int64 {
	if len(w.msgs) > 0 {
		return w.msgs[0].pos
	}
	return w.loaded
}

// sent is the position up to which the present stream has been given data.
func (w *window) sent() int64 {
	if w.next < len(w.msgs) {
		return w.msgs[w.next].pos
	}
	return w.loaded
}

// fits reports whether n more bytes may be pushed. An empty window takes anything, so that a
// limit under the message size cannot stop a write for ever.
func (w *window) fits(n int) bool {
	held := w.loaded - w.base()
	return held == 0 || held+int64(n) <= w.limit
}

// push takes data, which newPart made, for file offset off; the window owns it from now on.
func (w *window) push(off int64, data []byte) { w.pushSummed(off, data, csum.Sum(data)) }

// pushSummed is push for data of which the crc32c is known. What is pushed again must be the
// same bytes, and not reach beyond summed.
func (w *window) pushSummed(off int64, data []byte, crc uint32) {
	m := &message{pos: w.loaded, off: off, data: data, crc: crc, buf: partBuffer(data)}
	w.msgs = append(w.msgs, m)
	if w.loaded = m.end(); w.loaded > w.summed {
		w.crc = csum.Combine(w.crc, crc, int64(len(data)))
		w.summed = w.loaded
		w.accepted = max(w.accepted, w.summed)
	}
}

// pop returns the next message to send, with a reference to its memory that the caller frees,
// or nil.
func (w *window) pop() *message {
	if w.next == len(w.msgs) {
		return nil
	}
	m := w.msgs[w.next]
	if w.reread {
		w.msgs[0], w.msgs = nil, w.msgs[1:]
		return m
	}
	m.buf.Ref()
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
// it. It fails, changing nothing, if pos was durable once or never pushed.
func (w *window) rewind(pos int64) error {
	if pos < w.durable || pos > w.summed {
		return fmt.Errorf("the server stands at %d, but %d were durable and %d accepted",
			pos, w.durable, w.summed)
	}
	if w.reread {
		w.release()
		w.loaded, w.received = pos, pos
		return nil
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

// release lets go of all messages.
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
