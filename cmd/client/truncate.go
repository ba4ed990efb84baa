package main

import (
	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// cut is what truncate and punch answer: the file and what came back.
type cut struct {
	fileJSON
	Freed   int64 `json:"freed_bytes"`
	Pending int64 `json:"pending_bytes"`
}

func cutToJSON(f *client.File, freed *client.Freed) cut {
	return cut{toJSON(f), freed.GetFreedBytes(), freed.GetPendingBytes()}
}

func (a *app) truncateCommand() *cobra.Command {
	var to byteValue
	var match matchFlag
	cmd := &cobra.Command{
		Use:   "truncate --size SIZE NAME...",
		Short: "set the size of files",
		Long: `truncate cuts files off, or extends them by a hole that reads as zeros, durably. It works on a
full store. A missing file is an error.

A size is bytes, or ends in K, M, G, T (powers of 1024) or KB, MB (powers of 1000).`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !to.set {
				return usagef("give --size; 0 empties the file")
			}
			n, err := to.signed("--size")
			if err != nil {
				return err
			}
			ifMatch, err := match.of(len(args) == 1)
			if err != nil {
				return err
			}
			return a.cutFiles(args, func(name string) (*client.File, *client.Freed, error) {
				return a.c.Truncate(cmd.Context(), name, n, ifMatch)
			})
		},
	}
	cmd.Flags().VarP(&to, "size", "s", "the new size")
	match.flag(cmd, "")
	return cmd
}

func (a *app) punchCommand() *cobra.Command {
	var offset, length byteValue
	var match matchFlag
	cmd := &cobra.Command{
		Use:   "punch --length SIZE NAME...",
		Short: "turn a range of files into a hole",
		Long: `punch turns a range of files into a hole, as fallocate --punch-hole does: it reads as zeros, and
whole blocks of 4 KiB give their space back, durably. The size of a file stays; what lies past its end
is nothing. It works on a full store.

Sizes are bytes, or end in K, M, G, T (powers of 1024) or KB, MB (powers of 1000).`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if length.n == 0 {
				return usagef("give --length, at least 1")
			}
			off, err := offset.signed("--offset")
			if err != nil {
				return err
			}
			n, err := length.signed("--length")
			if err != nil {
				return err
			}
			ifMatch, err := match.of(len(args) == 1)
			if err != nil {
				return err
			}
			return a.cutFiles(args, func(name string) (*client.File, *client.Freed, error) {
				return a.c.Deallocate(cmd.Context(), name, off, n, ifMatch)
			})
		},
	}
	cmd.Flags().VarP(&offset, "offset", "o", "first byte (default 0)")
	cmd.Flags().VarP(&length, "length", "l", "how many bytes")
	match.flag(cmd, "")
	return cmd
}

// cutFiles does to each file what f does, in order, and stops at the first that fails.
func (a *app) cutFiles(args []string, f func(name string) (*client.File, *client.Freed, error)) error {
	out := listing[cut]{a: a, key: "files", text: func(cut) error { return nil }}
	for _, arg := range args {
		name, _ := storeName(arg)
		file, freed, err := f(name)
		if err != nil {
			return named(name, err)
		}
		j := cutToJSON(file, freed)
		if err := out.add(j, j); err != nil {
			return err
		}
	}
	return out.end()
}
