package server

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// chain returns what every call goes through on its way to its handler, from the outside in:
//
//   - metrics, so that they count what any of the others answers;
//   - the call's name (requestIDs), for the log and the client;
//   - the log of finished calls, with a call's name, method, code, time and peer, never payloads;
//   - the limit of calls under way;
//   - recovery from panics, last, so that all others see an ordinary INTERNAL.
//
// Health checks and reflection are counted, and pass by the log and the limit: an engine that is
// busy can still say so.
func chain(o Options) []grpc.ServerOption {
	logger := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		o.Logger.Log(ctx, slog.Level(level), msg, fields...)
	})
	events := []logging.Option{logging.WithLogOnEvents(logging.FinishCall), logging.WithLevels(logLevel)}
	own := selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool {
		return strings.HasPrefix(c.Service, "shingle.")
	})
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		o.Metrics.panics.Inc()
		logFor(ctx, o.Logger).ErrorContext(ctx, "panic in a call", "panic", p, "stack", string(debug.Stack()))
		return toStatus(panicError(p), "").Err()
	})
	ids := newRequestIDs(o.Now)
	limit := &callLimit{most: int64(o.MaxCalls), metrics: o.Metrics}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(
			o.Metrics.rpc.UnaryServerInterceptor(),
			ids.unary,
			selector.UnaryServerInterceptor(logging.UnaryServerInterceptor(logger, events...), own),
			selector.UnaryServerInterceptor(limit.unary, own),
			recovery.UnaryServerInterceptor(recovered),
		),
		grpc.ChainStreamInterceptor(
			o.Metrics.rpc.StreamServerInterceptor(),
			ids.stream,
			selector.StreamServerInterceptor(logging.StreamServerInterceptor(logger, events...), own),
			selector.StreamServerInterceptor(limit.stream, own),
			recovery.StreamServerInterceptor(recovered),
		),
	}
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
