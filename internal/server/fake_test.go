package server

import (
	"bytes"
	"context"
	"hash/crc32"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// fakeWriter is a writer whose waits, syncs and failures the test decides.
type fakeWriter struct {
	o engine.WriterOptions

	mu struct {
		sync.Mutex
		content           []byte
		received, durable int64
		next              int64
		state             engine.WriteState
		changed           chan struct{}
		syncs             int
		finished, closed  bool
		pending           int // calls under way
		writeErr          error
		syncErr           error
		panicIn           string
	}
	// gate, if not nil, makes each Write wait in the state until it is closed.
	gate     chan struct{}
	gateIn   engine.WriteState
	syncGate chan struct{} // each Sync takes one, if not nil
}

func newFakeWriter() *fakeWriter {
	w := &fakeWriter{}
	w.mu.changed = make(chan struct{})
	return w
}

func (w *fakeWriter) changeLocked() {
	close(w.mu.changed)
	w.mu.changed = make(chan struct{})
}

func (w *fakeWriter) setState(s engine.WriteState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.state = s
	w.changeLocked()
}

func (w *fakeWriter) setDurable(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.durable = n
	w.changeLocked()
}

func (w *fakeWriter) enter(call string) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		panic(call + " after Close")
	}
	if w.mu.panicIn == call {
		panic("in " + call)
	}
	w.mu.pending++
	return func() {
		w.mu.Lock()
		w.mu.pending--
		w.mu.Unlock()
	}
}

func (w *fakeWriter) Write(ctx context.Context, offset *int64, data [][]byte, crc *uint32) error {
	defer w.enter("Write")()
	if w.gate != nil {
		w.setState(w.gateIn)
		defer w.setState(engine.Accepting)
		select {
		case <-w.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b := bytes.Join(data, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.writeErr != nil {
		return w.mu.writeErr
	}
	if sum := crc32.Checksum(b, castagnoli); crc != nil && *crc != sum {
		return errdefs.New(errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum, "fake.Write", "", "wrong crc32c")
	}
	at := w.mu.next
	if offset != nil {
		at = *offset
	}
	for int64(len(w.mu.content)) < at+int64(len(b)) {
		w.mu.content = append(w.mu.content, 0)
	}
	copy(w.mu.content[at:], b)
	w.mu.next = at + int64(len(b))
	w.mu.received += int64(len(b))
	w.changeLocked()
	return nil
}

func (w *fakeWriter) Sync(ctx context.Context) error {
	defer w.enter("Sync")()
	w.mu.Lock()
	w.mu.syncs++
	covered := w.mu.received
	w.mu.Unlock()
	if w.syncGate != nil {
		select {
		case <-w.syncGate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.syncErr != nil {
		return w.mu.syncErr
	}
	w.mu.durable = max(w.mu.durable, covered)
	w.changeLocked()
	return nil
}

func (w *fakeWriter) Finish(context.Context, *uint32) (engine.File, error) {
	defer w.enter("Finish")()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.o.ExpectedSize; n != nil && *n != int64(len(w.mu.content)) {
		return engine.File{}, errdefs.New(errdefs.Precondition, errdefs.ReasonSizeMismatch, "fake.Finish", "", "wrong size")
	}
	w.mu.finished = true
	if w.o.Mode == engine.Replace {
		w.mu.durable = w.mu.received
	}
	return engine.File{Name: w.o.Name, ID: 42, Size: int64(len(w.mu.content))}, nil
}

func (w *fakeWriter) Position() (received, durable int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.received, w.mu.durable
}

func (w *fakeWriter) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.changed
}

func (w *fakeWriter) State() engine.WriteState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.state
}

func (w *fakeWriter) FileID() uint64 { return 42 }

func (w *fakeWriter) File(context.Context) (engine.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return engine.File{Name: w.o.Name, ID: 42, Size: int64(len(w.mu.content))}, nil
}

func (w *fakeWriter) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed || w.mu.pending != 0 {
		panic("Close twice, or with calls under way")
	}
	w.mu.closed = true
}

func (w *fakeWriter) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.closed
}

// fakeService serves Write over fakeWriters.
type fakeService struct {
	pb.UnimplementedFileServiceServer
	s      *Server
	open   func(engine.WriterOptions) (*fakeWriter, error)
	opened chan *fakeWriter
}

func (f *fakeService) Write(stream grpc.BidiStreamingServer[pb.WriteRequest, pb.WriteResponse]) error {
	w := &writeStream{
		Server: f.s, stream: stream, bootID: 99, ackInterval: 1000, maxWait: time.Minute,
		usage: func() engine.Usage { return engine.Usage{Free: 5} },
		openWriter: func(_ context.Context, o engine.WriterOptions) (writer, error) {
			w, err := f.open(o)
			if err != nil {
				return nil, err
			}
			w.o = o
			f.opened <- w
			return w, nil
		},
	}
	return w.run()
}

// serve starts srv on an in-memory listener and connects to it.
func serve(t *testing.T, srv *grpc.Server) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///server",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		<-done
	})
	return conn
}

// fakeSetup is a client of a fakeService over gRPC; prepare changes the writer before use.
func fakeSetup(t *testing.T, prepare func(*fakeWriter)) (pb.FileServiceClient, *fakeService) {
	t.Helper()
	o := Options{Now: time.Now}
	f := &fakeService{s: New(nil, o), opened: make(chan *fakeWriter, 16)}
	f.s.pace = pace{idle: 30 * time.Millisecond, heartbeat: 30 * time.Millisecond, minMargin: 10 * time.Millisecond, maxMargin: 100 * time.Millisecond}
	f.open = func(engine.WriterOptions) (*fakeWriter, error) {
		w := newFakeWriter()
		if prepare != nil {
			prepare(w)
		}
		return w, nil
	}
	srv := NewGRPC(o)
	pb.RegisterFileServiceServer(srv, f)
	return pb.NewFileServiceClient(serve(t, srv)), f
}
