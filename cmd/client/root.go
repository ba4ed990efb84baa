package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

const (
	addrEnv     = "SHINGLE_ADDR"
	defaultAddr = "127.0.0.1:7411"
)

// app is one run of the program: its global flags and its connection.
type app struct {
	streams
	env func(string) string

	addr    string
	timeout time.Duration
	output  string
	quiet   bool

	c      *client.Client
	cancel context.CancelFunc
}

const rootHelp = `client speaks to a Shingle engine.

Names in the store are paths without a leading slash: docs/2026/report.pdf

Exit status:
  0  ok
  1  error
  2  usage: the command line makes no sense
  3  not found
  4  data loss: stored bytes fail their checksum
  5  unavailable: no engine answers, or it is going down
  6  status: something is wrong
scrub has those of btrfs scrub: 1 error, 2 nothing to resume, 3 something could not be corrected.
When several files are concerned, the gravest of 4, 5, 3, 1 wins.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "client",
		Short:         "speak to a Shingle engine",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usagef("name a command")
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%v", err) })
	addr := a.env(addrEnv)
	if addr == "" {
		addr = defaultAddr
	}
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", addr, "engine's address: host:port, dns:///host:port or unix:/path (environment: "+addrEnv+")")
	f.DurationVar(&a.timeout, "timeout", 0, "give up after so long; 0: never")
	f.StringVar(&a.output, "output", "text", "text or json: one document with sizes in bytes")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "say nothing but errors and what was asked for")
	root.AddCommand(
		a.putCommand(), a.getCommand(), a.catCommand(), a.writeCommand(), a.truncateCommand(), a.punchCommand(), a.lsCommand(), a.statCommand(), a.rmCommand(),
		a.mvCommand(), a.cloneCommand(), a.mapCommand(), a.syncCommand(), a.dfCommand(), a.zonesCommand(), a.trimCommand(),
		a.infoCommand(), a.reclaimCommand(), a.scrubCommand(), a.deviceCommand(), a.duCommand(), a.sumCommand(), a.verifyCommand(),
		a.statusCommand(), a.versionCommand(),
	)
	root.SetHelpCommand(helpCommand())
	a.completion(root)
	return root
}

// prepare checks the global flags and makes the client; nothing is sent yet.
func (a *app) prepare(cmd *cobra.Command) error {
	if a.output != "text" && a.output != "json" {
		return usagef("--output %q: text or json", a.output)
	}
	if a.timeout < 0 {
		return usagef("--timeout %v is negative", a.timeout)
	}
	c, err := client.Dial(a.addr)
	if err != nil {
		return usagef("%v", err)
	}
	a.c = c
	if a.timeout > 0 {
		ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
		a.cancel = cancel
		cmd.SetContext(ctx)
	}
	return nil
}

func (a *app) close() {
	if a.cancel != nil {
		a.cancel()
	}
	if a.c != nil {
		_ = a.c.Close()
	}
}

// warn tells people of something that does not stop the work.
func (a *app) warn(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.err, "client: "+format+"\n", args...)
	}
}
