package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}, os.Getenv, os.Args[1:])
	stop()
	os.Exit(code)
}

// streams are where a run reads from and writes to.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run is the whole program: it parses args, carries out one verb and returns the exit status.
func run(ctx context.Context, io streams, env func(string) string, args []string) int {
	a := &app{streams: io, env: env}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	a.close()
	return a.explain(cmd, err)
}
