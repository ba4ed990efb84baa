package server

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/wire"
)

// writer is what Write needs of *engine.Writer, whose contract it is.
type writer interface {
	Write(ctx context.Context, offset *int64, data [][]byte, crc *uint32) error
	Sync(ctx context.Context) error
	Finish(ctx context.Context, contentCRC *uint32) (engine.File, error)
	Position() (received, durable int64)
	Changed() <-chan struct{}
	State() engine.WriteState
	FileID() uint64
	File(ctx context.Context) (engine.File, error)
	Close()
}

// messageStream is what Write needs of its stream. One goroutine may call RecvMsg while
// another calls SendMsg.
type messageStream interface {
	Context() context.Context
	RecvMsg(m any) error
	SendMsg(m any) error
}

// Write implements the RPC.
func (s *fileService) Write(stream grpc.BidiStreamingServer[shinglev1.WriteRequest, shinglev1.WriteResponse]) error {
	e, err := s.open("server.Write")
	if err != nil {
		return s.status(stream.Context(), err)
	}
	info := e.Info()
	w := &writeStream{
		Server: s.Server, stream: stream, bootID: info.BootID, ackInterval: info.AckInterval, maxWait: info.MaxWait,
		usage: e.Usage,
		openWriter: func(ctx context.Context, o engine.WriterOptions) (writer, error) {
			w, err := e.OpenWriter(ctx, o)
			if err != nil {
				return nil, err
			}
			return w, nil
		},
	}
	return w.run()
}

// writeStream is one Write call. The handler's goroutine applies messages; another receives
// them, one ahead; the replier's sends; and one at a time runs Sync. So neither replies nor
// syncs hold up the reading, and the handler can end while a receive is blocked.
type writeStream struct {
	*Server
	stream      messageStream
	openWriter  func(context.Context, engine.WriterOptions) (writer, error)
	usage       func() engine.Usage
	bootID      uint64
	ackInterval int64
	maxWait     time.Duration // of the server, when the client does not say

	// Set by the first message.
	name    string
	mode    engine.WriteMode
	w       writer
	replies *replier
	syncs   *syncer
	patient context.Context // ends shortly before the caller's deadline

	received atomic.Int64 // when the last message came, in ns of Now
	stalled  atomic.Int32 // engine.WriteState + 1 last seen waiting, since the message in hand
}

// received is a message, or why there are no more.
type received struct {
	m   *wire.WriteRequest
	err error
}

func (s *writeStream) run() error {
	ctx, cancel := context.WithCancel(s.stream.Context())
	s.patient = ctx
	if left, ok := s.patience(ctx); ok {
		patient, stop := context.WithTimeout(ctx, left)
		defer stop()
		s.patient = patient
	}
	// Nothing may use the writer any more when it is closed, also after a panic.
	quiesce := func() {
		cancel()
		if s.w != nil {
			_ = s.syncs.wait()
			s.replies.stop()
		}
	}
	defer func() {
		quiesce()
		if s.w != nil {
			s.w.Close()
		}
	}()
	err := s.apply(ctx)
	if err == nil || s.w == nil {
		return s.status(ctx, err)
	}
	quiesce()
	return s.status(ctx, err, &shinglev1.WriteDetail{Last: s.position()})
}

// patience answers how long a message may wait so that the caller hears of it before its own
// deadline; false if there is no deadline, or none to speak of is left.
func (s *writeStream) patience(ctx context.Context) (time.Duration, bool) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0, false
	}
	left := deadline.Sub(s.o.Now())
	left -= min(max(left/10, s.pace.minMargin), s.pace.maxMargin)
	return left, left > 0
}

// receive reads messages until done is closed or the stream ends. It is not waited for: a
// blocked RecvMsg returns when the handler has.
func (s *writeStream) receive(done <-chan struct{}) <-chan received {
	messages := make(chan received)
	go func() {
		for {
			m := new(wire.WriteRequest)
			err := s.guard(func() error { return s.stream.RecvMsg(m) })
			select {
			case messages <- received{m, err}:
			case <-done:
				m.Free()
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return messages
}

// apply receives and applies messages to the end of the stream, and sends the last reply.
func (s *writeStream) apply(ctx context.Context) error {
	messages := s.receive(ctx.Done())
	for {
		var failed <-chan struct{}
		if s.syncs != nil {
			failed = s.syncs.failed
		}
		select {
		case r := <-messages:
			if errors.Is(r.err, io.EOF) {
				return s.end(ctx)
			}
			if r.err != nil {
				return r.err
			}
			finished, err := s.message(ctx, r.m)
			r.m.Free()
			if err != nil || finished {
				return err
			}
		case <-failed:
			return s.syncs.wait()
		case <-s.draining:
			return errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, "server.Write", "", "the server is going down")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// message applies one message. finished says that it was the last and has been answered.
func (s *writeStream) message(ctx context.Context, m *wire.WriteRequest) (finished bool, err error) {
	h := m.Header
	first := s.w == nil
	if err := checkWrite(h, s.name, first, m.Len()); err != nil {
		return false, err
	}
	if first {
		if err := s.begin(ctx, h); err != nil {
			return false, err
		}
	}
	s.received.Store(s.o.Now().UnixNano())
	if m.Len() > 0 || h.Offset != nil || h.Crc32C != nil {
		s.stalled.Store(0)
		wait := s.patient
		if wait.Err() != nil {
			wait = ctx
		}
		if err := s.w.Write(wait, h.Offset, m.Pieces(nil), h.Crc32C); err != nil {
			return false, s.impatience(ctx, err)
		}
	}
	if h.GetSync() && !(h.GetFinish() && s.mode == engine.Replace) {
		s.syncs.request()
	}
	if h.GetReport() {
		s.replies.demand()
	}
	if h.GetFinish() {
		return true, s.finish(ctx, h.ContentCrc32C)
	}
	return false, nil
}

// begin opens the writer with the first message. If the write may be a resumed one it also
// answers where that stands, before any data is taken.
func (s *writeStream) begin(ctx context.Context, h *shinglev1.WriteRequest) error {
	o, err := writerOptions(h)
	if err != nil {
		return err
	}
	if left, ok := s.patience(ctx); ok {
		if o.MaxWait == 0 {
			o.MaxWait = s.maxWait
		}
		o.MaxWait = min(o.MaxWait, left)
	}
	w, err := s.openWriter(ctx, o)
	if err != nil {
		return err
	}
	s.name, s.mode, s.w = o.Name, o.Mode, w
	s.syncs = &syncer{sync: func() error { return s.guard(func() error { return w.Sync(ctx) }) }, failed: make(chan struct{})}
	s.replies = &replier{stream: s}
	s.syncs.done = s.replies.demand
	if o.WriteID != "" {
		r := s.position()
		r.FileId = w.FileID()
		if err := s.stream.SendMsg(r); err != nil {
			s.replies.closed()
			return err
		}
		s.replies.sent(r)
	}
	s.received.Store(s.o.Now().UnixNano())
	s.replies.start()
	return nil
}

// impatience turns the end of patience, which is this server's doing, into the NoSpace that
// the caller is to hear before its own deadline.
func (s *writeStream) impatience(ctx context.Context, err error) error {
	if errdefs.KindOf(err) != errdefs.DeadlineExceeded || ctx.Err() != nil || s.patient.Err() == nil {
		return err
	}
	e := &errdefs.Error{
		Kind: errdefs.NoSpace, Reason: errdefs.ReasonWriteback, Op: "server.Write", Object: "file " + s.name,
		Msg: "writeback took longer than the deadline of the call allows", Detail: s.usage(), Err: err,
	}
	if s.stalled.Load() == int32(engine.WaitingSpace)+1 {
		e.Reason, e.Msg = errdefs.ReasonReclaimPending, "no space came free within the deadline of the call"
	}
	return e
}

// finish answers a message with finish set.
func (s *writeStream) finish(ctx context.Context, contentCRC *uint32) error {
	if err := s.syncs.wait(); err != nil {
		return err
	}
	f, err := s.w.Finish(ctx, contentCRC)
	if err != nil {
		return err
	}
	return s.last(f)
}

// end answers a half-close without finish.
func (s *writeStream) end(ctx context.Context) error {
	if s.w == nil {
		return errdefs.Invalid("server.Write", "name", "name: the stream ended before a first message named a file")
	}
	if err := s.syncs.wait(); err != nil {
		return err
	}
	if s.mode == engine.Replace {
		r := s.position()
		r.State = shinglev1.WriteState_WRITE_STATE_UNPUBLISHED
		return s.conclude(r)
	}
	f, err := s.w.File(ctx)
	if err != nil {
		return err
	}
	return s.last(f)
}

// last sends the last reply of a write that has reached the file f.
func (s *writeStream) last(f engine.File) error {
	r := s.position()
	r.State, r.File = shinglev1.WriteState_WRITE_STATE_FINISHED, fileProto(f)
	return s.conclude(r)
}

func (s *writeStream) conclude(r *shinglev1.WriteResponse) error {
	s.replies.stop()
	r.FileId = s.w.FileID()
	return s.stream.SendMsg(r)
}

// position is a reply with what the writer says now.
func (s *writeStream) position() *shinglev1.WriteResponse {
	received, durable := s.w.Position()
	return &shinglev1.WriteResponse{
		ReceivedBytes: received, DurableBytes: durable, BootId: s.bootID, State: writeStateProto(s.w.State()),
	}
}
