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
		Long: `format makes an empty store: the data folder, the device files that are not there and whose size
is given, the labels on the devices and the metadata file. It says how much can be stored.

With --copies 2 each byte is kept twice, on different devices if there are several: then as much can be
stored as finds room on two of them, so of two devices the size of the smaller one counts. On one device
the second copy guards against bad blocks only.

What holds a store already is refused, unless --force says to destroy it. With --force a device
file whose size is given is made anew, whatever it was before.`,
		Args: noArguments,
	}
	resolve := a.settle(cmd, "data", "device", "copies", "compression", "metadata-limit")
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
		devices, room, err := f.remake(c, force)
		if err != nil {
			return err
		}
		twice := ""
		if c.Copies == 2 {
			twice = ", each byte twice"
		}
		_, err = fmt.Fprintf(a.out, "formatted %s (%s): %s can be stored%s\n", c.Data, config.Describe(devices...), config.AboutSize(room), twice)
		return err
	}
	return cmd
}
