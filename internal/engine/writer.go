package engine

import (
	"context"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
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
		crc        uint32        // of the content, while sequential
		finishing  chan struct{} // closed when the Finish under way has ended; nil without one
	}
}

// positionMark says that the write seq of the file took the stream to pos.
type positionMark struct {
	seq uint64
	pos int64
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

// Close releases the Writer. An unfinished replace without a write_id is dropped; with one it can
// be resumed until its time is up. Closing twice is fine.
func (w *Writer) Close() {
	w.mu.Lock()
	closed, finished := w.mu.closed, w.mu.finished
	w.mu.closed = true
	w.mu.Unlock()
	if closed {
		return
	}
	if w.o.WriteID != "" && !finished && w.e.sessions.leave(w, w.e.o.Now()) {
		w.e.orphanKick.set()
		return // the session holds the file for a later stream, until its time is up
	}
	// Only the sessions know whether a newer stream has it: it may have come since the lines above.
	w.e.endSession(w, w.o.WriteID == "" || w.e.sessions.remove(w))
}
