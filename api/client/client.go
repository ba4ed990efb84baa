package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/wire"
)

const (
	// DefaultRetryTime is how long a call goes on trying to reach an engine that has answered
	// before: enough for a restart with a scan of the metadata file.
	DefaultRetryTime = 60 * time.Second
	// DefaultWindow is the most that a Writer holds that is not known to be durable, in bytes.
	DefaultWindow = 64 << 20

	// syncsPerWindow is how often a Writer asks for a sync while it sends a window: one part
	// becomes durable, the next is written to the device and others are on their way.
	syncsPerWindow = 4

	// messageSize is that of Limits.preferred_data_bytes; the most is 2 MiB.
	messageSize = 1 << 20
	// fruitlessStreams in a row, each opened well and each broken before it got anything
	// further, end a Write or a Read: the engine fails because of what it is asked.
	fruitlessStreams = 10

	// mangledMessages in a row, each with a wrong checksum on arrival, end a Write or a Read:
	// it is not chance.
	mangledMessages = 4

	// The server enforces at least 10 s between pings.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 20 * time.Second
	// Larger than gRPC's 32 KiB: fewer system calls for MiB-sized messages.
	socketBuffer = 128 << 10

	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second
)

// payload makes a call of Write or Read take the messages of package wire, whose bytes are not
// copied on their way.
var payload = grpc.ForceCodecV2(wire.Codec())

// Client speaks to one engine. Its methods may be called from any goroutine.
type Client struct {
	conn        *grpc.ClientConn
	files       shinglev1.FileServiceClient
	store       shinglev1.StoreServiceClient
	maintenance shinglev1.MaintenanceServiceClient
	o           options

	// met is set once an engine has answered anything. Until then a call that finds nobody
	// fails at once, for then the address is more likely wrong than the engine restarting.
	met atomic.Bool
}

type options struct {
	retryTime time.Duration
	window    int64
	dial      []grpc.DialOption
}

// Option changes how a Client works.
type Option func(*options)

// WithRetryTime bounds how long a call goes on trying to reach an engine that has answered
// before, without success in between. 0 or less: no retry. The default is DefaultRetryTime.
func WithRetryTime(d time.Duration) Option { return func(o *options) { o.retryTime = d } }

// WithWindow bounds the bytes that each Writer holds because they are not known to be
// durable, apart from the one message being filled. A Writer asks for a sync whenever a quarter
// of it has been sent, so a small window costs speed. The default is DefaultWindow; the least that
// works is one message, 1 MiB.
func WithWindow(bytes int64) Option { return func(o *options) { o.window = bytes } }

// WithDialOptions adds gRPC options, behind the defaults and so overriding them: transport
// credentials, a dialer.
func WithDialOptions(d ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, d...) }
}

// Dial returns a Client for the engine at addr: "host:port", "dns:///host:port" or
// "unix:/path". It connects at the first call, without encryption unless WithDialOptions says
// otherwise, and fails only for an address that cannot be read. Close releases it.
func Dial(addr string, opts ...Option) (*Client, error) {
	o := options{retryTime: DefaultRetryTime, window: DefaultWindow}
	for _, f := range opts {
		f(&o)
	}
	c := &Client{o: o}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: retryMost},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithReadBufferSize(socketBuffer),
		grpc.WithWriteBufferSize(socketBuffer),
		grpc.WithChainUnaryInterceptor(c.unary),
	}, o.dial...)
	conn, err := grpc.NewClient(addr, dial...)
	if err != nil {
		return nil, failure(codes.InvalidArgument, "", err, "address %q: %v", addr, err)
	}
	c.conn = conn
	c.files = shinglev1.NewFileServiceClient(conn)
	c.store = shinglev1.NewStoreServiceClient(conn)
	c.maintenance = shinglev1.NewMaintenanceServiceClient(conn)
	return c, nil
}

// Close ends the connection, and with it every Reader and Writer that is still open.
func (c *Client) Close() error { return c.conn.Close() }

// unary turns errors into *Error and notices that an engine is there.
func (c *Client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := asError(call(ctx, method, req, reply, cc, opts...))
	c.heard(err)
	return err
}

// heard notes what an answer, nil or not, says of whether an engine is there.
func (c *Client) heard(err error) {
	if err == nil || ReasonOf(err) != "" {
		c.met.Store(true)
	}
}

// passing reports whether err may go away by itself: nobody there, an engine going down or
// coming up, or a stream that broke.
func passing(err error) bool {
	return CodeOf(err) == codes.Unavailable || errors.Is(err, errBroken)
}

// retry calls f until it succeeds, fails in a way that will not pass, or the retry time is
// over; then it returns f's last error, or, if the deadline cut that short, the one before, which
// says why it took so long. f must be harmless to repeat.
func (c *Client) retry(ctx context.Context, f func() error) error {
	p := c.patience()
	var before error
	for {
		err := f()
		switch {
		case err != nil && before != nil && CodeOf(err) == codes.DeadlineExceeded:
			return before
		case err == nil || !passing(err) || !p.wait(ctx):
			return err
		}
		before = err
	}
}

// patience paces repeated attempts. The zero of since means that nothing has failed since the
// last success.
type patience struct {
	c     *Client
	since time.Time
	delay time.Duration
}

func (c *Client) patience() *patience { return &patience{c: c} }

// ok tells p that an attempt worked.
func (p *patience) ok() { p.since, p.delay = time.Time{}, 0 }

// wait pauses before the next attempt. It returns false, at once, if there should be none:
// no engine ever answered, the retry time is over, or ctx is done.
func (p *patience) wait(ctx context.Context) bool {
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	left := p.c.o.retryTime - now.Sub(p.since)
	if !p.c.met.Load() || left <= 0 || ctx.Err() != nil {
		return false
	}
	p.delay = min(max(retryFirst, p.delay*8/5), retryMost)
	// A fifth of jitter, so that a restarted engine does not meet all its clients at once.
	d := p.delay - time.Duration(rand.Int64N(int64(p.delay)/5))
	t := time.NewTimer(min(d, left))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		p.c.conn.ResetConnectBackoff()
		return true
	}
}
