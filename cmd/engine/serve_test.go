package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	channelzpb "google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/config"
)

// serving is an engine that runs in this process.
type serving struct {
	t       *testing.T
	signals chan os.Signal
	exit    chan int
	line    string
	addr    string
	conn    *grpc.ClientConn
	mu      sync.Mutex
	log     strings.Builder
}

func (s *serving) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

func (s *serving) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// startServing serves with the flags on a free port, and waits for the line that says so.
func startServing(t *testing.T, args ...string) *serving {
	t.Helper()
	s := &serving{t: t, signals: make(chan os.Signal, 2), exit: make(chan int, 1)}
	flags := map[string]string{"listen": "127.0.0.1:0"}
	for i := 0; i+1 < len(args); i += 2 {
		flags[strings.TrimPrefix(args[i], "--")] = args[i+1]
	}
	c, err := config.Sources{
		Flag: func(name string) (string, bool) { v, ok := flags[name]; return v, ok },
		Env:  func(string) (string, bool) { return "", false },
	}.Resolve(config.Settings())
	must(t, err)
	r, w := io.Pipe()
	a := &app{streams: streams{out: w, err: s}}
	go func() {
		code := a.explain(a.serve(c, s.signals))
		_ = w.Close()
		s.exit <- code
	}()
	s.line, err = bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("the engine does not serve: %s", s.said())
	}
	s.addr = strings.TrimPrefix(strings.SplitN(s.line, ",", 2)[0], "serving on ")
	s.conn, err = grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

func (s *serving) signal() { s.signals <- syscall.SIGTERM }

// ended waits for the end.
func (s *serving) ended(code int) {
	s.t.Helper()
	select {
	case got := <-s.exit:
		if got != code {
			s.t.Errorf("exit status %d, want %d: %s", got, code, s.said())
		}
	case <-time.After(30 * time.Second):
		s.t.Fatalf("the engine does not end: %s", s.said())
	}
}

func TestServe(t *testing.T) {
	data, device := layout(t)
	flags := []string{"--data", data, "--device", "file:" + device + smallQuery, "--admin-listen", "127.0.0.1:0"}
	s := startServing(t, flags...)
	if want := ", data in " + data + " (new store, 16 MiB emulated ZNS device)\n"; !strings.HasSuffix(s.line, want) {
		t.Errorf("it says %q", s.line)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	health, err := healthpb.NewHealthClient(s.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	_, rest, _ := strings.Cut(s.said(), "admin pages on ")
	admin, _, _ := strings.Cut(rest, `"`)
	for path, want := range map[string]string{"/healthz": "OK", "/readyz": "SERVING", "/metrics": "\nshingle_read_only 0\n", "/debug/pprof/": "goroutine", "/nothing": "404"} {
		r, err := http.Get("http://" + admin + path)
		must(t, err)
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %s, %v", path, b, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	conn, err := grpc.NewClient(admin, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	servers, err := channelzpb.NewChannelzClient(conn).GetServers(ctx, &channelzpb.GetServersRequest{})
	if err != nil || len(servers.GetServer()) == 0 {
		t.Errorf("channelz: %v, %v", servers, err)
	}
	_ = conn.Close()
	s.signal()
	s.ended(exitOK)
	if strings.Contains(s.said(), "WARN") {
		t.Errorf("a run on loopback warns: %s", s.said())
	}
	s = startServing(t, flags...)
	if want := ", data in " + data + " (16 MiB emulated ZNS device)\n"; !strings.HasSuffix(s.line, want) {
		t.Errorf("the second time it says %q", s.line)
	}
	s.signal()
	s.ended(exitOK)
}

// A client that keeps a stream open and takes nothing from it does not hold up the end for
// longer than the drain timeout; what was received is durable.
func TestDrainTimeout(t *testing.T) {
	data, device := layout(t)
	flags := []string{"--data", data, "--device", "file:" + device + smallQuery, "--compression", "none", "--drain-timeout", "300ms"}
	s := startServing(t, flags...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	files := pb.NewFileServiceClient(s.conn)
	w, err := files.Write(ctx)
	must(t, err)
	for i := range 4 {
		must(t, w.Send(&pb.WriteRequest{Name: "a", Data: make([]byte, 1<<20), Report: i == 3}))
	}
	for {
		r, err := w.Recv()
		must(t, err)
		if r.GetReceivedBytes() == 4<<20 {
			break
		}
	}
	r, err := files.Read(ctx, &pb.ReadRequest{Name: "a"})
	must(t, err)
	_, err = r.Recv()
	must(t, err)
	s.signal()
	s.ended(exitOK)
	for err == nil { // what is left in the client's window
		_, err = r.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the reader hears %v", err)
	}
	if !strings.Contains(s.said(), "calls still under way are ended") {
		t.Errorf("the engine did not wait: %s", s.said())
	}
	s = startServing(t, flags...)
	f, err := pb.NewFileServiceClient(s.conn).GetFile(t.Context(), &pb.GetFileRequest{Name: "a"})
	if err != nil || f.GetFile().GetSize() != 4<<20 {
		t.Errorf("after the restart: %v, %v", f, err)
	}
	s.signal()
	s.ended(exitOK)
}

func TestListenFailures(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer busy.Close()
	data, _ := layout(t)
	for flag, say := range map[string]string{
		"--listen=" + busy.Addr().String(): "another program listens on " + busy.Addr().String() + " already; stop it or choose another --listen",
		"--listen=256.0.0.1:1":             "cannot listen on 256.0.0.1:1, choose another --listen",
	} {
		if code, _, err := invoke(nil, flag, "--data", data); code != exitError || !strings.Contains(err, say) {
			t.Errorf("%s: exit status %d, %s", flag, code, err)
		}
	}
	if code, _, err := invoke(nil, "--listen=127.0.0.1:0", "--admin-listen="+busy.Addr().String(), "--data", data); code != exitError || !strings.Contains(err, "choose another --admin-listen") {
		t.Errorf("exit status %d, %s", code, err)
	}
	exist(t, data, false)
}

func TestBeyondLoopbackIsWarnedOf(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1": true, "127.1.2.3": true, "::1": true, "0.0.0.0": false, "::": false, "192.0.2.1": false} {
		if got := isLocal(&net.TCPAddr{IP: net.ParseIP(addr)}); got != want {
			t.Errorf("%s is local: %v", addr, got)
		}
	}
	data, device := layout(t)
	s := startServing(t, "--data", data, "--device", "file:"+device+smallQuery, "--listen", "0.0.0.0:0")
	if !strings.Contains(s.said(), "serving beyond this machine without encryption or authentication") {
		t.Errorf("it says nothing of that: %s", s.said())
	}
	s.signal()
	s.ended(exitOK)
}
