package server

import (
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/wire"
)

const (
	// socketBuffer is larger than gRPC's 32 KiB: fewer system calls for MiB-sized messages.
	socketBuffer = 128 << 10
	// keepaliveTime is after how long a silent client is asked whether it is there, and
	// KeepaliveTimeout how long it has to answer, before its connection, and with it all that its
	// calls hold, is given up: who loses power sends no farewell, and gRPC's default is 2 hours.
	// The client library pings as often.
	keepaliveTime    = 30 * time.Second
	KeepaliveTimeout = 20 * time.Second
	// keepaliveMinTime is how often clients may ping. gRPC's default of 5 min answers eager
	// clients with GOAWAY.
	keepaliveMinTime = 10 * time.Second
)

// NewGRPC returns a gRPC server made for a Server: the zero-copy codec, the limits of limits.go,
// and the interceptors of chain: calls are counted in o.Metrics and logged to o.Logger, and panics
// answered with INTERNAL instead of ending the process. opts come last and win.
func NewGRPC(o Options, opts ...grpc.ServerOption) *grpc.Server {
	o.setDefaults()
	all := append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.Codec()),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.WaitForHandlers(true),
		grpc.ReadBufferSize(socketBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: KeepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime, PermitWithoutStream: true}),
	}, chain(o)...)
	return grpc.NewServer(append(all, opts...)...)
}

// panicError is the error that stands for a recovered panic.
func panicError(p any) error {
	return errdefs.New(errdefs.Internal, "", "server", "", fmt.Sprintf("panic: %v", p))
}

// guard runs f and answers a panic in it as an Internal error: the interceptor sees only the
// goroutine of the handler, and a panic in another one would end the process.
func (s *Server) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.o.Metrics.panics.Inc()
			s.o.Logger.Error("panic in a call", "panic", p, "stack", string(debug.Stack()))
			err = panicError(p)
		}
	}()
	return f()
}
