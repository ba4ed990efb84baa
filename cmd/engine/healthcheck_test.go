package main

import (
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestHealthcheck(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv, h := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(srv, h)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	_, port, err := net.SplitHostPort(lis.Addr().String())
	must(t, err)
	for _, addr := range []string{lis.Addr().String(), ":" + port, "0.0.0.0:" + port} {
		if code, out, err := invoke(nil, "healthcheck", "--listen", addr); code != exitOK || out != "SERVING\n" || err != "" {
			t.Errorf("%s: exit status %d, %s%s", addr, code, out, err)
		}
	}
	env := map[string]string{"SHINGLE_LISTEN": lis.Addr().String()}
	if code, _, err := invoke(env, "healthcheck"); code != exitOK {
		t.Errorf("by the variable: exit status %d, %s", code, err)
	}
	h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	if code, out, err := invoke(env, "healthcheck"); code != exitError || out != "" || !strings.Contains(err, "says NOT_SERVING: it is starting or stopping") {
		t.Errorf("not serving: exit status %d, %s%s", code, out, err)
	}
	srv.Stop()
	<-done
	if code, _, err := invoke(env, "healthcheck"); code != exitError || !strings.Contains(err, "no answer from "+lis.Addr().String()) {
		t.Errorf("nobody there: exit status %d, %s", code, err)
	}
}

func TestHealthAddress(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:7411": "127.0.0.1:7411", "0.0.0.0:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "[::]:1": "[::1]:1", "[::1]:1": "[::1]:1",
		"192.0.2.1:1": "192.0.2.1:1", "store:1": "store:1", "unix:///run/s": "unix:/run/s",
	} {
		if got, err := healthAddress(listen); err != nil || got != want {
			t.Errorf("%s is asked on %s, %v; want %s", listen, got, err, want)
		}
	}
	if code, _, err := invoke(nil, "healthcheck", "--listen", "127.0.0.1:0"); code != exitUsage || !strings.Contains(err, "is any free port") {
		t.Errorf("any port: exit status %d, %s", code, err)
	}
}
