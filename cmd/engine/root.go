package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/internal/config"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// app is one run of the program.
type app struct {
	streams
	env func(string) (string, bool)
}

const rootHelp = `engine serves a Shingle store over gRPC. Without a command it serves.

On its first start in an empty data folder it makes the store; with no drive named it also makes
an emulated zoned device in a file there. A store may lie on several devices: give each with a
--device of its own, in any order, and with --copies 2 it survives the loss of one.

SIGTERM or SIGINT stop it in order, a second one at once: nothing that was synced is lost either way.

Each flag can be given as an environment variable too: --dirty-limit is SHINGLE_DIRTY_LIMIT. A
flag counts before the variable. Several devices in SHINGLE_DEVICE are on lines of their own, or
separated by spaces.

Exit status:
  0  ok
  1  error
  2  usage: the command line makes no sense
  4  check found problems`

func (a *app) root() *cobra.Command {
	root := a.serveCommand("engine", rootHelp)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%v", err) })
	root.AddCommand(
		a.serveCommand("serve", "serve serves the store in the data folder until it is told to stop."),
		a.formatCommand(), a.checkCommand(), a.versionCommand(),
	)
	return root
}

// settle gives cmd a flag for each setting and returns what resolves them once it runs.
func (a *app) settle(cmd *cobra.Command, names ...string) func() (config.Config, error) {
	settings := config.Settings(names...)
	flags := cmd.Flags()
	for _, s := range settings {
		usage := s.Usage + " [" + s.Env() + "]"
		switch {
		case s.Switch:
			flags.Bool(s.Name, false, usage)
		case s.Many:
			flags.StringArray(s.Name, nil, usage)
		default:
			flags.String(s.Name, s.Default, usage)
		}
	}
	return func() (config.Config, error) {
		flag := func(name string) (string, bool) {
			value := flags.Lookup(name).Value.String()
			if many, err := flags.GetStringArray(name); err == nil {
				value = strings.Join(many, "\n")
			}
			return value, flags.Changed(name)
		}
		c, err := config.Resolve(settings, flag, a.env)
		if err != nil {
			return c, usagef("%s", errdefs.Sentence(err))
		}
		return c, nil
	}
}

// noArguments makes cobra's complaint about arguments a usage error.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		return usagef("%q is no command; see `%s --help`", args[0], cmd.CommandPath())
	}
	return usagef("%q: %s takes no arguments; see `%s --help`", strings.Join(args, " "), cmd.CommandPath(), cmd.CommandPath())
}
