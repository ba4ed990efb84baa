package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// healthTime is how long an engine may take to say how it is.
const healthTime = 5 * time.Second

func (a *app) healthcheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "ask the engine that serves whether it is well",
		Long: `healthcheck asks the engine that listens on --listen, on this machine, whether it serves: for
containers, which have no other program to ask with. It exits with 0 if it does, and with 1 if it
is starting or stopping, or does not answer within 5 s.`,
		Args: noArguments,
	}
	resolve := a.settle(cmd, "listen")
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := resolve()
		if err != nil {
			return err
		}
		addr, err := healthAddress(c.Listen)
		if err != nil {
			return err
		}
		said, err := askHealth(addr)
		if err != nil {
			return err
		}
		if said != healthpb.HealthCheckResponse_SERVING {
			return errdefs.New(errdefs.Unavailable, "", "engine.healthcheck", addr, fmt.Sprintf("the engine on %s says %s: it is starting or stopping", addr, said))
		}
		_, err = fmt.Fprintln(a.out, said)
		return err
	}
	return cmd
}

// healthAddress is where an engine that was told to listen on an address is reached from its own
// machine.
func healthAddress(listen string) (string, error) {
	if path, ok := strings.CutPrefix(listen, unixScheme); ok {
		return "unix:" + path, nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", usagef("--listen: %v", err)
	}
	if port == "0" {
		return "", usagef("--listen %s is any free port: name the one that the engine said it serves on", listen)
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		if host = "127.0.0.1"; ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port), nil
}

func askHealth(addr string) (healthpb.HealthCheckResponse_ServingStatus, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), healthTime)
	defer cancel()
	r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return 0, errdefs.New(errdefs.Unavailable, "", "engine.healthcheck", addr, fmt.Sprintf("no answer from %s: %s", addr, status.Convert(err).Message()))
	}
	return r.GetStatus(), nil
}
