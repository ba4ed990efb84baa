package client

import (
	"context"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// WriteMode is how a Writer's bytes reach the file.
type WriteMode uint8

const (
	// InPlace makes bytes visible in the named file as the engine receives them.
	InPlace WriteMode = iota
	// Replace gathers bytes out of sight; Close gives them the name, whole and durable.
	Replace
)

// WriteOptions say how to write.
type WriteOptions struct {
	Mode WriteMode
	// Offset is where in the file the first byte goes. 0 with Replace.
	Offset int64
	// Sync makes Close wait until every byte is durable. Replace always does.
	Sync bool
	// IfMatch is checked when the engine first sees the write; with Replace again at Close.
	IfMatch *Preconditions
	// MustExist refuses to make a missing file.
	MustExist bool
	// MaxWait bounds how long the engine waits for writeback or space without progress before
	// it answers RESOURCE_EXHAUSTED; 0: its default.
	MaxWait time.Duration
	// ExpectedSize is what the file's size must be at Close, in bytes; it also lets the
	// engine refuse early what does not fit. nil: not checked.
	ExpectedSize *int64
	// Compression, Attributes and ModeBits are for the file if this write makes it.
	Compression Compression
	Attributes  map[string]string
	ModeBits    *uint32
	Mtime       time.Time // zero: not set
	// Window is WithWindow for this write; 0: the Client's.
	Window int64
	// NoDelalloc places bytes as they come instead of collecting them. For measuring.
	NoDelalloc bool
}

// Writer sends a file's bytes to the engine and keeps them until they are durable there, so
// that it can go on after the engine was restarted or the connection broke. It is an
// io.WriteCloser, io.ReaderFrom and io.WriterAt. Calls from several goroutines take turns.
//
// An error is final: every later call returns it, and what was not durable is to be taken as
// not written. End every Writer with Close or Abort.
type Writer struct {
	c       *Client
	ctx     context.Context
	cancel  context.CancelFunc
	name    string
	o       WriteOptions
	writeID string

	// callers makes callers take turns. It guards the message being filled and the offset in
	// the file of its first byte.
	callers struct {
		sync.Mutex
		part    []byte
		off     int64
		started bool
		closed  bool
	}

	mu   sync.Mutex
	win  window
	want struct {
		sync   int64 // make everything below durable; -1: nobody asked
		finish bool
	}
	greeted  bool // the engine knows this write
	finish   bool // finish was sent on some stream: the outcome may be unknown
	fileID   uint64
	bootID   uint64
	finished bool
	file     *File         // once finished
	err      error         // excludes finished
	changed  chan struct{} // closed and replaced when anything above changes

	done chan struct{} // closed when run has returned
}

// Write opens a file for writing. Nothing is sent before the first MiB is complete or Sync or
// Close is called, so a bad name or an unmet condition shows there. ctx governs the whole
// write: when it is done the Writer fails.
func (c *Client) Write(ctx context.Context, name string, o WriteOptions) (*Writer, error) {
	switch {
	case o.Offset < 0:
		return nil, failure(codes.InvalidArgument, "", nil, "write %q: negative offset %d", name, o.Offset)
	case o.Offset != 0 && o.Mode == Replace:
		return nil, failure(codes.InvalidArgument, "", nil, "write %q: a replacement begins at offset 0", name)
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Writer{
		c: c, ctx: ctx, cancel: cancel, name: name, o: o, writeID: uuid.NewString(),
		changed: make(chan struct{}), done: make(chan struct{}),
	}
	w.callers.off = o.Offset
	w.win.limit = c.o.window
	if o.Window > 0 {
		w.win.limit = o.Window
	}
	w.want.sync = -1
	return w, nil
}

// Write takes p. It returns when p is copied, which is before the engine has it; it waits
// while the window is full. p is not kept.
func (w *Writer) Write(p []byte) (n int, err error) {
	w.callers.Lock()
	defer w.callers.Unlock()
	return w.writeLocked(p)
}

// WriteAt takes p for an offset in the file, which must not be negative; a later Write goes
// on behind it. With Replace it must go on where the last one ended. See Write.
func (w *Writer) WriteAt(p []byte, off int64) (int, error) {
	w.callers.Lock()
	defer w.callers.Unlock()
	at := w.callers.off + int64(len(w.callers.part))
	switch {
	case off < 0:
		return 0, failure(codes.InvalidArgument, "", nil, "write %q: negative offset %d", w.name, off)
	case off != at && w.o.Mode == Replace:
		return 0, failure(codes.InvalidArgument, "", nil, "write %q: a replacement is written in order", w.name)
	case off != at:
		if err := w.flushLocked(); err != nil {
			return 0, err
		}
		w.callers.off = off
	}
	return w.writeLocked(p)
}

func (w *Writer) writeLocked(p []byte) (n int, err error) {
	for len(p) > 0 {
		room, err := w.roomLocked()
		if err != nil {
			return n, err
		}
		k := copy(room, p)
		if err := w.filledLocked(k); err != nil {
			return n, err
		}
		n, p = n+k, p[k:]
	}
	return n, w.failedLocked()
}

// ReadFrom takes everything from r until its end, reading straight into messages. n counts
// what was taken; an error of r is returned as it is and leaves the Writer usable.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	w.callers.Lock()
	defer w.callers.Unlock()
	for {
		room, err := w.roomLocked()
		if err != nil {
			return n, err
		}
		k, rerr := r.Read(room)
		n += int64(k)
		if err := w.filledLocked(k); err != nil {
			return n, err
		}
		if rerr == io.EOF {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}

// roomLocked returns the unfilled rest of the message being filled, never empty.
func (w *Writer) roomLocked() ([]byte, error) {
	if err := w.failedLocked(); err != nil {
		return nil, err
	}
	if w.callers.part == nil {
		w.callers.part = newPart(w.messageLocked())
	}
	p := w.callers.part
	return p[len(p):cap(p)], nil
}

// messageLocked is the capacity of the next message. A file that is known to be small does not
// cost a whole one; the byte over its size is for ReadFrom to see the end of its source.
func (w *Writer) messageLocked() int {
	if w.o.ExpectedSize == nil {
		return messageSize
	}
	return int(min(max(*w.o.ExpectedSize-w.callers.off+1, 512), messageSize))
}

// filledLocked counts k bytes more in the message being filled and hands it on if it is full.
func (w *Writer) filledLocked(k int) error {
	w.callers.part = w.callers.part[:len(w.callers.part)+k]
	if len(w.callers.part) < cap(w.callers.part) {
		return nil
	}
	return w.flushLocked()
}

// failedLocked returns why nothing more can be taken, or nil.
func (w *Writer) failedLocked() error {
	if w.callers.closed {
		return fs.ErrClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// flushLocked hands the message being filled to the engine.
func (w *Writer) flushLocked() error {
	err := w.pushLocked()
	if err == nil {
		w.startLocked()
	}
	return err
}

// pushLocked hands the message being filled to the window, waiting until it fits. What is in
// the window was pushed before, so somebody is at work there if it is full.
func (w *Writer) pushLocked() error {
	part, off := w.callers.part, w.callers.off
	if len(part) == 0 {
		return w.failedLocked()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.win.fits(len(part)) && w.err == nil {
		w.wantSyncLocked(w.win.accepted)
		if err := w.waitLocked(w.ctx); err != nil {
			return err
		}
	}
	if w.err != nil {
		return w.err
	}
	w.win.push(off, part)
	w.callers.part, w.callers.off = nil, off+int64(len(part))
	w.notifyLocked()
	return nil
}

// wantSyncLocked asks for everything below pos to become durable; mu is held.
func (w *Writer) wantSyncLocked(pos int64) {
	if pos > w.want.sync {
		w.want.sync = pos
		w.notifyLocked()
	}
}

// notifyLocked wakes everybody in waitLocked; mu is held.
func (w *Writer) notifyLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// waitLocked gives mu up until something has changed. It fails when ctx is done.
func (w *Writer) waitLocked(ctx context.Context) error {
	ch := w.changed
	w.mu.Unlock()
	defer w.mu.Lock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return asError(ctx.Err())
	}
}

// startLocked starts the goroutine that talks to the engine; callers is held.
func (w *Writer) startLocked() {
	if !w.callers.started {
		w.callers.started = true
		go w.run()
	}
}

// Sync returns nil when every byte written before it is durable, as said by the run of the
// engine that received them. ctx bounds this wait only.
func (w *Writer) Sync(ctx context.Context) error {
	w.callers.Lock()
	defer w.callers.Unlock()
	if err := w.flushLocked(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	target := w.win.accepted
	w.wantSyncLocked(target)
	for w.err == nil && (w.win.durable < target || !w.greeted) {
		if err := w.waitLocked(ctx); err != nil {
			return err
		}
	}
	return w.err
}

// Close ends the write. With Replace the file has the name and is durable when it returns
// nil; with InPlace the engine has every byte, and with the Sync option they are durable.
// A second Close returns what the first did.
func (w *Writer) Close() error {
	w.callers.Lock()
	defer w.callers.Unlock()
	if w.callers.closed {
		return w.outcome()
	}
	if err := w.pushLocked(); err == nil {
		w.mu.Lock()
		w.lastLocked()
		w.mu.Unlock()
		w.startLocked()
	} else {
		w.fail(err)
	}
	w.callers.closed = true
	if w.callers.started {
		<-w.done
	}
	w.cancel()
	return w.outcome()
}

// lastLocked says that nothing follows what is accepted; mu is held.
func (w *Writer) lastLocked() {
	if w.o.Sync || w.o.Mode == Replace {
		w.wantSyncLocked(w.win.accepted)
	}
	w.want.finish = true
	w.notifyLocked()
}

// Abort ends the write at once. With Replace nothing is published, unless Close came before;
// with InPlace what the engine received stays. It does nothing after Close or Abort.
func (w *Writer) Abort() {
	w.fail(failure(codes.Canceled, "", context.Canceled, "write %q: aborted", w.name))
	w.cancel()
	w.callers.Lock()
	defer w.callers.Unlock()
	w.callers.closed = true
	if w.callers.started {
		<-w.done
	}
}

// fail makes err the outcome unless there is one, and wakes everybody.
func (w *Writer) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && !w.finished {
		w.err = err
	}
	w.notifyLocked()
}

func (w *Writer) outcome() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// File is what Close made: nil before it, and after one that failed.
func (w *Writer) File() *File {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file
}

// BootID is the run of the engine that holds the bytes, for SyncOptions.BootID. 0: none yet.
func (w *Writer) BootID() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bootID
}

// Durable is how many bytes of this write survive a crash of the engine.
func (w *Writer) Durable() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.win.durable
}

// optionsLocked returns the options for a stream's first message; mu is held. A stream that goes on with a
// write whose bytes are in the file already cannot ask for the generation and size of before;
// it asks for the same file instead.
func (w *Writer) optionsLocked() *shinglev1.WriteOptions {
	o := &shinglev1.WriteOptions{
		Mode: shinglev1.WriteMode_WRITE_MODE_IN_PLACE, IfMatch: w.o.IfMatch, WriteId: w.writeID,
		ExpectedSize: w.o.ExpectedSize, Compression: w.o.Compression, Nodelalloc: w.o.NoDelalloc,
		Attributes: w.o.Attributes, Mtime: timestamp(w.o.Mtime), ModeBits: w.o.ModeBits,
		MustExist: w.o.MustExist,
	}
	if w.o.MaxWait > 0 {
		o.MaxWait = durationpb.New(w.o.MaxWait)
	}
	if w.o.Mode == Replace {
		o.Mode = shinglev1.WriteMode_WRITE_MODE_REPLACE
		return o
	}
	if w.greeted {
		o.IfMatch = nil
	}
	if w.win.durable > 0 {
		o.IfMatch = &Preconditions{FileId: &w.fileID}
		o.MustExist = true
	}
	return o
}

var _ interface {
	io.WriteCloser
	io.WriterAt
	io.ReaderFrom
} = (*Writer)(nil)
