package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

func (a *app) catCommand() *cobra.Command {
	var offset, length int64
	cmd := &cobra.Command{
		Use:   "cat NAME...",
		Short: "print files, or a range of them",
		Long: `cat prints files one after the other to standard output.

If stored bytes fail their checksum, the good ones before them are printed and cat exits
with 4.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := client.ReadOptions{Offset: offset}
			if cmd.Flags().Changed("length") {
				o.Length = &length
			}
			if offset < 0 || length < 0 {
				return usagef("--offset and --length must not be negative")
			}
			return a.cat(cmd.Context(), args, o)
		},
	}
	cmd.Flags().Int64Var(&offset, "offset", 0, "first byte")
	cmd.Flags().Int64Var(&length, "length", 0, "at most so many bytes of each; default all")
	return cmd
}

func (a *app) cat(ctx context.Context, names []string, o client.ReadOptions) error {
	for _, arg := range names {
		name, _ := storeName(arg)
		r, err := a.c.Read(ctx, name, o)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		_, err = r.WriteTo(a.out)
		_ = r.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
