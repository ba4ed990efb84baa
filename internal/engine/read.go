package engine

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
)

// Reader reads a range of one file. It keeps the file (not its name) from being freed. Its
// methods are for one goroutine.
//
// A Reader of a client has a share of Options.ReadLimit from OpenReader to Close.
type Reader struct {
	e      *Engine
	f      *file
	client bool // has a share of the memory for reads
	file   File
	off    int64
	end    int64 // where the caller wants to stop; the file's end may come earlier
	holes  bool

	memory  *holdings
	started bool        // a window has been read
	buf     *readBuffer // of the window at hand; nil: none
	window  int64       // bytes of data in the last one that had any
	queue   []Piece     // of the window at hand
	last    int64       // bytes of the piece that Next returned last, 0 once it was kept
}

// OpenReader opens a file by name or id. While as many Readers are open as the memory for reads
// allows, it waits, at most Options.MaxWait. Errors: NotFound, Precondition, InvalidArgument;
// Unavailable when the wait was in vain.
func (e *Engine) OpenReader(ctx context.Context, r ReadRequest) (*Reader, error) {
	const op = "engine.Read"
	if r.Offset < 0 {
		return nil, errdefs.Invalid(op, "offset", "offset must not be negative")
	}
	end := int64(extent.MaxFileSize)
	if r.Length != nil {
		if *r.Length < 0 || r.Offset > extent.MaxFileSize-*r.Length {
			return nil, errdefs.Invalid(op, "length", "length must not be negative or pass the largest file size")
		}
		end = r.Offset + *r.Length
	}
	if err := e.reads.enter(ctx, e.o.MaxWait); err != nil {
		return nil, err
	}
	f, err := e.openRef(r.Ref)
	if err != nil {
		e.reads.exit()
		return nil, err
	}
	info, err := e.describe(f)
	if err == nil {
		err = checkIf(op, r.If, info)
	}
	if err != nil {
		e.release(f)
		e.reads.exit()
		return nil, err
	}
	return &Reader{
		e: e, f: f, client: true, file: info, off: r.Offset, end: end, holes: r.ReportHoles, memory: newHoldings(e.reads),
	}, nil
}

// File returns what the file was when the Reader was opened.
func (r *Reader) File() File { return r.file }

// Close releases the file and the memory, also on account of pieces that were kept and have not
// been given back. They stay valid until they are, but what holds them counts no more: see Drained.
func (r *Reader) Close() {
	if r.f == nil {
		return
	}
	r.drop()
	r.memory.abandon()
	r.e.release(r.f)
	r.f = nil
	if r.client {
		r.e.reads.exit()
	}
}

// drop gives back the piece that Next returned last, unless it was kept, and those to come of its window.
func (r *Reader) drop() {
	if r.buf == nil {
		return
	}
	n := r.last
	for _, p := range r.queue {
		n += int64(len(p.Data))
	}
	if n > 0 {
		r.buf.giveBack(n, false)
	}
	r.buf, r.queue, r.last = nil, nil, 0
}

// Keep leaves the Data of the piece that Next returned last to the caller, for longer than until
// the next call: until giveBack, which may be called from any goroutine and also after Close, has
// been called for all its bytes, n in all. What is kept makes Next wait.
func (r *Reader) Keep() (giveBack func(n int)) {
	b, n := r.buf, r.last
	if n == 0 {
		return func(int) {}
	}
	r.last = 0
	r.memory.keep(n)
	return func(n int) { b.giveBack(int64(n), true) }
}

// Drained waits until everything that was kept has been given back. A caller that lets others look
// at what it keeps calls it before Close, unless they are gone.
func (r *Reader) Drained(ctx context.Context) error { return r.memory.empty(ctx) }

// Next returns the next piece: at most 1 MiB of verified data, or a hole when those are reported.
// io.EOF at the end of the range or of the file. A Corruption error comes after the good bytes
// before it have been returned. The Data is valid until the next call or Close, or for as long as
// it is kept. It waits while more than half of the window before is kept, so that who takes
// nothing holds little, and who takes all finds the next window read when it comes to that.
func (r *Reader) Next(ctx context.Context) (Piece, error) {
	if r.last > 0 {
		r.buf.giveBack(r.last, false)
		r.last = 0
	}
	if len(r.queue) > 0 {
		return r.pop(), nil
	}
	r.buf = nil
	if err := ctx.Err(); err != nil {
		return Piece{}, err
	}
	// The first window is small: who takes nothing, or has a small file, needs no more.
	buf, err := r.memory.take(ctx, r.window/2, r.client && r.started && min(r.end, r.file.Size)-r.off > smallWindow)
	if err != nil {
		return Piece{}, err
	}
	n, w, err := r.fill(ctx, buf)
	if err != nil {
		buf.giveBack(0, false)
		return Piece{}, err
	}
	r.buf, r.started = buf, true
	r.cut(w, n)
	r.off += n
	return r.pop(), nil
}

func (r *Reader) pop() Piece {
	p := r.queue[0]
	r.queue = r.queue[1:]
	r.last = int64(len(p.Data))
	return p
}

// fill reads the next window, or the good bytes at its beginning, n > 0 without an error.
func (r *Reader) fill(ctx context.Context, buf *readBuffer) (n int64, w *window, err error) {
	// Windows end on multiples of their size, so that frames are rarely read twice.
	size := int64(len(buf.b))
	stop := min(r.end, (r.off/size+1)*size)
	to := buf.b[r.off%extent.BlockSize:]
	w = &window{off: r.off, holes: r.holes}
	n, err = r.e.readWindow(ctx, r.f, w, to, stop)
	var bad *errdefs.Error
	if errors.As(err, &bad) {
		if d, ok := bad.Detail.(*CorruptionDetail); ok && d.Offset > r.off {
			// The good prefix first; the next call meets the bad block at its start.
			w.found = nil
			n, err = r.e.readWindow(ctx, r.f, w, to, d.Offset)
		}
	}
	if err == nil && n == 0 {
		err = io.EOF // perhaps truncated between the two looks
	}
	return n, w, err
}

// cut makes pieces of the n bytes of the window in r.buf.
func (r *Reader) cut(w *window, n int64) {
	total := int64(0)
	data := r.buf.b[w.off%extent.BlockSize:][:n]
	emit := func(from, to int64, hole bool) {
		if from >= to {
			return
		}
		if hole {
			r.queue = append(r.queue, Piece{Offset: w.off + from, Hole: to - from})
			return
		}
		p := data[from:to:to]
		total += to - from
		r.queue = append(r.queue, Piece{Offset: w.off + from, Data: p, CRC: csum.Sum(p)})
	}
	at := int64(0)
	for _, h := range w.found {
		from, to := min(h.Off-w.off, n), min(h.End-w.off, n)
		emit(at, from, false)
		emit(from, to, true)
		at = max(at, to)
	}
	emit(at, n, false)
	if total == 0 {
		r.buf.giveBack(0, false) // holes only
		return
	}
	r.buf.left.Store(total)
	r.window = total
}

// window is one look at a file: what of it was a hole.
type window struct {
	off   int64
	holes bool           // wanted
	found []extent.Range // holes in file offsets, in order
}

// readWindow reads [w.off, stop), clipped to the file, into p and answers how many bytes that
// is. Truncate and punch wait until it returns.
func (e *Engine) readWindow(ctx context.Context, f *file, w *window, p []byte, stop int64) (n int64, err error) {
	select {
	case e.readSem <- struct{}{}:
		defer func() { <-e.readSem }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if err := f.cut.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer f.cut.Release(1)
	f.mu.Lock()
	size := f.mu.size
	f.mu.Unlock()
	n = min(stop, size) - w.off
	if n <= 0 {
		return 0, nil
	}
	return n, e.fillWindow(f, w, p[:n])
}

// readInto reads one block-aligned run of the file without taking the cut lock: for who holds the
// write token. Past the end of the file p is zeroed.
func (e *Engine) readInto(ctx context.Context, f *file, off int64, p []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	n := max(0, min(int64(len(p)), f.mu.size-off))
	f.mu.Unlock()
	clear(p[n:])
	if n == 0 {
		return nil
	}
	return e.fillWindow(f, &window{off: off}, p[:n])
}

// fillWindow fills p from memory where the file has data there, else from the device, else with
// zeros. The epoch pins what the metadata look-up finds until the device has been read.
func (e *Engine) fillWindow(f *file, w *window, p []byte) error {
	epoch := e.epochs.enter()
	defer e.epochs.exit(epoch)
	missing := intervals{{Off: w.off, End: w.off + int64(len(p))}}
	covered := func(start, end int64) { missing = missing.without(start, end) }
	// Memory before metadata: a range that commits between the two looks is found in one of
	// them. Both under the mutex: a range that moves from dirty to pending is found too.
	f.mu.Lock()
	f.pending.Copy(w.off, p, covered)
	f.dirty.Copy(w.off, p, covered)
	f.mu.Unlock()
	if len(missing) == 0 {
		return nil
	}
	var pieces []store.Piece
	var inline *store.Inline
	from, to := missing[0].Off, missing[len(missing)-1].End
	err := e.st.View(func(tx *store.Tx) (err error) {
		n, err := tx.Node(f.id)
		if errdefs.Is(err, errdefs.NotFound) {
			return nil // an unfinished replace without a record: all it has is in memory
		} else if err != nil {
			return err
		}
		if n.Inline != nil && from < n.Inline.RawLen {
			in := *n.Inline
			in.Data = append([]byte(nil), in.Data...)
			inline = &in
		}
		pieces, err = tx.Map(f.id, from, to)
		return err
	})
	if err != nil {
		return err
	}
	if inline != nil {
		data := make([]byte, inline.RawLen)
		fr := extent.Frame{Raw: uint32(inline.RawLen), Stored: uint32(len(inline.Data)), Codec: inline.Codec}
		if err := e.comp.Decode(data, fr, inline.Data); err != nil {
			return errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, "engine.Read", fmt.Sprintf("inline data of file %d", f.id), err)
		}
		missing = missing.fill(0, data, w.off, p)
	}
	for _, x := range pieces {
		if missing, err = e.readPiece(f, x, missing, w.off, p); err != nil {
			return err
		}
	}
	for _, h := range missing {
		clear(p[h.Off-w.off : h.End-w.off])
	}
	if w.holes {
		w.found = missing
	}
	return nil
}

// readPiece reads and verifies what a file extent stores and copies the part that is missing.
func (e *Engine) readPiece(f *file, x store.Piece, missing intervals, off int64, p []byte) (intervals, error) {
	if !missing.touches(x.FileOff, x.FileOff+x.Len) {
		return missing, nil
	}
	n := x.Blocks * extent.BlockSize
	// Raw whole blocks that lie in the window are read where they belong.
	at := x.FileOff - off
	inPlace := x.Codec == extent.CodecNone && x.Skip == 0 && x.Len == n && at >= 0 && at+n <= int64(len(p)) &&
		missing.contains(x.FileOff, x.FileOff+n) && slab.IsAligned(p[at:])
	var data []byte
	if inPlace {
		data = p[at : at+n]
	} else {
		spare := scratch(n)
		defer spare.done()
		data = spare.b[:n]
	}
	if err := e.readBlocks(f, x, data); err != nil {
		return missing, err
	}
	if inPlace {
		return missing.without(x.FileOff, x.FileOff+n), nil
	}
	if x.Codec == extent.CodecNone {
		return missing.fill(x.FileOff, data[x.Skip:x.Skip+x.Len], off, p), nil
	}
	return e.decodeFrames(f, x, data, missing, off, p)
}

// readBlocks reads the piece's blocks and holds each against its checksum. What fails is read
// once more, block by block and from every copy, so that a passing error is no error and a lasting one
// has an address. A block that is good in one copy is answered, and the bad ones are mended later.
func (e *Engine) readBlocks(f *file, x store.Piece, data []byte) error {
	slot, zoneOff := e.split(x.Addr)
	e.count.readBytes.Add(uint64(len(data)))
	err := e.dev.ReadAt(int(slot), zoneOff, data)
	if err != nil {
		e.count.readErrors.Add(1)
	}
	for i, want := range x.Sums {
		b := data[i*extent.BlockSize:][:extent.BlockSize]
		if err == nil && csum.Sum(b) == want {
			continue
		}
		at := x.Addr + extent.Addr(i*extent.BlockSize)
		good, bad := e.readCopies(at, want, b)
		if len(bad) > 0 {
			e.count.corruptions.Add(uint64(len(bad)))
		}
		if good {
			e.mendLater(at, want, bad)
			continue
		}
		for _, c := range bad {
			e.scrubMet(at, c, want, false)
		}
		if c := bad[0]; c.err != nil {
			e.zoneGone(slot, c.err)
			return e.readFailed(f, x, int64(i), c.err)
		} else {
			return e.corruption(f, x, int64(i), want, c.got)
		}
	}
	return nil
}

func (e *Engine) decodeFrames(f *file, x store.Piece, data []byte, missing intervals, off int64, p []byte) (intervals, error) {
	raw := make([]byte, extent.MaxFrameSize)
	at := x.FileOff - x.Skip // file offset of the first decoded byte
	block := int64(0)
	for _, fr := range x.Frames {
		n := fr.Blocks() * extent.BlockSize
		dst := raw[:fr.Raw]
		from, to := max(at, x.FileOff), min(at+int64(fr.Raw), x.FileOff+x.Len)
		if from < to && missing.touches(from, to) {
			if err := e.comp.Decode(dst, fr, data[block:block+int64(fr.Stored)]); err != nil {
				return missing, e.corruption(f, x, block/extent.BlockSize, 0, 0)
			}
			missing = missing.fill(from, dst[from-at:to-at], off, p)
		}
		at += int64(fr.Raw)
		block += n
	}
	return missing, nil
}
