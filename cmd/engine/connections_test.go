package main

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/server"
)

// count returns a counted value of the listener.
func (c *connections) count(t *testing.T, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

func TestConnectionsAreBounded(t *testing.T) {
	var log strings.Builder
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	lis := limitConnections(tcp, 2, slog.New(slog.NewTextHandler(&log, nil)))
	defer lis.Close()
	accepted := make(chan net.Conn, 8)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", tcp.Addr().String())
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	// closed reports that the other side closed c without a word.
	closed := func(c net.Conn) {
		t.Helper()
		must(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("a connection too many: %v", err)
		}
	}
	dial()
	dial()
	first, second := <-accepted, <-accepted
	closed(dial())
	closed(dial())
	if open, refused := lis.count(t, "shingle_connections_open"), lis.count(t, "shingle_connections_refused_total"); open != 2 || refused != 2 {
		t.Errorf("%v open, %v refused; want 2 and 2", open, refused)
	}
	must(t, first.Close())
	_ = first.Close() // counts once
	third := dial()
	c := <-accepted
	_, err = third.Write([]byte("x"))
	must(t, err)
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("with room again: %v", err)
	}
	closed(dial())
	must(t, lis.Close())
	<-ended
	must(t, second.Close())
	must(t, c.Close())
	if open, refused := lis.count(t, "shingle_connections_open"), lis.count(t, "shingle_connections_refused_total"); open != 0 || refused != 3 {
		t.Errorf("in the end %v open, %v refused; want 0 and 3", open, refused)
	}
	if n := strings.Count(log.String(), "more are refused"); n != 2 { // once each time it is full
		t.Errorf("it says so %d times: %s", n, log.String())
	}
}

// gRPC bounds how long the kernel tries to reach a silent client only on a connection whose type it
// knows; of the listener's, the listener does.
func TestConnectionsEndInSilence(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	lis := limitConnections(tcp, 1, slog.New(slog.DiscardHandler))
	defer lis.Close()
	client, err := net.Dial("tcp", tcp.Addr().String())
	must(t, err)
	defer client.Close()
	c, err := lis.Accept()
	must(t, err)
	defer c.Close()
	raw, err := c.(*connection).Conn.(*net.TCPConn).SyscallConn()
	must(t, err)
	got := 0
	must(t, raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }))
	must(t, err)
	if want := int(server.KeepaliveTimeout.Milliseconds()); got != want {
		t.Errorf("the kernel gives up after %d ms, want %d", got, want)
	}
}
