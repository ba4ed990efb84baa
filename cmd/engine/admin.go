package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/reflection"
)

// admin is what operators ask, on a listener of its own: /metrics, /healthz, /readyz and pprof over
// HTTP, channelz and reflection over gRPC.
type admin struct {
	serving atomic.Bool
	http    *http.Server
	grpc    *grpc.Server
}

func newAdmin(metrics http.Handler) *admin {
	a := &admin{grpc: grpc.NewServer()}
	channelz.RegisterChannelzServiceToServer(a.grpc)
	reflection.Register(a.grpc)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	a.http = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Protocols:         new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
				a.grpc.ServeHTTP(w, r)
				return
			}
			mux.ServeHTTP(w, r)
		}),
	}
	a.http.Protocols.SetHTTP1(true)
	a.http.Protocols.SetUnencryptedHTTP2(true)
	return a
}

// healthz answers for as long as the process does: an engine that is opening a large store after a
// crash must not be killed for it.
func healthz(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("OK\n")) }

// readyz says what a gRPC health check hears.
func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if a.serving.Load() {
		_, _ = w.Write([]byte("SERVING\n"))
		return
	}
	http.Error(w, "NOT_SERVING", http.StatusServiceUnavailable)
}

// serve answers on lis until close.
func (a *admin) serve(lis net.Listener) error {
	if err := a.http.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// close ends serve and every call at once.
func (a *admin) close() {
	_ = a.http.Close()
	a.grpc.Stop()
}
