package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// written is what write answers.
type written struct {
	fileJSON
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"written_bytes"`
}

func (a *app) writeCommand() *cobra.Command {
	var offset byteValue
	var o client.WriteOptions
	var match matchFlag
	cmd := &cobra.Command{
		Use:   "write NAME",
		Short: "write standard input into a file, in place",
		Long: `write writes standard input into a file from an offset on. What was there before and is not
written over stays; past the end of the file lies a hole. The file is made if it is missing.

Bytes are visible as the engine receives them, and stay so when write fails half-way. With --sync
they are durable when it exits with 0; without, after sync or some seconds later. put replaces a file
whole instead.

An offset is bytes, or ends in K, M, G, T (powers of 1024) or KB, MB (powers of 1000).`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Offset, err = offset.signed("--offset"); err != nil {
				return err
			}
			if o.IfMatch, err = match.conditions(); err != nil {
				return err
			}
			return a.write(cmd.Context(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.VarP(&offset, "offset", "o", "where in the file the first byte goes (default 0)")
	f.BoolVar(&o.Sync, "sync", false, "make what is written durable")
	f.BoolVar(&o.MustExist, "must-exist", false, "fail if the file is missing")
	match.flag(cmd, "there must be no such file")
	return cmd
}

func (a *app) write(ctx context.Context, arg string, o client.WriteOptions) error {
	name, folder := storeName(arg)
	if folder {
		return usagef("%q is a directory; name a file", arg)
	}
	p := a.progress()
	err := a.writeFrom(ctx, name, o, p)
	p.done()
	return err
}

// writeFrom sends standard input and answers.
func (a *app) writeFrom(ctx context.Context, name string, o client.WriteOptions, p *progress) error {
	w, err := a.c.Write(ctx, name, o)
	if err != nil {
		return named(name, err)
	}
	n, err := w.ReadFrom(&counting{Reader: a.in, p: p})
	if err != nil {
		w.Abort()
		return named(name, pathless(err))
	}
	if err := w.Close(); err != nil {
		return named(name, err)
	}
	return a.answer(written{toJSON(w.File()), o.Offset, n}, noText)
}
