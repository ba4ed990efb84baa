package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// What one client can make the server hold. Each is a bound of memory or of goroutines.
const (
	// maxDataBytes is the most data of one WriteRequest (Limits.max_data_bytes).
	maxDataBytes = 2 << 20
	// preferredDataBytes is where throughput levels off (Limits.preferred_data_bytes).
	preferredDataBytes = 1 << 20
	// maxMessageBytes leaves room for options and attributes beside the data.
	maxMessageBytes = 4 << 20
	// maxHeaderBytes is the most that the headers of a call may take; gRPC's default is 16 MiB.
	maxHeaderBytes = 64 << 10
	// maxStreams is how many calls one connection may have under way. Those after it wait in the
	// client until one ends: that is HTTP/2's way, and gRPC's default is no limit.
	maxStreams = 1024
	// handshakeTime is how long a connection may take to say that it speaks HTTP/2.
	handshakeTime = 20 * time.Second
	// DefaultMaxCalls is how many calls of the API may be under way at a time, of all connections.
	DefaultMaxCalls = 4096
)

// callLimit bounds the calls under way.
type callLimit struct {
	most    int64
	now     atomic.Int64
	metrics *Metrics
}

// enter counts a call in, or refuses it: with UNAVAILABLE and RetryInfo, for it passes by itself,
// and before anything of the call was looked at.
func (l *callLimit) enter() error {
	if l.now.Add(1) > l.most {
		l.now.Add(-1)
		l.metrics.refused.Inc()
		return toStatus(errdefs.New(errdefs.Unavailable, "", "server", "", fmt.Sprintf(
			"%d calls are under way, as many as this engine takes at a time (--max-calls); try again later", l.most)), "").Err()
	}
	l.metrics.underWay.Inc()
	return nil
}

func (l *callLimit) leave() {
	l.now.Add(-1)
	l.metrics.underWay.Dec()
}

func (l *callLimit) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	return handle(ctx, req)
}

func (l *callLimit) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	return handle(srv, s)
}
