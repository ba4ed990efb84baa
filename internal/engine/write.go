package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/delalloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

// writeRequest is one message's worth of data for a file.
type writeRequest struct {
	off     int64
	data    [][]byte // any sizes; read only until write returns
	crc     *uint32  // of data as a whole
	maxWait time.Duration
	direct  bool // place and append now, whatever the store's mode
	state   func(WriteState)
}

// write puts data into the file and returns its sequence. The caller holds the write token.
// On an error nothing has changed. The bytes are visible and their space is reserved when it
// returns; they are durable when f.mu.committed reaches the sequence.
func (e *Engine) write(ctx context.Context, f *file, r writeRequest) (seq uint64, err error) {
	const op = "engine.Write"
	n := int64(0)
	for _, p := range r.data {
		n += int64(len(p))
	}
	switch {
	case n > maxMessage:
		return 0, errdefs.Invalid(op, "data", fmt.Sprintf("%d bytes in one message; at most %d", n, maxMessage))
	case r.off < 0 || r.off > extent.MaxFileSize-n:
		return 0, errdefs.Invalid(op, "offset", fmt.Sprintf("range [%d, +%d) is negative or passes the largest file size", r.off, n))
	}
	if err := e.writable(op); err != nil {
		return 0, err
	}
	if n == 0 {
		if r.crc != nil && *r.crc != 0 {
			return 0, payloadChecksum(r.off, *r.crc, 0)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.mu.seq, nil
	}
	if err := f.mayGrow(r.off, r.off+n); err != nil {
		return 0, err
	}
	direct := !e.mode.Enabled()
	if r.direct && f.dirty.Bytes() == 0 {
		// Beside delayed data of the same file a write keeps its place in line instead.
		direct = true
	}
	if err := e.uninline(ctx, f, r, direct); err != nil {
		return 0, err
	}
	m, err := e.newMessage(ctx, f, r, n)
	if err != nil {
		return 0, err
	}
	if direct {
		return e.insertDirect(f, m)
	}
	return e.insertDelayed(f, m), nil
}

// mayGrow refuses a write that would make a file grow of which a part cannot be made durable: it
// could not become durable before that part, and would be kept in memory until then (holdBack). One
// that covers the part ends the failure.
func (f *file) mayGrow(off, end int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if end <= f.mu.size {
		return nil
	}
	for _, o := range f.mu.failed {
		for _, r := range o.left {
			if r.Off < off || extent.RoundDown(r.End) > end {
				return o.err
			}
		}
	}
	return nil
}

// message is data on its way into a file: in slabs, with its space reserved.
type message struct {
	off, end int64 // bytes
	start    int64 // off rounded down to the block
	bufs     []*slab.Buf
	sums     []uint32
	reserved int64 // bytes
	since    time.Time
	same     bool // what the file holds already
}

func (m *message) release(e *Engine) {
	for _, b := range m.bufs {
		b.Free()
	}
	m.bufs = nil
	e.unreserve(m.reserved)
	m.reserved = 0
}

// block returns the memory of the block at file offset off.
func (m *message) block(off int64) []byte {
	at := off - m.start
	for _, b := range m.bufs {
		if at < b.Len() {
			return b.Bytes()[at : at+extent.BlockSize]
		}
		at -= b.Len()
	}
	panic("engine: block outside of its message")
}

// newMessage reserves space and memory, copies the data in and completes partial blocks from
// what the file holds. The copy, the check of the sender's checksum and the block sums are one
// pass.
func (e *Engine) newMessage(ctx context.Context, f *file, r writeRequest, n int64) (*message, error) {
	m := &message{off: r.off, end: r.off + n, start: extent.RoundDown(r.off), since: e.o.Now()}
	span := extent.RoundUp(m.end) - m.start
	if err := e.reserve(ctx, span, r.maxWait, r.state); err != nil {
		return nil, err
	}
	m.reserved = span
	bufs, err := e.allocMemory(ctx, span, r.maxWait, r.state)
	if err != nil {
		m.release(e)
		return nil, err
	}
	m.bufs = bufs
	m.sums = make([]uint32, span/extent.BlockSize)
	got := m.fill(r.data, r.crc != nil)
	if r.crc != nil && *r.crc != got {
		m.release(e)
		return nil, payloadChecksum(r.off, *r.crc, got)
	}
	if err := e.completeEdges(ctx, f, m); err != nil {
		m.release(e)
		return nil, err
	}
	return m, nil
}

// fill copies the pieces in and returns the crc32c of them all (0 unless wanted). Sums of
// blocks that are covered in part are left for completeEdges.
func (m *message) fill(pieces [][]byte, wantCRC bool) (crc uint32) {
	i, rest := 0, []byte(nil)
	for off := m.off; off < m.end; {
		b := m.block(extent.RoundDown(off))
		from := off - extent.RoundDown(off)
		to := min(extent.BlockSize, from+m.end-off)
		for at := from; at < to; {
			for len(rest) == 0 {
				rest = pieces[i]
				i++
			}
			c := copy(b[at:to], rest)
			rest = rest[c:]
			at += int64(c)
		}
		whole := to-from == extent.BlockSize
		if whole || wantCRC {
			part := csum.Sum(b[from:to])
			if whole {
				m.sums[(off-m.start)/extent.BlockSize] = part
			}
			if wantCRC {
				crc = csum.Combine(crc, part, to-from)
			}
		}
		off += to - from
	}
	return crc
}

// completeEdges fills the rest of blocks that the message covers in part with what the file
// holds there, verified; a bad old block is the writer's error, for it must not get a new
// checksum. Past the end of the file there are zeros.
func (e *Engine) completeEdges(ctx context.Context, f *file, m *message) error {
	last := extent.RoundDown(m.end)
	edges := make([]int64, 0, 2)
	if m.off != m.start {
		edges = append(edges, m.start)
	}
	if m.end != last && (last != m.start || m.off == m.start) {
		edges = append(edges, last)
	}
	var old []byte
	for _, off := range edges {
		b := m.block(off)
		from, to := max(0, m.off-off), min(extent.BlockSize, m.end-off)
		f.mu.Lock()
		size := f.mu.size
		f.mu.Unlock()
		if off < size {
			if old == nil {
				old = slab.Aligned(extent.BlockSize)
			}
			if err := e.readInto(ctx, f, off, old); err != nil {
				return err
			}
			copy(b[:from], old[:from])
			copy(b[to:], old[to:])
		} else {
			clear(b[:from])
			clear(b[to:])
		}
		m.sums[(off-m.start)/extent.BlockSize] = csum.Sum(b)
	}
	return nil
}

// segments turns the message into segments with the sequence. The references go with them.
func (m *message) segments(seq uint64) []delalloc.Segment {
	segs := make([]delalloc.Segment, 0, len(m.bufs))
	off, sums := m.start, m.sums
	for _, b := range m.bufs {
		k := b.Len() / extent.BlockSize
		segs = append(segs, delalloc.Segment{Off: off, Buf: b, Sums: sums[:k:k], Seq: seq, Since: m.since})
		off += b.Len()
		sums = sums[k:]
	}
	m.bufs = nil
	return segs
}

// insertDelayed makes the message a dirty range.
func (e *Engine) insertDelayed(f *file, m *message) uint64 {
	f.mu.Lock()
	f.mu.seq++
	seq := f.mu.seq
	var overlaid int64
	for _, s := range m.segments(seq) {
		overlaid += f.dirty.Insert(s)
	}
	overlaid += e.overlayFailedLocked(f, m.start, extent.RoundUp(m.end))
	f.growLocked(m.end)
	if !m.same {
		e.touchLocked(f)
	}
	f.mu.Unlock()
	// What was dirty already had its space reserved: this is the one place that gives the
	// surplus of an overwrite back.
	e.unreserve(overlaid)
	e.settle(f)
	if f.dirty.Complete() {
		e.flushKick.set()
	}
	return seq
}

// touchLocked notes a change of content.
func (e *Engine) touchLocked(f *file) {
	f.mu.generation = e.nextGeneration()
	f.mu.updated = e.o.Now()
	f.mu.contentValid = false
}

// insertDirect places and appends the message before anybody sees it, then makes it a range
// that only waits for its commit (nodelalloc). The file has no delayed data.
func (e *Engine) insertDirect(f *file, m *message) (uint64, error) {
	f.mu.Lock()
	seq := f.mu.seq + 1 // ours alone: we hold the write token
	end := min(extent.RoundUp(m.end), max(m.end, f.mu.size))
	f.mu.Unlock()
	segs := m.segments(seq)
	o := &ordered{f: f, end: end, codec: f.codec, direct: true, reserved: m.reserved}
	o.rng = delalloc.RangeOf(segs)
	m.reserved = 0
	n := o.rng.Len()
	var superseded int64
	err := e.placeUntilSound(o, func() { superseded = e.showDirect(f, m, o, seq) })
	if err != nil {
		e.abandon(o)
		return 0, err
	}
	e.unreserve(superseded)
	waiting := e.waiting.Add(n)
	e.placedFile(f)
	if waiting > e.o.DirtyLimit/8 {
		e.group.Kick()
	}
	return seq, nil
}

// showDirect makes a placed message visible as the write seq and answers what it supersedes of
// the reservations of data that could not be made durable.
func (e *Engine) showDirect(f *file, m *message, o *ordered, seq uint64) (superseded int64) {
	f.mu.Lock()
	f.mu.seq = seq
	for _, s := range o.rng.Segments {
		s.Buf = s.Buf.Slice(0, s.Buf.Len())
		f.pending.Insert(s)
	}
	f.mu.queue = append(f.mu.queue, o)
	o.state = placed
	// Not before the range is in the queue: it would count as durable.
	superseded = e.overlayFailedLocked(f, m.start, extent.RoundUp(m.end))
	f.growLocked(m.end)
	if !m.same {
		e.touchLocked(f)
	}
	f.mu.Unlock()
	e.settle(f)
	return superseded
}

// uninline turns inline data into dirty data before the first write to the file, so that what is
// stored inline is replaced as a whole in the transaction that stores extents over it. The
// caller holds the write token.
func (e *Engine) uninline(ctx context.Context, f *file, r writeRequest, direct bool) error {
	f.mu.Lock()
	inline := f.mu.inline
	f.mu.Unlock()
	if !inline {
		return nil
	}
	data, err := e.inlineData(ctx, f)
	if err != nil {
		return err
	}
	if len(data) > 0 {
		m, err := e.newMessage(ctx, f, writeRequest{data: [][]byte{data}, maxWait: r.maxWait, state: r.state}, int64(len(data)))
		if err != nil {
			return err
		}
		m.same = true // if the message that this is for is refused, nothing has changed
		if direct {
			_, err = e.insertDirect(f, m)
		} else {
			e.insertDelayed(f, m)
		}
		if err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.mu.inline = false
	f.mu.Unlock()
	return nil
}

// inlineData returns what is, or is about to be, stored inline.
func (e *Engine) inlineData(ctx context.Context, f *file) ([]byte, error) {
	f.mu.Lock()
	n := min(f.mu.inlineLen, f.mu.size)
	f.mu.Unlock()
	data := slab.Aligned(extent.RoundUp(n))
	if err := e.readInto(ctx, f, 0, data); err != nil {
		return nil, err
	}
	return data[:n], nil
}

func payloadChecksum(off int64, want, got uint32) error {
	err := errdefs.New(errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum, "engine.Write", "",
		fmt.Sprintf("data at offset %d has crc32c %08x, the sender says %08x", off, got, want))
	err.Field = "crc32c"
	err.Meta = map[string]string{"offset": fmt.Sprint(off), "want": fmt.Sprintf("%08x", want), "got": fmt.Sprintf("%08x", got)}
	return err
}
