package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

const (
	// completionWait is how long somebody who has pressed Tab waits for an engine.
	completionWait = 2 * time.Second
	// completionMost is how many names of a directory are looked at.
	completionMost = 5000
)

// takesNames are the verbs all of whose arguments are names in the store.
var takesNames = []string{"cat", "ls", "stat", "rm", "mv", "clone", "map", "sync", "write", "truncate", "punch", "du", "sum"}

// completion makes cobra's command, which refuses a shell that it does not know, and completes names.
func (a *app) completion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch {
		case c.Name() == "completion":
			c.Short = "print what completes verbs, flags and names in a shell"
			c.Long = `completion prints a script for a shell, which completes verbs, flags and the names in the store: the
help of each says how to load it.`
			c.Args = noArguments
			c.RunE = func(cmd *cobra.Command, _ []string) error {
				_ = cmd.Help()
				return usagef("name a shell")
			}
		case slices.Contains(takesNames, c.Name()):
			c.ValidArgsFunction = a.completeName
		}
	}
}

// completeName lists what a name that has been begun may go on with.
func (a *app) completeName(_ *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := client.Dial(a.addr) // --addr is known only now
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), completionWait)
	defer cancel()
	rest := strings.TrimLeft(begun, "/")
	root := begun[:len(begun)-len(rest)] // slashes at the start stay as they were typed
	dir := ""
	if i := strings.LastIndexByte(rest, '/'); i >= 0 {
		dir = rest[:i]
	}
	var names []cobra.Completion
	seen := 0
	for f, err := range c.List(ctx, dir, client.ListOptions{}) {
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		if seen++; seen > completionMost {
			break
		}
		name := f.GetName()
		if isDirectory(f) {
			name += "/"
		}
		if strings.HasPrefix(name, rest) {
			names = append(names, root+name)
		}
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "/") }) {
		directive |= cobra.ShellCompDirectiveNoSpace // there is more behind it
	}
	return names, directive
}
