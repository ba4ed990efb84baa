package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// requestIDKey is the metadata in which a client may name its call, and in which, as a trailer, it
// hears the name that the log has. It is no key of anything: what makes a retry safe is the
// request_id of a message.
const requestIDKey = "x-request-id"

// maxRequestID is the longest name of a call that is taken from a client, in bytes.
const maxRequestID = 64

// requestIDs names the calls of one server: by what the client says, if that can go into a log as
// it is, and else by when the server was made and a number.
type requestIDs struct {
	began int64
	last  atomic.Uint64
}

func newRequestIDs(now func() time.Time) *requestIDs {
	return &requestIDs{began: now().UnixNano()}
}

type requestIDContext struct{}

// name returns the context of a call with its name, and the name.
func (r *requestIDs) name(ctx context.Context) (context.Context, string) {
	id := ""
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if given := md.Get(requestIDKey); len(given) == 1 && plain(given[0]) {
			id = given[0]
		}
	}
	if id == "" {
		id = fmt.Sprintf("%x-%d", r.began, r.last.Add(1))
	}
	ctx = context.WithValue(ctx, requestIDContext{}, id)
	return logging.InjectFields(ctx, logging.Fields{"request_id", id}), id
}

// plain reports whether a name is short, and of letters, digits, ".", "_" and "-".
func plain(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

func (r *requestIDs) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx, id := r.name(ctx)
	if err := grpc.SetTrailer(ctx, metadata.Pairs(requestIDKey, id)); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (r *requestIDs) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, id := r.name(s.Context())
	s.SetTrailer(metadata.Pairs(requestIDKey, id))
	return handle(srv, &namedStream{ServerStream: s, ctx: ctx})
}

// namedStream is a stream whose context knows the call's name.
type namedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *namedStream) Context() context.Context { return s.ctx }

// logFor is logger with the name of the call that ctx belongs to, if it is one's.
func logFor(ctx context.Context, logger *slog.Logger) *slog.Logger {
	if id, ok := ctx.Value(requestIDContext{}).(string); ok {
		return logger.With("request_id", id)
	}
	return logger
}
