package main

import (
	"context"
	"path"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

func (a *app) cloneCommand() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "clone SRC... DST",
		Short: "copy files without copying their data",
		Long: `clone makes copies of files that share what is stored with them, as cp --reflink does: at once,
whatever their size, and without taking space. What is written to either afterwards is its own.
Each copy is of one moment, and durable when clone exits with 0. A file under the new name is
replaced.

If DST ends with "/" or is a directory, copies go into it under their own names.

JSON: {"files": [...]}, the copies.`,
		Args: usageArgs(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			return a.clone(cmd.Context(), args[:last], args[last], keep)
		},
	}
	cmd.Flags().BoolVarP(&keep, "no-replace", "n", false, "fail if the new name is taken")
	return cmd
}

func (a *app) clone(ctx context.Context, srcs []string, dst string, keep bool) error {
	target, into, err := a.target(ctx, dst)
	if err != nil {
		return err
	}
	if len(srcs) > 1 && !into {
		return usagef("%q is not a directory; end it with / to put several copies into it", dst)
	}
	b := a.batch(ctx, 1, len(srcs) == 1)
	out := listing[*client.File]{a: a, key: "files", text: func(*client.File) error { return nil }}
	for _, arg := range srcs {
		src, _ := storeName(arg)
		to := target
		if into {
			to = join(target, path.Base(src))
		}
		f, _, err := a.c.Clone(b.ctx, src, to, client.CloneOptions{Replace: !keep})
		if err != nil {
			b.fail(src, err)
			continue
		}
		if err := out.add(f, toJSON(f)); err != nil {
			return err
		}
	}
	if err := b.wait(ctx); err != nil {
		return err
	}
	return out.end()
}
