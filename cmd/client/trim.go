package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// trimJSON is the summary of a trim in JSON; everything is bytes unless its name says otherwise.
type trimJSON struct {
	State          string `json:"state"`
	DryRun         bool   `json:"dry_run"`
	Trimmed        uint64 `json:"bytes_trimmed"`
	Extents        uint64 `json:"extents_trimmed"`
	Commands       uint64 `json:"discard_commands"`
	ZonesReset     uint64 `json:"zones_reset"`
	Done           uint64 `json:"bytes_done"`
	Total          uint64 `json:"bytes_total"`
	NextStart      uint64 `json:"next_start"`
	MinLength      uint64 `json:"effective_min_length"`
	InUse          uint64 `json:"bytes_in_use"`
	AlreadyTrimmed uint64 `json:"bytes_skipped_already_trimmed"`
	TooShort       uint64 `json:"bytes_skipped_min_length"`
	PartialZone    uint64 `json:"bytes_skipped_partial_zone"`
	Busy           uint64 `json:"bytes_skipped_busy"`
	Unsupported    uint64 `json:"bytes_skipped_unsupported"`
	Gap            uint64 `json:"bytes_skipped_gap"`
	Quarantined    uint64 `json:"bytes_skipped_quarantined"`
	Failed         uint64 `json:"bytes_failed"`
	FailedZones    uint32 `json:"failed_zones"`
	FirstError     string `json:"first_error,omitempty"`
	Relocated      uint64 `json:"bytes_relocated"`
}

func trimToJSON(r *client.TrimSummary, dry bool) trimJSON {
	return trimJSON{
		State: enumWord(r.GetState().String(), "MAINTENANCE_STATE_"), DryRun: dry,
		Trimmed: r.GetBytesTrimmed(), Extents: r.GetExtentsTrimmed(), Commands: r.GetDiscardCommands(), ZonesReset: r.GetZonesReset(),
		Done: r.GetBytesDone(), Total: r.GetBytesTotal(), NextStart: r.GetNextStart(), MinLength: r.GetEffectiveMinLength(),
		InUse: r.GetBytesInUse(), AlreadyTrimmed: r.GetBytesSkippedAlreadyTrimmed(), TooShort: r.GetBytesSkippedMinLength(),
		PartialZone: r.GetBytesSkippedPartialZone(), Busy: r.GetBytesSkippedBusy(), Unsupported: r.GetBytesSkippedUnsupported(),
		Gap: r.GetBytesSkippedGap(), Quarantined: r.GetBytesSkippedQuarantined(), Failed: r.GetBytesFailed(),
		FailedZones: r.GetFailedZones(), FirstError: r.GetFirstError(), Relocated: r.GetBytesRelocated(),
	}
}

func (a *app) trimCommand() *cobra.Command {
	var o client.TrimOptions
	var offset, length, minimum byteValue
	var verbose bool
	cmd := &cobra.Command{
		Use:   "trim",
		Short: "tell the device what is free",
		Long: `trim tells the device which parts of it hold nothing, as fstrim does for a mounted file system:
a zone with nothing live in it is reset, free ranges of conventional zones are discarded, and an
emulated device gives its space back to the disk it lies on. What was trimmed before, and is free
ever since, is passed over.

Offset and length are logical addresses: block groups lie in them one after another, each as
long as a zone. Sizes are bytes, or end in K, M, G, T (powers of 1024; KiB and so on are the
same) or KB, MB, GB, TB (powers of 1000).

Interrupted, it says how much has been trimmed, and with --verbose where to go on.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Start, o.MinLength = offset.n, minimum.n
			if length.set {
				o.Length = &length.n
			}
			return a.trim(cmd.Context(), o, verbose)
		},
	}
	f := cmd.Flags()
	f.VarP(&offset, "offset", "o", "first address to look at (default 0)")
	f.VarP(&length, "length", "l", "how much to look at; past the end is to the end (default all)")
	f.VarP(&minimum, "minimum", "m", "pass over free ranges shorter than this (default 0)")
	f.BoolVarP(&o.DryRun, "dry-run", "n", false, "touch nothing, say what would be trimmed")
	f.BoolVar(&o.Reclaim, "reclaim", false, "move live data out of mostly dead zones first")
	f.BoolVarP(&verbose, "verbose", "v", false, "say what became of all that was looked at")
	return cmd
}

func (a *app) trim(ctx context.Context, o client.TrimOptions, verbose bool) error {
	line := a.trimProgress()
	r, err := a.c.Trim(ctx, o, line.show)
	line.wipe()
	if r == nil {
		return err
	}
	// Also when something went wrong: what was trimmed is trimmed.
	j := trimToJSON(r, o.DryRun)
	if perr := a.answer(j, func(w io.Writer) error { return a.trimText(w, j, verbose) }); err == nil {
		err = perr
	}
	switch {
	case err != nil:
		return err
	case j.State == "cancelled" && ctx.Err() != nil:
		return ctx.Err()
	case j.State == "cancelled":
		return fmt.Errorf("cancelled at address %d of %s", j.NextStart, size(j.Total))
	case j.State == "complete-with-errors":
		return fmt.Errorf("%s in %d zones could not be trimmed; the first: %s", size(j.Failed), j.FailedZones, j.FirstError)
	}
	return nil
}

func (a *app) trimText(w io.Writer, j trimJSON, verbose bool) error {
	if a.quiet {
		return nil
	}
	dry := ""
	if j.DryRun {
		dry = " (dry run)"
	}
	if _, err := fmt.Fprintf(w, "%s (%d bytes)%s trimmed\n", size(j.Trimmed), j.Trimmed, dry); err != nil || !verbose {
		return err
	}
	rows := [][]string{{"looked at", ">size", ""}}
	add := func(n uint64, what, note string) {
		if n > 0 {
			rows = append(rows, []string{what, size(n), note})
		}
	}
	add(j.Trimmed, "trimmed", fmt.Sprintf("%d extents, %d discards, %d zones reset", j.Extents, j.Commands, j.ZonesReset))
	add(j.AlreadyTrimmed, "already trimmed", "")
	add(j.InUse, "in use", "")
	add(j.PartialZone, "partial zone", "comes back when what else is in the zone has gone")
	add(j.TooShort, "too short", "less than "+size(j.MinLength))
	add(j.Busy, "busy", "")
	add(j.Unsupported, "unsupported", "the device cannot discard there")
	add(j.Gap, "gap", "between capacity and size of zones")
	add(j.Quarantined, "quarantined", "in zones that have failed")
	add(j.Failed, "failed", fmt.Sprintf("in %d zones", j.FailedZones))
	add(j.Done, "all", "")
	if err := table(w, rows); err != nil || j.State != "cancelled" {
		return err
	}
	_, err := fmt.Fprintf(w, "to go on: --offset %d\n", j.NextStart)
	return err
}

// trimLine is the line of progress on a terminal; w is nil where nobody watches.
type trimLine struct {
	w     io.Writer
	start time.Time
}

func (a *app) trimProgress() *trimLine {
	f, ok := a.err.(*os.File)
	if !ok || a.quiet || !term.IsTerminal(int(f.Fd())) {
		return &trimLine{}
	}
	return &trimLine{w: f, start: time.Now()}
}

func (l *trimLine) show(r *client.TrimSummary) {
	if l.w == nil || r.GetState() != shinglev1.MaintenanceState_MAINTENANCE_STATE_RUNNING {
		return
	}
	percent := 100.0
	if total := r.GetBytesTotal(); total > 0 {
		percent = 100 * float64(r.GetBytesDone()) / float64(total)
	}
	fmt.Fprintf(l.w, "\r\x1b[K%.1f %% of %s, %s trimmed, %v", percent, size(r.GetBytesTotal()), size(r.GetBytesTrimmed()),
		time.Since(l.start).Round(time.Second))
}

func (l *trimLine) wipe() {
	if l.w != nil {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}
