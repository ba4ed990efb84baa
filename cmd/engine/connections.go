package main

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/server"
)

// connections is a listener that holds no more than so many connections at a time. One more is
// closed at once: left in the kernel's queue, as netutil.LimitListener does it, its client would
// not hear until its deadline that there is no room. It is a prometheus.Collector.
type connections struct {
	net.Listener
	most    int64
	log     *slog.Logger
	open    atomic.Int64
	refused prometheus.Counter
	now     prometheus.GaugeFunc
	full    atomic.Bool // said so, and there has been room since for nobody
}

func limitConnections(lis net.Listener, most int, log *slog.Logger) *connections {
	c := &connections{Listener: lis, most: int64(most), log: log}
	c.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "shingle", Name: "connections_refused_total", Help: "Connections closed at once because as many as allowed were open.",
	})
	c.now = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "shingle", Name: "connections_open", Help: "Connections of clients that are open.",
	}, func() float64 { return float64(c.open.Load()) })
	return c
}

// Describe implements prometheus.Collector.
func (c *connections) Describe(to chan<- *prometheus.Desc) {
	c.refused.Describe(to)
	c.now.Describe(to)
}

// Collect implements prometheus.Collector.
func (c *connections) Collect(to chan<- prometheus.Metric) {
	c.refused.Collect(to)
	c.now.Collect(to)
}

// Accept returns the next connection that there is room for.
func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c.open.Add(1) > c.most {
			c.open.Add(-1)
			c.refused.Inc() // before the client can know
			_ = conn.Close()
			if !c.full.Swap(true) {
				c.log.Warn("as many connections as allowed are open; more are refused", "max-connections", c.most)
			}
			continue
		}
		c.full.Store(false)
		giveUpOnSilence(conn)
		return &connection{Conn: conn, of: c}, nil
	}
}

// connection counts itself out when it is closed.
type connection struct {
	net.Conn
	of   *connections
	once sync.Once
}

// Close implements net.Conn.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.of.open.Add(-1) })
	return err
}

// giveUpOnSilence has the kernel end a connection whose data nobody acknowledges for as long as a
// client may take to answer a ping. gRPC does that by itself, but only for a connection whose type
// it knows.
func giveUpOnSilence(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(server.KeepaliveTimeout.Milliseconds()))
	})
}
