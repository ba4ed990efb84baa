package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// reclaimedJSON is what reclaim answers.
type reclaimedJSON struct {
	State             string `json:"state"`
	BytesFreed        int64  `json:"bytes_freed"`
	BytesRelocated    uint64 `json:"bytes_relocated"`
	BytesDropped      uint64 `json:"bytes_dropped"`
	ZonesReset        uint64 `json:"zones_reset"`
	PendingResets     uint64 `json:"pending_resets"`
	BlockGroups       uint64 `json:"block_groups"`
	BlockGroupsTotal  uint64 `json:"block_groups_total"`
	FailedBlockGroups uint64 `json:"failed_block_groups"`
	BadBlocks         uint64 `json:"bad_blocks"`
	FirstError        string `json:"first_error,omitempty"`
	DryRun            bool   `json:"dry_run"`
}

func reclaimedToJSON(r *client.Reclaimed, dry bool) reclaimedJSON {
	state := strings.TrimPrefix(r.GetState().String(), "MAINTENANCE_STATE_")
	return reclaimedJSON{
		State: strings.ToLower(state), BytesFreed: r.GetBytesFreed(), BytesRelocated: r.GetBytesRelocated(),
		BytesDropped: r.GetBytesDropped(), ZonesReset: r.GetZonesReset(), PendingResets: r.GetPendingResets(),
		BlockGroups: r.GetBlockGroupsDone(), BlockGroupsTotal: r.GetBlockGroupsTotal(),
		FailedBlockGroups: r.GetFailedBlockGroups(), BadBlocks: r.GetBadBlocks(), FirstError: r.GetFirstError(), DryRun: dry,
	}
}

func (a *app) reclaimCommand() *cobra.Command {
	var o client.ReclaimOptions
	var threshold, target string
	cmd := &cobra.Command{
		Use:   "reclaim [BLOCK-GROUP...]",
		Short: "give unusable space back by moving live data together",
		Long: `reclaim empties block groups of which much is dead: what is live in them is verified and
stored elsewhere, and their zones are reset. The engine does so by itself when it has to; this
does it now, for all block groups that are dead enough or for those named (see zones). Reads and
writes go on meanwhile. Interrupted, it says what was done by then, which stays done.

A bad block is left where it is and reported; info shows which files are concerned.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("threshold") {
				n, err := strconv.ParseUint(strings.TrimSuffix(threshold, "%"), 10, 32)
				if err != nil || n > 100 {
					return usagef("--threshold %q: a percentage from 0 to 100", threshold)
				}
				share := uint32(n)
				o.Threshold = &share
			}
			if target != "" {
				n, err := bytesOf(target)
				if err != nil {
					return usagef("--target %q: %v", target, err)
				}
				o.Target = n
			}
			for _, arg := range args {
				n, err := strconv.ParseUint(arg, 10, 32)
				if err != nil {
					return usagef("%q is no number of a block group", arg)
				}
				o.BlockGroups = append(o.BlockGroups, uint32(n))
			}
			if f, ok := a.err.(*os.File); ok && !a.quiet && term.IsTerminal(int(f.Fd())) {
				o.Progress = func(r *client.Reclaimed) { fmt.Fprint(f, "\r\x1b[K"+reclaimLine(r)) }
				defer fmt.Fprint(f, "\r\x1b[K")
			}
			r, err := a.c.Reclaim(cmd.Context(), o)
			if r == nil {
				return err
			}
			if o.Progress != nil {
				fmt.Fprint(a.err, "\r\x1b[K")
			}
			j := reclaimedToJSON(r, o.DryRun)
			aerr := a.answer(j, func(w io.Writer) error {
				if a.quiet {
					return nil
				}
				_, err := fmt.Fprintln(w, reclaimText(j))
				return err
			})
			if err == nil && r.GetState() == shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE_WITH_ERRORS {
				err = errors.New(r.GetFirstError())
			}
			return errors.Join(err, aerr)
		},
	}
	f := cmd.Flags()
	f.StringVar(&threshold, "threshold", "", "only block groups of which so many percent are unusable; 0: any (default: as the engine does by itself)")
	f.StringVar(&target, "target", "", "stop when so much was given back: a size, as 512MiB")
	f.BoolVarP(&o.DryRun, "dry-run", "n", false, "change nothing, and say what would be done")
	return cmd
}

// bytesOf reads a size: a whole number of bytes, or with KiB, MiB, GiB or TiB right behind it.
func bytesOf(s string) (int64, error) {
	number, unit := s, int64(1)
	for i, name := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n, ok := strings.CutSuffix(s, name); ok {
			number, unit = n, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, errors.New("a whole number of bytes, KiB, MiB, GiB or TiB")
	}
	return n * unit, nil
}

// reclaimLine is the progress.
func reclaimLine(r *client.Reclaimed) string {
	return fmt.Sprintf("%d of %d block groups, %s moved, %s freed", r.GetBlockGroupsDone(), r.GetBlockGroupsTotal(),
		size(r.GetBytesRelocated()), size(r.GetBytesFreed()))
}

func reclaimText(j reclaimedJSON) string {
	if j.DryRun {
		return fmt.Sprintf("would free %s in %d block groups", size(j.BytesFreed), j.BlockGroupsTotal)
	}
	parts := []string{fmt.Sprintf("freed %s: moved %s out of %d of %d block groups, reset %d zones",
		size(j.BytesFreed), size(j.BytesRelocated), j.BlockGroups, j.BlockGroupsTotal, j.ZonesReset)}
	if j.BytesDropped > 0 {
		parts = append(parts, size(j.BytesDropped)+" died meanwhile")
	}
	if j.PendingResets > 0 {
		parts = append(parts, fmt.Sprintf("%d zones are still to be reset", j.PendingResets))
	}
	if j.FailedBlockGroups > 0 {
		parts = append(parts, fmt.Sprintf("%d block groups could not be emptied", j.FailedBlockGroups))
	}
	if j.BadBlocks > 0 {
		parts = append(parts, fmt.Sprintf("%d bad blocks", j.BadBlocks))
	}
	return strings.Join(parts, "; ")
}
