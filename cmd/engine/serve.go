package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/shingle-store/shingle/internal/config"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/reclaim"
	"github.com/shingle-store/shingle/internal/server"
	"github.com/shingle-store/shingle/internal/telemetry"
)

func (a *app) serveCommand(name, help string) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: "serve a store over gRPC", Long: help, Args: noArguments}
	resolve := a.settle(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := resolve()
		if err != nil {
			return err
		}
		// Room for two: the second one must be seen while the first is being obeyed.
		signals := make(chan os.Signal, 2)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
		return a.serve(c, signals)
	}
	return cmd
}

// service is a run of the engine.
type service struct {
	c      config.Config
	log    *slog.Logger
	server *server.Server
	grpc   *grpc.Server
	admin  *admin
	engine *engine.Engine
	shown  *telemetry.Telemetry
	fresh  bool       // the store was made by this run
	what   string     // the devices, in a few words
	failed chan error // a listener broke
	ended  chan struct{}
}

// serve runs the engine until a signal, and then stops it in order.
func (a *app) serve(c config.Config, signals <-chan os.Signal) (err error) {
	s := &service{c: c, failed: make(chan error, 2), ended: make(chan struct{})}
	defer close(s.ended)
	s.log = slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: c.LogLevel}))
	// The port first: two engines started by mistake must not make two stores.
	lis, err := listen("--listen", c.Listen)
	if err != nil {
		return err
	}
	defer lis.Close()
	if !isLocal(lis.Addr()) {
		s.log.Warn("serving beyond this machine without encryption or authentication; keep --listen on a loopback address unless the network is yours", "listen", c.Listen)
	}
	limited := limitConnections(lis, c.MaxConnections, s.log)
	version, revision := build()
	s.shown = telemetry.New(version, revision)
	o := server.Options{
		Version: version, Revision: revision, Logger: s.log, Now: time.Now,
		Metrics: server.NewMetrics(), MaxCalls: c.MaxCalls,
	}
	s.shown.Register(limited, o.Metrics)
	if c.AdminListen != "" {
		admin, err := listen("--admin-listen", c.AdminListen)
		if err != nil {
			return err
		}
		if !isLocal(admin.Addr()) {
			s.log.Warn("admin pages are open to the network", "admin-listen", c.AdminListen)
		}
		s.log.Info("admin pages on " + addressOf(admin.Addr()))
		s.admin = newAdmin(s.shown.Handler())
		defer s.admin.close()
		go func() { s.failed <- s.admin.serve(admin) }()
	}
	f, err := openFolder(c, true)
	if err != nil {
		return err
	}
	defer f.close()
	s.server = server.New(nil, o)
	var extra []grpc.ServerOption
	if c.OTLPEndpoint != "" {
		t, err := newTracing(c.OTLPEndpoint, version, s.log)
		if err != nil {
			return fmt.Errorf("no traces can be sent to %s, choose another --otlp-endpoint: %w", c.OTLPEndpoint, err)
		}
		defer t.close()
		extra = append(extra, t.option())
	}
	s.grpc = server.NewGRPC(o, extra...)
	s.server.Register(s.grpc)
	go func() { s.failed <- s.grpc.Serve(limited) }()
	defer s.grpc.Stop()

	stopped, err := s.open(f, signals)
	if err != nil || stopped {
		return err
	}
	line := s.ready(addressOf(lis.Addr()), f)
	if _, err = fmt.Fprintln(a.out, line); err == nil {
		select {
		case sig := <-signals:
			s.log.Info("stopping: no new work is taken; a second signal ends at once", "signal", sig.String())
		case err = <-s.failed:
		}
	}
	go s.exitOnSignal(signals)
	if serr := s.stop(); err == nil {
		err = serr
	}
	return err
}

// exitOnSignal ends the process at the next signal, unless the run ends before. What was synced is
// safe: it is as a crash.
func (s *service) exitOnSignal(signals <-chan os.Signal) {
	select {
	case sig := <-signals:
		s.log.Warn("ended at once by a second signal: what was received and not synced may be lost, what was synced is safe", "signal", sig.String())
		os.Exit(exitError)
	case <-s.ended:
	}
}

// open opens the engine while health checks hear NOT_SERVING. A signal before that is done ends it,
// and stopped is true: recovery writes nothing that a crash could hurt.
func (s *service) open(f *folder, signals <-chan os.Signal) (stopped bool, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.openEngine(ctx, f) }()
	select {
	case err = <-done:
		if err != nil {
			return false, err
		}
	case <-signals:
		stopped = true
	case err = <-s.failed:
		stopped = true
	}
	if stopped {
		cancel()
		go s.exitOnSignal(signals)
		oerr := <-done
		if oerr == nil {
			oerr = s.engine.Close(context.Background())
		}
		if err == nil && !errors.Is(oerr, context.Canceled) {
			err = oerr
		}
		return true, err
	}
	s.server.Attach(s.engine)
	s.shown.Attach(s.engine)
	s.setServing(true)
	return false, nil
}

func (s *service) openEngine(ctx context.Context, f *folder) error {
	open, fresh, err := f.prepare(s.c, func(what string) { s.log.Warn(what) })
	if err != nil {
		return err
	}
	s.fresh, s.what = fresh, config.Describe(geometries(open)...)
	s.engine, err = engine.Open(ctx, engine.Options{
		Devices: open, OpenDevice: openNamed, MetadataPath: f.metadata(), MetadataLimit: s.c.MetadataLimit, Compression: s.c.Compression,
		NoDelalloc: s.c.NoDelalloc, DirtyLimit: s.c.DirtyLimit, ReadLimit: s.c.ReadLimit, ScrubMemory: s.c.ScrubMemory, MaxWait: s.c.MaxWait,
		Reclaim: reclaim.Options{Threshold: s.c.ReclaimThreshold, Busy: s.c.ReclaimPace},
		Now:     time.Now, Random: rand.Reader, Logger: s.log,
	})
	if err != nil {
		return err
	}
	if has := s.engine.Info().Copies; has != 0 && s.c.Copies != 0 && has != s.c.Copies {
		if err := s.engine.Close(context.Background()); err != nil {
			return err
		}
		return errdefs.New(errdefs.Precondition, "", "engine.open", f.path, fmt.Sprintf(
			"--copies %d was asked for, but the store in %s was made with %d; leave --copies out", s.c.Copies, f.path, has))
	}
	return nil
}

func (s *service) setServing(ok bool) {
	s.server.SetServing(ok)
	if s.admin != nil {
		s.admin.serving.Store(ok)
	}
}

// ready is the line that says where to find what.
func (s *service) ready(addr string, f *folder) string {
	what := s.what
	if s.fresh {
		what = "new store, " + what
	}
	var notes strings.Builder
	if s.engine.Info().ReadOnly {
		notes.WriteString("; read-only")
	}
	bad := 0
	for _, c := range s.engine.Conditions() {
		if c.Severity > engine.Info {
			bad++
		}
	}
	switch {
	case bad == 1:
		notes.WriteString("; 1 thing needs attention: see `client status`")
	case bad > 1:
		fmt.Fprintf(&notes, "; %d things need attention: see `client status`", bad)
	}
	return fmt.Sprintf("serving on %s, data in %s (%s)%s", addr, f.path, what, notes.String())
}

// stop ends the run in order: no new work, calls under way end or are ended, everything received
// becomes durable.
func (s *service) stop() error {
	s.setServing(false)
	s.engine.Draining()
	s.server.Drain()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.grpc.GracefulStop()
	}()
	t := time.NewTimer(s.c.DrainTimeout)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		s.log.Warn("calls still under way are ended", "drain-timeout", s.c.DrainTimeout)
		s.grpc.Stop()
		<-ended
	}
	return s.engine.Close(context.Background())
}
