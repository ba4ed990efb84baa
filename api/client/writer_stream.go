package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/wire"
)

type writeStream = shinglev1.FileService_WriteClient

// attempt is one stream of a write. Its fields are guarded by Writer.mu.
type attempt struct {
	resume   bool   // an earlier stream was there: nothing is sent before the engine says where it stands
	said     bool   // the first message is out
	greeted  bool   // the first reply is in
	boot     uint64 // of the first reply
	shift    int64  // our stream position less the server's
	synced   int64  // sync was sent for everything below
	finished bool   // finish was sent
	last     *shinglev1.WriteResponse
	progress bool // it got something further
	ended    bool
	err      error // why it ended; io.EOF: OK
}

// run talks to the engine until the write is finished or has failed.
func (w *Writer) run() {
	defer close(w.done)
	defer func() {
		w.cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.win.release()
	}()
	pause := w.c.patience()
	fruitless, checksums := 0, 0
	for tries := 0; ; tries++ {
		a, err := w.attempt(tries > 0)
		if err == nil {
			return
		}
		if a.progress {
			fruitless = 0
		} else if a.greeted {
			fruitless++
		}
		if a.greeted {
			pause.ok()
		}
		if ReasonOf(err) == reasonPayloadChecksum && checksums < mangledMessages-1 && w.intact() {
			checksums++ // bytes changed on their way; what is held here is still good
			continue
		}
		again := passing(err) || CodeOf(err) == codes.Canceled || IsRestarted(err) && !errors.Is(err, errLost)
		if !again || fruitless >= fruitlessStreams || !pause.wait(w.ctx) {
			w.fail(w.final(err))
			return
		}
	}
}

// final returns the error to report: that of the caller's context if it is done.
func (w *Writer) final(err error) error {
	if w.ctx.Err() != nil {
		return asError(context.Cause(w.ctx))
	}
	return err
}

func (w *Writer) intact() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.win.intact()
}

// attempt runs one stream. nil: the write is finished.
func (w *Writer) attempt(resume bool) (*attempt, error) {
	a := &attempt{resume: resume, synced: -1}
	w.mu.Lock()
	maybeDone := w.finish && w.o.Mode == Replace
	w.mu.Unlock()
	if maybeDone {
		if done, err := w.published(); done || err != nil {
			return a, err
		}
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	st, err := w.c.files.Write(ctx, payload)
	if err != nil {
		return a, asError(err)
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		w.receive(a, st, cancel)
	}()
	err = w.send(a, st)
	if err != nil {
		cancel()
	}
	<-received
	return a, w.verdict(a, err)
}

// verdict says what became of a stream that has ended; sent is the sender's error.
func (w *Writer) verdict(a *attempt, sent error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case a.err != nil && a.err != io.EOF:
		return a.err
	case sent != nil && sent != io.EOF:
		return sent
	case !a.finished || a.last == nil:
		return failure(codes.Unavailable, "", errBroken, "the server ended the stream in the middle")
	case w.win.received < w.win.accepted:
		return failure(codes.Unavailable, "", errBroken, "the server ended the stream at %d of %d bytes",
			w.win.received, w.win.accepted)
	case w.win.durable < w.win.accepted && w.o.Mode == Replace:
		return failure(codes.Internal, "", nil, "the server says that it published %q with %d of %d bytes durable",
			w.name, w.win.durable, w.win.accepted)
	case w.win.durable < w.win.accepted && w.o.Sync:
		return failure(codes.Unavailable, "", errBroken, "the server ended the stream with %d of %d bytes durable",
			w.win.durable, w.win.accepted)
	}
	w.finishedLocked(a.last.GetFile())
	return nil
}

// finishedLocked records success.
func (w *Writer) finishedLocked(f *File) {
	w.finished, w.file = true, f
	w.notifyLocked()
}

// published finds out whether a finish whose answer was lost took effect: the staged file
// keeps its id when it takes the name.
func (w *Writer) published() (bool, error) {
	r, err := w.c.files.GetFile(w.ctx, &shinglev1.GetFileRequest{Name: w.name})
	switch {
	case IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	f := r.GetFile()
	w.mu.Lock()
	defer w.mu.Unlock()
	ours := w.fileID != 0 && f.GetFileId() == w.fileID || f.GetRequestId() == w.writeID
	if !ours || f.GetSize() != w.win.accepted || f.GetDirtyBytes() != 0 {
		return false, nil
	}
	w.win.durable = w.win.accepted
	w.finishedLocked(f)
	return true, nil
}

// receive takes replies until the stream ends.
func (w *Writer) receive(a *attempt, st writeStream, cancel context.CancelFunc) {
	for {
		r, err := st.Recv()
		if err == nil {
			err = w.reply(a, r)
		}
		if err == nil {
			continue
		}
		if err != io.EOF {
			err = asError(err)
			w.c.heard(err)
		}
		cancel()
		w.mu.Lock()
		a.ended, a.err = true, err
		w.notifyLocked()
		w.mu.Unlock()
		return
	}
}

// reply takes one reply.
func (w *Writer) reply(a *attempt, r *shinglev1.WriteResponse) error {
	w.c.heard(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.notifyLocked()
	if !a.greeted {
		if err := w.greetedLocked(a, r); err != nil {
			return err
		}
	}
	if r.GetBootId() != a.boot {
		return failure(codes.Unavailable, "", errBroken, "the engine was restarted under the stream")
	}
	further, err := w.win.progress(r.GetReceivedBytes()+a.shift, r.GetDurableBytes()+a.shift)
	if err != nil {
		return failure(codes.Internal, "", nil, "write %q: %v", w.name, err)
	}
	// A stream with nothing to do is no failure either.
	if further || w.win.received == w.win.accepted && !w.want.finish {
		a.progress = true
	}
	if id := r.GetFileId(); id != 0 {
		w.fileID = id
	}
	s := r.GetState()
	if s == shinglev1.WriteState_WRITE_STATE_FINISHED || r.GetFile() != nil {
		a.last = r
	}
	return nil
}

// greetedLocked takes the first reply of a stream, which says where the engine stands.
//
// Positions count over all streams of a write as long as the engine knows it. A new run of
// the engine knows a replacement by its staged file and counts on from what of it is durable;
// it knows nothing of a write in place and begins at 0. There we go on from what we know to be
// durable, by offset in the file, and count the difference.
func (w *Writer) greetedLocked(a *attempt, r *shinglev1.WriteResponse) error {
	if a.resume {
		at := r.GetReceivedBytes()
		sameRun := r.GetBootId() == w.bootID
		if w.o.Mode == InPlace && (!sameRun || at < w.win.durable || at > w.win.accepted) {
			a.shift = w.win.durable - at
			at = w.win.durable
		}
		if err := w.win.rewind(at); err != nil {
			return failure(codes.Aborted, reasonRestarted, errLost, "write %q cannot go on: %v", w.name, err)
		}
	}
	a.greeted, a.boot = true, r.GetBootId()
	w.greeted, w.bootID = true, a.boot
	return nil
}

// send sends messages until finish is sent or the stream has ended. It returns io.EOF if the
// reason is the receiver's to tell.
func (w *Writer) send(a *attempt, st writeStream) error {
	for {
		req, err := w.nextRequest(a)
		if err != nil {
			return err
		}
		err = st.SendMsg(req)
		req.Free()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return io.EOF
			}
			return asError(err)
		}
		if req.Header.GetFinish() {
			return st.CloseSend()
		}
	}
}

// nextRequest waits for something to send.
func (w *Writer) nextRequest(a *attempt) (*wire.WriteRequest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case a.ended:
			return nil, io.EOF
		case w.err != nil:
			return nil, w.err
		}
		if req := w.requestLocked(a); req != nil {
			return req, nil
		}
		if err := w.waitLocked(w.ctx); err != nil {
			return nil, err
		}
	}
}

// requestLocked makes the next message of the stream, or returns nil if there is none now. The
// caller frees it.
func (w *Writer) requestLocked(a *attempt) *wire.WriteRequest {
	req := &shinglev1.WriteRequest{}
	out := &wire.WriteRequest{Header: req}
	if !a.said {
		a.said = true
		req.Name, req.Options = w.name, w.optionsLocked()
		if a.resume {
			req.Report = true
			return out
		}
	} else if a.resume && !a.greeted {
		return nil
	}
	something := req.Options != nil
	m := w.win.pop()
	if m != nil {
		something = true
		req.Offset, req.Crc32C = &m.off, &m.crc
		out.Data = mem.BufferSlice{m.buf}
		if w.win.reread {
			w.notifyLocked() // there is room
		}
	}
	sent := w.win.sent()
	// Part of the window goes on being filled while another becomes durable. What counts is what
	// was sent: callers can fill the window before the first message has left. What can be read
	// again fills nothing, and the engine collects it as it likes best.
	asked := max(a.synced, w.win.durable)
	fill := m != nil && !w.win.reread && sent-asked >= w.win.limit/syncsPerWindow
	if fill || w.want.sync > asked && sent >= w.want.sync {
		something = true
		req.Sync, a.synced = true, sent
	}
	if w.want.finish && sent == w.win.accepted && !a.finished {
		something = true
		req.Finish, a.finished, w.finish = true, true, true
		if w.o.Mode == Replace {
			crc := w.win.crc
			req.ContentCrc32C = &crc
		}
	}
	if !something {
		return nil
	}
	// Without data there is nothing that would draw the first reply.
	req.Report = req.Options != nil && m == nil
	return out
}
