package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/wire"
)

const (
	// maxDataBytes is the most data of one WriteRequest (Limits.max_data_bytes).
	maxDataBytes = 2 << 20
	// preferredDataBytes is where throughput levels off (Limits.preferred_data_bytes).
	preferredDataBytes = 1 << 20
	// socketBuffer is larger than gRPC's 32 KiB: fewer system calls for MiB-sized messages.
	socketBuffer = 128 << 10
	// maxMessageBytes leaves room for options and attributes beside the data.
	maxMessageBytes = 4 << 20
	// keepaliveTime is after how long a silent client is asked whether it is there, and
	// keepaliveTimeout how long it has to answer, before its connection, and with it all that its
	// calls hold, is given up: who loses power sends no farewell, and gRPC's default is 2 hours.
	// The client library pings as often.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 20 * time.Second
	// keepaliveMinTime is how often clients may ping. gRPC's default of 5 min answers eager
	// clients with GOAWAY.
	keepaliveMinTime = 10 * time.Second
)

// NewGRPC returns a gRPC server made for a Server: the zero-copy codec, finished calls logged
// to o.Logger (never payloads, nor health checks and reflection), and panics answered with
// INTERNAL instead of ending the process. opts come last and win.
func NewGRPC(o Options, opts ...grpc.ServerOption) *grpc.Server {
	o.setDefaults()
	logger := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		o.Logger.Log(ctx, slog.Level(level), msg, fields...)
	})
	events := []logging.Option{logging.WithLogOnEvents(logging.FinishCall), logging.WithLevels(logLevel)}
	own := selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool {
		return strings.HasPrefix(c.Service, "shingle.")
	})
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		o.Logger.ErrorContext(ctx, "panic in a call", "panic", p, "stack", string(debug.Stack()))
		return toStatus(panicError(p), "").Err()
	})
	all := []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.Codec()),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.WaitForHandlers(true),
		grpc.ReadBufferSize(socketBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(
			selector.UnaryServerInterceptor(logging.UnaryServerInterceptor(logger, events...), own),
			recovery.UnaryServerInterceptor(recovered),
		),
		grpc.ChainStreamInterceptor(
			selector.StreamServerInterceptor(logging.StreamServerInterceptor(logger, events...), own),
			recovery.StreamServerInterceptor(recovered),
		),
	}
	return grpc.NewServer(append(all, opts...)...)
}

// logLevel keeps what is the caller's own business at debug.
func logLevel(c codes.Code) logging.Level {
	switch c {
	case codes.OK, codes.Canceled, codes.NotFound, codes.AlreadyExists, codes.InvalidArgument,
		codes.FailedPrecondition, codes.OutOfRange, codes.Aborted:
		return logging.LevelDebug
	case codes.Internal, codes.DataLoss, codes.Unknown:
		return logging.LevelError
	}
	return logging.LevelWarn
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
			s.o.Logger.Error("panic in a call", "panic", p, "stack", string(debug.Stack()))
			err = panicError(p)
		}
	}()
	return f()
}
