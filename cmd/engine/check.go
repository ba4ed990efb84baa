package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

func (a *app) checkCommand() *cobra.Command {
	var readData bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "look for damage in a store that is not served",
		Long: `check holds every record of the metadata against the others and against the devices: references,
counts, checksums of records, write pointers, labels. With --read-data it also reads every stored
block and holds it against its checksum. It changes nothing, and prints a line for each problem.`,
		Args: noArguments,
	}
	resolve := a.settle(cmd, "data", "device", "metadata-limit")
	cmd.Flags().BoolVar(&readData, "read-data", false, "also read all stored data")
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := resolve()
		if err != nil {
			return err
		}
		f, err := openFolder(c, false)
		if err != nil {
			return err
		}
		defer f.close()
		if ok, err := exists(f.metadata()); err != nil {
			return err
		} else if !ok {
			return errdefs.New(errdefs.NotFound, "", "engine.check", f.metadata(),
				fmt.Sprintf("there is no metadata file %s; name the right --data", f.metadata()))
		}
		there, missing, err := f.present()
		if err != nil {
			return err
		}
		if len(there) == 0 {
			return f.lostDevices()
		}
		for _, d := range missing {
			fmt.Fprintf(a.err, "engine: %s\n", lostDevice(d))
		}
		open, err := f.openDevices(there)
		if err != nil {
			return err
		}
		defer closeDevices(open)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		found := 0
		err = engine.Check(ctx, engine.CheckOptions{
			Devices: open, MetadataPath: f.metadata(), MetadataLimit: c.MetadataLimit, ReadData: readData,
		}, func(p engine.Problem) {
			found++
			fmt.Fprintln(a.out, p)
		})
		if err != nil {
			return err
		}
		if found > 0 {
			noun := "problems"
			if found == 1 {
				noun = "problem"
			}
			fmt.Fprintf(a.out, "%d %s found in %s\n", found, noun, c.Data)
			return &problemsError{found}
		}
		_, err = fmt.Fprintf(a.out, "no problems found in %s\n", c.Data)
		return err
	}
	return cmd
}
