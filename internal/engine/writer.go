package engine

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// Writer is one write of one file: a stream of messages whose positions are the bytes sent so
// far. Write and Finish are for one goroutine; the other methods are for any.
type Writer struct {
	e *Engine
	f *file
	o WriterOptions

	mu struct {
		sync.Mutex
		received int64 // stream position
		next     int64 // file offset after the last message
		marks    []positionMark
		durable  int64
		state    WriteState
		fenced   bool
		finished bool
		closed   bool
		left     bool // closed, and its session holds its file for a later stream
		// idleSince is when the stream of a resumable write ended; zero while it lasts.
		idleSince time.Time
		// sequential: every message began where the last one ended, from 0 on, so the stream
		// position of a staged file is its size.
		sequential bool
		crc        uint32 // of the content, while sequential
	}
}

// positionMark says that the write seq of the file took the stream to pos.
type positionMark struct {
	seq uint64
	pos int64
}

// sessions are the writes that can be resumed, by write_id.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*Writer
}

// enter makes w the write that its write_id names, or answers false if there is one.
func (s *sessions) enter(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[w.o.WriteID] != nil {
		return false
	}
	s.byID[w.o.WriteID] = w
	return true
}

// OpenWriter begins or resumes a write. InPlace makes the file if it is missing (durably, for
// there is no overlay of names); Replace makes an unnamed one.
// Errors: InvalidArgument, NotFound (MustExist), Precondition, NoSpace, Unavailable / DRAINING.
func (e *Engine) OpenWriter(ctx context.Context, o WriterOptions) (*Writer, error) {
	const op = "engine.Write"
	if err := CheckName(o.Name); err != nil {
		return nil, err
	}
	if err := e.writable(op); err != nil {
		return nil, err
	}
	if e.draining.Load() {
		return nil, errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, op, "", "the engine is shutting down; try again elsewhere or later")
	}
	if o.WriteID != "" {
		if w, err := e.resume(ctx, o); w != nil || err != nil {
			return w, err
		}
	}
	raw := o.Compression == nil && e.codec == extent.CodecNone || o.Compression != nil && *o.Compression == extent.CodecNone
	if raw && o.ExpectedSize != nil && *o.ExpectedSize > e.al.Usage().Total {
		return nil, e.spaceError(errdefs.New(errdefs.NoSpace, errdefs.ReasonNoSpace, op, "file "+o.Name, "larger than the store"), *o.ExpectedSize)
	}
	if err := e.checkTarget(op, o); err != nil {
		return nil, err
	}
	w := &Writer{e: e, o: o}
	w.mu.sequential = true
	var err error
	if o.Mode == Replace {
		w.f, w.mu.received = e.staged(o)
		w.mu.next, w.mu.durable = w.mu.received, w.mu.received
		w.mu.sequential = w.mu.received == 0 // the checksum of what a former run got is unknown
	} else if w.f, err = e.openForWrite(o); err != nil {
		return nil, err
	}
	if o.WriteID == "" || e.sessions.enter(w) {
		return w, nil
	}
	e.release(w.f) // nothing has come of it yet
	return e.OpenWriter(ctx, o)
}

// checkTarget holds the preconditions against what the name stands for now. A replace checks
// them again when it takes the name.
func (e *Engine) checkTarget(op string, o WriterOptions) error {
	info, err := e.Get(context.Background(), Ref{Name: o.Name})
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		if o.MustExist {
			return err
		}
		return checkAbsent(op, o.Name, o.If)
	case err != nil:
		return err
	case info.Directory:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, op, "directory "+o.Name, "is a directory")
	}
	return checkIf(op, o.If, info)
}

// openForWrite opens the named file, made if it is missing.
func (e *Engine) openForWrite(o WriterOptions) (*file, error) {
	for {
		f, err := e.openRef(Ref{Name: o.Name})
		if !errdefs.Is(err, errdefs.NotFound) || o.MustExist {
			return f, err
		}
		_, err = e.Create(context.Background(), CreateRequest{
			Name: o.Name, Attributes: o.Attributes, Mtime: o.Mtime, Mode: o.FileMode, Compression: o.Compression,
		})
		if err != nil {
			return nil, err
		}
	}
}

// resume takes over a write that is under way or whose stream has gone. It returns nil, nil if
// there is none.
func (e *Engine) resume(ctx context.Context, o WriterOptions) (*Writer, error) {
	for {
		old, err := e.fence(o)
		if old == nil || err != nil {
			return nil, err
		}
		// With the write token no message of the fenced writer is half way in.
		if err := old.f.lockWrite(ctx); err != nil {
			e.release(old.f)
			return nil, err
		}
		w := e.succeed(old, o)
		old.f.unlockWrite()
		if w != nil {
			return w, nil
		}
		e.release(old.f)
	}
}

// fence ends the stream that has the write_id, if there is one, and returns it with one more
// reference to its file.
func (e *Engine) fence(o WriterOptions) (*Writer, error) {
	e.sessions.mu.Lock()
	defer e.sessions.mu.Unlock()
	old := e.sessions.byID[o.WriteID]
	if old == nil {
		return nil, nil
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	if old.o.Name != o.Name || old.o.Mode != o.Mode {
		return nil, errdefs.Invalid("engine.Write", "options.write_id", "this write_id names a write of another file or mode")
	}
	old.mu.fenced = true
	e.files.mu.Lock()
	old.f.refs++
	e.files.mu.Unlock()
	return old, nil
}

// succeed makes the writer that goes on where a fenced one stood, or returns nil if another was
// quicker. The caller holds the write token.
func (e *Engine) succeed(old *Writer, o WriterOptions) *Writer {
	e.sessions.mu.Lock()
	defer e.sessions.mu.Unlock()
	if e.sessions.byID[o.WriteID] != old {
		return nil
	}
	old.f.wake()
	w := &Writer{e: e, f: old.f, o: o}
	old.mu.Lock()
	w.mu.received, w.mu.next, w.mu.durable = old.mu.received, old.mu.next, old.mu.durable
	w.mu.marks = append([]positionMark(nil), old.mu.marks...)
	w.mu.sequential, w.mu.crc, w.mu.finished = old.mu.sequential, old.mu.crc, old.mu.finished
	left := old.mu.left
	old.mu.Unlock()
	e.sessions.byID[o.WriteID] = w
	if left {
		e.release(old.f) // the reference that the session held for it
	}
	return w
}

// staged returns the unnamed file for a replace: the one that a former run of the engine left
// under the write_id, with the bytes that are durable of it, or a new one.
func (e *Engine) staged(o WriterOptions) (f *file, durable int64) {
	if o.WriteID != "" {
		if id := e.findStaged(o.WriteID); id != 0 {
			if f, err := e.openFile(id); err == nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f, f.mu.size
			}
		}
	}
	codec := e.codec
	if o.Compression != nil {
		codec = *o.Compression
	}
	f = e.newFile(e.newID(), codec)
	f.mu.staged, f.mu.writeID = true, o.WriteID
	f.mu.generation, f.mu.updated = e.nextGeneration(), e.o.Now()
	e.files.add(f)
	return f, 0
}

// findStaged looks for an unfinished replace with the write_id on record.
func (e *Engine) findStaged(writeID string) (id uint64) {
	_ = e.st.View(func(tx *store.Tx) error {
		return tx.Orphans(0, func(o uint64, k store.OrphanKind, _ time.Time) bool {
			if k != store.OrphanUnfinished {
				return true
			}
			if n, err := tx.Node(o); err == nil && n.WriteID == writeID {
				id = o
			}
			return id == 0
		})
	})
	return id
}

// FileID returns the id of the file written to.
func (w *Writer) FileID() uint64 { return w.f.id }

// Changed returns a channel that is closed when the position, the state or an error next
// changes. Take it before looking.
func (w *Writer) Changed() <-chan struct{} {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.f.mu.changed
}

// State says why bytes are not being taken, if they are not.
func (w *Writer) State() WriteState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.state
}

// Position returns the stream positions: received is visible with its space reserved, durable
// survives a crash. durable also moves through background writeback.
func (w *Writer) Position() (received, durable int64) {
	w.f.mu.Lock()
	committed := w.f.mu.committed
	w.f.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	i := 0
	for i < len(w.mu.marks) && w.mu.marks[i].seq <= committed {
		w.mu.durable = w.mu.marks[i].pos
		i++
	}
	w.mu.marks = w.mu.marks[i:]
	return w.mu.received, w.mu.durable
}

// File returns what the file is now.
func (w *Writer) File(ctx context.Context) (File, error) { return w.e.describe(w.f) }

func (w *Writer) check() error {
	switch {
	case w.mu.fenced:
		return errdefs.New(errdefs.Aborted, errdefs.ReasonFenced, "engine.Write", "file "+w.o.Name, "a newer stream took this write over")
	case w.mu.closed || w.mu.finished:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, "engine.Write", "file "+w.o.Name, "the write has ended")
	}
	return nil
}

// Write puts one message into the file: visible, with its space reserved, when it returns. The
// offset is absent where the last message ended. On an error the message changed nothing.
// Errors: InvalidArgument (range, PAYLOAD_CHECKSUM), NoSpace, Corruption (a bad block covered in
// part), Aborted / FENCED, Device (nodelalloc), ReadOnly, the context's.
func (w *Writer) Write(ctx context.Context, offset *int64, data [][]byte, crc *uint32) error {
	if err := w.f.lockWrite(ctx); err != nil {
		return err
	}
	defer w.f.unlockWrite()
	w.mu.Lock()
	err := w.check()
	off := w.mu.next
	w.mu.Unlock()
	if err != nil {
		return err
	}
	if offset != nil {
		off = *offset
	}
	n := int64(0)
	for _, p := range data {
		n += int64(len(p))
	}
	seq, err := w.e.write(ctx, w.f, writeRequest{
		off: off, data: data, crc: crc, maxWait: w.o.MaxWait, direct: w.o.NoDelalloc, state: w.setState,
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if off != w.mu.next || off != w.mu.received {
		w.mu.sequential = false
		w.f.mu.Lock()
		if w.f.mu.staged {
			w.f.mu.writeID = "" // its size says nothing about the position
		}
		w.f.mu.Unlock()
	}
	if w.mu.sequential && w.o.Mode == Replace {
		part := csum.OfAll(data)
		if crc != nil {
			part = *crc
		}
		w.mu.crc = csum.Combine(w.mu.crc, part, n)
	}
	w.mu.next = off + n
	w.mu.received += n
	w.mu.marks = append(w.mu.marks, positionMark{seq, w.mu.received})
	w.e.count.clientBytes.Add(uint64(n))
	return nil
}

func (w *Writer) setState(s WriteState) {
	w.mu.Lock()
	changed := w.mu.state != s
	w.mu.state = s
	w.mu.Unlock()
	if changed {
		w.f.wake()
	}
}

// Sync makes everything written so far durable.
func (w *Writer) Sync(ctx context.Context) error {
	w.f.mu.Lock()
	upTo := w.f.mu.seq
	w.f.mu.Unlock()
	return w.e.syncFile(ctx, w.f, upTo)
}

// Finish ends the write. Replace: the content takes the name, whole and durable, when it returns;
// contentCRC, unless nil, is checked against the content first. InPlace: checks ExpectedSize
// only. Finishing a finished write again answers the same, so a lost answer can be asked for.
func (w *Writer) Finish(ctx context.Context, contentCRC *uint32) (File, error) {
	const op = "engine.Finish"
	w.mu.Lock()
	fenced, finished, sequential, crc := w.mu.fenced, w.mu.finished, w.mu.sequential, w.mu.crc
	w.mu.Unlock()
	if fenced {
		w.mu.Lock()
		defer w.mu.Unlock()
		return File{}, w.check()
	}
	if finished {
		return w.e.describe(w.f)
	}
	w.f.mu.Lock()
	size := w.f.mu.size
	w.f.mu.Unlock()
	if want := w.o.ExpectedSize; want != nil && *want != size {
		err := errdefs.New(errdefs.Precondition, errdefs.ReasonSizeMismatch, op, "file "+w.o.Name, fmt.Sprintf("the size is %d, %d was expected", size, *want))
		err.Meta = map[string]string{"size": fmt.Sprint(size), "expected_size": fmt.Sprint(*want)}
		return File{}, err
	}
	if w.o.Mode != Replace {
		w.end()
		return w.e.describe(w.f)
	}
	if !sequential {
		var err error
		if crc, err = w.e.contentCRC(ctx, w.f); err != nil {
			return File{}, err
		}
	}
	if contentCRC != nil && *contentCRC != crc {
		return File{}, payloadChecksum(0, *contentCRC, crc)
	}
	out, err := w.publish(ctx, crc)
	if err != nil {
		return File{}, err
	}
	w.end()
	return out, nil
}

// publish gives the staged file its name in the transaction of its data or a later one.
func (w *Writer) publish(ctx context.Context, crc uint32) (File, error) {
	e, f, o := w.e, w.f, w.o
	var out File
	var gone store.Node
	err := e.commitWith(ctx, f, func(tx *store.Tx) error {
		gone = store.Node{}
		n, err := tx.Node(f.id)
		if errdefs.Is(err, errdefs.NotFound) {
			n = store.Node{ID: f.id, Kind: store.File, Compression: &f.codec}
		} else if err != nil {
			return err
		}
		old, err := tx.Resolve(o.Name)
		switch {
		case err == nil && old.Kind == store.Directory:
			return errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, "engine.Finish", "directory "+o.Name, "is a directory")
		case err == nil:
			if err := checkIf("engine.Finish", o.If, e.fileOf(old, o.Name)); err != nil {
				return err
			}
			gone = old
		case errdefs.Is(err, errdefs.NotFound):
			if err := checkAbsent("engine.Finish", o.Name, o.If); err != nil {
				return err
			}
		default:
			return err
		}
		if gone.ID != 0 {
			if err := e.unlink(tx, gone); err != nil {
				return err
			}
		}
		if err := tx.RemoveOrphan(f.id); err != nil {
			return err
		}
		now := e.o.Now().UnixNano()
		n.Created, n.Updated, n.MTime = now, now, nanos(o.Mtime)
		n.Mode, n.Attributes, n.WriteID, n.ContentCRC = o.FileMode, maps.Clone(o.Attributes), "", &crc
		if o.Compression == nil {
			n.Compression = nil // follows the store's default
		}
		n.Generation = uint64(e.nextGeneration())
		if err := e.link(tx, o.Name, &n); err != nil {
			return err
		}
		f.mu.Lock()
		f.mu.staged, f.mu.persisted = false, true
		f.mu.generation, f.mu.contentValid = int64(n.Generation), true
		f.mu.Unlock()
		out = e.fileOf(n, o.Name)
		return nil
	})
	if err != nil {
		return File{}, err
	}
	e.forget(gone)
	return out, nil
}

// contentCRC reads the whole file for its checksum: for content that did not come in order.
func (e *Engine) contentCRC(ctx context.Context, f *file) (crc uint32, err error) {
	r := &Reader{e: e, f: f, end: extent.MaxFileSize}
	defer func() {
		r.f = nil // the Writer's
		r.Close()
	}()
	for {
		p, err := r.Next(ctx)
		if err != nil {
			if errIsEOF(err) {
				return crc, nil
			}
			return 0, err
		}
		crc = csum.Combine(crc, p.CRC, int64(len(p.Data)))
	}
}

func (w *Writer) end() {
	w.mu.Lock()
	w.mu.finished = true
	w.mu.state = Finished
	w.mu.Unlock()
	w.f.wake()
}

// Close releases the Writer. An unfinished replace without a write_id is dropped; with one it can
// be resumed until its time is up. Closing twice is fine.
func (w *Writer) Close() {
	w.mu.Lock()
	closed, fenced, finished := w.mu.closed, w.mu.fenced, w.mu.finished
	w.mu.closed = true
	w.mu.Unlock()
	if closed {
		return
	}
	if w.o.WriteID != "" && !finished && w.e.sessions.leave(w, w.e.o.Now()) {
		return // the session holds the file for a later stream, until its time is up
	}
	w.e.endSession(w, !fenced)
}
