package main

import (
	"strings"

	"github.com/spf13/cobra"
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

Each flag can be given as an environment variable too: --dirty-limit is SHINGLE_DIRTY_LIMIT. And in
a YAML file that --config names, as a line: dirty-limit: 512MiB. A flag counts before the variable,
that before the file. Several devices in SHINGLE_DEVICE are on lines of their own, or separated by
spaces; in the file they are a list.

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
		a.formatCommand(), a.checkCommand(), a.configCommand(), a.healthcheckCommand(), a.versionCommand(),
	)
	return root
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
