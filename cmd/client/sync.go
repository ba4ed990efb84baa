package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// synced is what sync answers.
type synced struct {
	BootID         string `json:"boot_id"`
	CommitSequence int64  `json:"commit_sequence"`
}

// bootID prints the identity of a run of the engine: 16 hexadecimal digits, as a string in
// JSON, whose numbers many readers cut to 53 bits.
func bootID(id uint64) string { return fmt.Sprintf("%016x", id) }

func (a *app) syncCommand() *cobra.Command {
	var boot string
	cmd := &cobra.Command{
		Use:   "sync [NAME...]",
		Short: "make files, or the whole store, durable",
		Long: `sync makes everything that the engine received before it durable: of the files named, or of
the whole store. With --boot-id it fails if the engine was restarted since that run, which may
have received bytes and lost them.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o := client.SyncOptions{}
			if boot != "" {
				id, err := strconv.ParseUint(boot, 16, 64)
				if err != nil {
					return usagef("--boot-id %q: 16 hexadecimal digits, as info prints them", boot)
				}
				o.BootID = id
			}
			for _, arg := range args {
				name, _ := storeName(arg)
				o.Names = append(o.Names, name)
			}
			r, err := a.c.Sync(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.answer(synced{bootID(r.BootID), r.CommitSequence}, noText)
		},
	}
	cmd.Flags().StringVar(&boot, "boot-id", "", "run of the engine that received the bytes")
	return cmd
}
