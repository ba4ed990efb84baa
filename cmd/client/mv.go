package main

import (
	"context"
	"path"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

func (a *app) mvCommand() *cobra.Command {
	var keep bool
	var match matchFlag
	cmd := &cobra.Command{
		Use:   "mv SRC... DST",
		Short: "rename files and directories",
		Long: `mv gives files and directories another name, each in one step, and durable with their data
when it exits with 0. A file under the new name is replaced.

If DST ends with "/" or is a directory, things go into it under their own names.`,
		Args: usageArgs(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			return a.mv(cmd.Context(), args[:last], args[last], keep, match)
		},
	}
	cmd.Flags().BoolVarP(&keep, "no-replace", "n", false, "fail if the new name is taken")
	match.flag(cmd, "")
	return cmd
}

func (a *app) mv(ctx context.Context, srcs []string, dst string, keep bool, match matchFlag) error {
	ifMatch, err := match.of(len(srcs) == 1)
	if err != nil {
		return err
	}
	target, into, err := a.target(ctx, dst)
	if err != nil {
		return err
	}
	if len(srcs) > 1 && !into {
		return usagef("%q is not a directory; end it with / to move several things into it", dst)
	}
	b := a.batch(ctx, 1, len(srcs) == 1)
	out := listing[*client.File]{a: a, key: "files", text: func(*client.File) error { return nil }}
	for _, arg := range srcs {
		src, _ := storeName(arg)
		to := target
		if into {
			to = join(target, path.Base(src))
		}
		f, _, err := a.c.Rename(b.ctx, src, to, client.RenameOptions{Replace: !keep, IfMatch: ifMatch})
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
