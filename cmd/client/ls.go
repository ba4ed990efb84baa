package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

func (a *app) lsCommand() *cobra.Command {
	var long, recursive bool
	cmd := &cobra.Command{
		Use:   "ls [NAME...]",
		Short: "list directories",
		Long: `ls lists the entries of directories, the root if none is named, in byte order. Directories
have a "/" at their end. A name that is a file is listed itself. With -l each line has the
size, what is stored of it, the time of last change, and the name.

JSON: {"files": [...]} with full names.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{""}
			}
			return a.ls(cmd.Context(), args, long, recursive)
		},
	}
	cmd.Flags().BoolVarP(&long, "long", "l", false, "sizes and times too")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "everything below too")
	return cmd
}

func (a *app) ls(ctx context.Context, args []string, long, recursive bool) error {
	dir := ""
	out := listing[*client.File]{a: a, key: "files", text: func(f *client.File) error {
		name := strings.TrimPrefix(f.GetName(), dir)
		if isDirectory(f) {
			name += "/"
		}
		if !long {
			_, err := fmt.Fprintln(a.out, name)
			return err
		}
		_, err := fmt.Fprintf(a.out, "%9s  %9s  %s  %s\n", size(f.GetSize()), size(f.GetStoredBytes()),
			changed(f).Local().Format("2006-01-02 15:04:05"), name)
		return err
	}}
	for i, arg := range args {
		name, _ := storeName(arg)
		dir = ""
		if name != "" {
			f, err := a.c.Stat(ctx, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if !isDirectory(f) {
				if err := out.add(f, toJSON(f)); err != nil {
					return err
				}
				continue
			}
			dir = name + "/"
		}
		if len(args) > 1 && a.output == "text" {
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			fmt.Fprintf(a.out, "%s/:\n", name)
		}
		for f, err := range a.c.List(ctx, name, client.ListOptions{Recursive: recursive}) {
			switch {
			case err != nil && name == "":
				return err // nothing to name
			case err != nil:
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := out.add(f, toJSON(f)); err != nil {
				return err
			}
		}
	}
	return out.end()
}
