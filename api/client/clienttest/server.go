package clienttest

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// Faults are hooks that make trouble; nil ones do nothing. They are called without locks held
// and may block. An error ends the call with that error.
type Faults struct {
	// Call comes before every unary call, with the name of the method: "GetFile".
	Call func(method string) error
	// Write comes before a message of a Write is applied.
	Write func(*shinglev1.WriteRequest) error
	// Reply comes before a reply of a Write is sent, and may change it.
	Reply func(*shinglev1.WriteResponse) error
	// Read comes before a message of a Read is sent, and may change it.
	Read func(*shinglev1.ReadResponse) error
}

// Server is an engine in memory. Its fields may be changed only before the first call or
// while none runs.
type Server struct {
	shinglev1.UnimplementedFileServiceServer
	shinglev1.UnimplementedStoreServiceServer
	shinglev1.UnimplementedMaintenanceServiceServer

	Addr        string // "127.0.0.1:port", the same over crashes
	Faults      Faults
	AckInterval int64 // bytes between unasked replies of a Write
	PageSize    int   // of lists
	Usage       *shinglev1.Usage
	Info        *shinglev1.GetServerInfoResponse
	Zones       []*shinglev1.Zone
	BlockGroups []*shinglev1.BlockGroup
	Conditions  []*shinglev1.Condition
	Maps        map[string][]*shinglev1.FileExtent // by name; what MapFile answers
	Counters    map[string]uint64
	Trims       Trims
	Scrubs      Scrubs
	Devices     Devices
	// OnReclaim answers Reclaim; nil: UNIMPLEMENTED.
	OnReclaim func(*shinglev1.ReclaimRequest, grpc.ServerStreamingServer[shinglev1.ReclaimResponse]) error

	run struct {
		sync.Mutex
		grpc *grpc.Server
		done chan struct{}
	}

	mu     sync.Mutex
	nodes  map[string]*node
	writes map[string]*write // by write id
	boot   uint64
	lastID uint64
	gen    int64
}

// New starts a Server that is closed when the test ends.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		AckInterval: 4 << 20, PageSize: 3, nodes: map[string]*node{}, writes: map[string]*write{}, boot: 100,
		Usage: &shinglev1.Usage{}, Info: &shinglev1.GetServerInfoResponse{Version: "test"},
		Counters: map[string]uint64{},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Addr = l.Addr().String()
	s.serve(l)
	t.Cleanup(s.Stop)
	return s
}

func (s *Server) serve(l net.Listener) {
	g := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(s.unary))
	shinglev1.RegisterFileServiceServer(g, s)
	shinglev1.RegisterStoreServiceServer(g, s)
	shinglev1.RegisterMaintenanceServiceServer(g, s)
	done := make(chan struct{})
	s.run.Lock()
	s.run.grpc, s.run.done = g, done
	s.run.Unlock()
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if f := s.Faults.Call; f != nil {
		method := info.FullMethod
		for i := len(method) - 1; i >= 0; i-- {
			if method[i] == '/' {
				method = method[i+1:]
				break
			}
		}
		if err := f(method); err != nil {
			return nil, err
		}
	}
	return h(ctx, req)
}

// Stop ends the server, cutting every stream. The files stay. Stopping twice is harmless.
func (s *Server) Stop() {
	s.run.Lock()
	g, done := s.run.grpc, s.run.done
	s.run.Unlock()
	g.Stop()
	<-done
}

// Start serves again, as a new run of the engine on the same port, after Stop. It returns
// false if the port was taken meanwhile.
func (s *Server) Start() bool {
	s.mu.Lock()
	s.boot++
	s.mu.Unlock()
	l, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return false
	}
	s.serve(l)
	return true
}

// Crash stops the server at once, drops everything that is not durable and starts it again.
// It returns false if the port was taken meanwhile.
func (s *Server) Crash() bool {
	s.Stop()
	s.Lose()
	return s.Start()
}

// Lose drops everything that is not durable, as a crash does; call it while stopped.
func (s *Server) Lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		n.data = append(n.data[:0], n.durable...)
	}
	for id, w := range s.writes {
		if w.staged == nil {
			delete(s.writes, id)
			continue
		}
		w.received = w.durable
		w.staged.data = w.staged.data[:w.durable]
		w.fence = nil
	}
}

// Writeback makes everything received so far durable, without saying so.
func (s *Server) Writeback() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		s.durableLocked(n)
	}
	for _, w := range s.writes {
		w.durable = w.received
	}
}

// Put makes a durable file.
func (s *Server) Put(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.makeLocked(name, shinglev1.FileKind_FILE_KIND_FILE)
	n.data = append([]byte(nil), data...)
	n.durable = append([]byte(nil), data...)
}

// Data returns a file's content and what of it is durable; false: no such file.
func (s *Server) Data(name string) (data, durable []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil || n.directory() {
		return nil, nil, false
	}
	return append([]byte(nil), n.data...), append([]byte(nil), n.durable...), true
}

// Boot returns the identity of the present run.
func (s *Server) Boot() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boot
}

// Errorf returns an error as an engine sends it: with a reason, figures as pairs of key and
// value, and further details.
func Errorf(code codes.Code, reason string, meta map[string]string, msg string, details ...protoadapt.MessageV1) error {
	all := append([]protoadapt.MessageV1{
		&errdetails.ErrorInfo{Domain: "shingle", Reason: reason, Metadata: meta},
	}, details...)
	st, err := status.New(code, msg).WithDetails(all...)
	if err != nil {
		return err
	}
	return st.Err()
}
