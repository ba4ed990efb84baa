package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// helpCommand is cobra's, but that a command which does not exist is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "explain a command",
		Long:  "help explains a command, as --help behind it does.",
		// Nothing is asked of an engine, so a bad address is no matter here.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			at, _, err := cmd.Root().Find(args)
			if err != nil || at == nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, c := range at.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || about == nil || len(rest) > 0 {
				return usagef("%q is no command; see `%s --help`", strings.Join(args, " "), cmd.Root().Name())
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}
