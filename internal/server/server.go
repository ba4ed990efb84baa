package server

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// Options configure a Server.
type Options struct {
	// Version and Revision are what GetServerInfo says of the program.
	Version, Revision string
	// Logger gets finished calls and internal errors. Default: discarded.
	Logger *slog.Logger
	// Now is the clock. It has no default.
	Now func() time.Time
	// Metrics counts calls. Default: counted for nobody.
	Metrics *Metrics
	// MaxCalls is how many calls of the API may be under way at a time, health checks and
	// reflection aside; more are refused with UNAVAILABLE. Default: DefaultMaxCalls.
	MaxCalls int
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = DefaultMaxCalls
	}
}

// Server implements the services of the API over one engine. It is safe for concurrent use.
type Server struct {
	o      Options
	pace   pace
	health *health.Server
	engine atomic.Pointer[engine.Engine]

	errors   atomic.Uint64 // numbers internal errors
	drain    sync.Once
	draining chan struct{}
}

// New returns a server of e. With a nil e it can be registered and serve before the engine is
// open, which after a crash can take a while: calls answer UNAVAILABLE until Attach.
//
// The server starts NOT_SERVING in the eyes of health checks.
func New(e *engine.Engine, o Options) *Server {
	o.setDefaults()
	s := &Server{o: o, pace: defaultPace, health: health.NewServer(), draining: make(chan struct{})}
	s.SetServing(false)
	if e != nil {
		s.Attach(e)
	}
	return s
}

// Attach gives the server its engine.
func (s *Server) Attach(e *engine.Engine) { s.engine.Store(e) }

// open returns the engine, or an Unavailable error before Attach.
func (s *Server) open(op string) (*engine.Engine, error) {
	if e := s.engine.Load(); e != nil {
		return e, nil
	}
	return nil, errdefs.New(errdefs.Unavailable, "", op, "", "the store is being opened")
}

// services are the names that health checks may ask for; "" is the server as a whole.
var services = []string{
	"", shinglev1.FileService_ServiceDesc.ServiceName, shinglev1.MaintenanceService_ServiceDesc.ServiceName,
	shinglev1.StoreService_ServiceDesc.ServiceName,
}

// SetServing sets what health checks hear, for "" and for each service.
func (s *Server) SetServing(ok bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		status = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range services {
		s.health.SetServingStatus(name, status)
	}
}

// Drain begins the end: health checks hear NOT_SERVING, and open Write streams end, after the
// message in hand, with UNAVAILABLE / DRAINING and their position, so that a graceful stop does
// not wait for clients that keep a stream open. A Trim ends with its last reply, CANCELLED; a
// WatchScrub and a WatchDevices as a Write does, and the scrub and the rebuild with the engine. Other
// calls go on. It may be called again.
func (s *Server) Drain() {
	s.SetServing(false)
	s.drain.Do(func() { close(s.draining) })
}

// Register registers the services of the API and health on r, and, if r can be asked what it
// serves, reflection and each method in the metrics, at 0.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	shinglev1.RegisterFileServiceServer(r, &fileService{Server: s})
	shinglev1.RegisterMaintenanceServiceServer(r, &maintenanceService{Server: s})
	shinglev1.RegisterStoreServiceServer(r, &storeService{Server: s})
	healthpb.RegisterHealthServer(r, s.health)
	if g, ok := r.(reflection.GRPCServer); ok {
		reflection.Register(g)
		s.o.Metrics.rpc.InitializeMetrics(g)
	}
}

// The generated interfaces are implemented by types of their own, so that Server's methods are
// those of its owner only.
type (
	fileService struct {
		*Server
		shinglev1.UnimplementedFileServiceServer
	}
	maintenanceService struct {
		*Server
		shinglev1.UnimplementedMaintenanceServiceServer
	}
	storeService struct {
		*Server
		shinglev1.UnimplementedStoreServiceServer
	}
)
