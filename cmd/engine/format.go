package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/internal/config"
)

func (a *app) formatCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "format",
		Short: "make an empty store",
		Long: `format makes an empty store: the data folder, the device file if it is not there and its size
is given, the labels on the device and the metadata file.

What holds a store already is refused, unless --force says to destroy it. With --force a device
file whose size is given is made anew, whatever it was before.`,
		Args: noArguments,
	}
	resolve := a.settle(cmd, "data", "device", "compression", "metadata-limit")
	cmd.Flags().BoolVar(&force, "force", false, "destroy the store that is there")
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := resolve()
		if err != nil {
			return err
		}
		f, err := openFolder(c, true)
		if err != nil {
			return err
		}
		defer f.close()
		g, err := f.remake(c, force)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.out, "formatted %s (%s)\n", c.Data, config.Describe(g))
		return err
	}
	return cmd
}
