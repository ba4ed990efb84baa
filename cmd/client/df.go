package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// usageJSON is the state of space in JSON; everything is bytes unless its name says otherwise.
type usageJSON struct {
	Total       int64 `json:"total_bytes"`
	Used        int64 `json:"used_bytes"`
	Free        int64 `json:"free_bytes"`
	Unusable    int64 `json:"zone_unusable_bytes"`
	Reserved    int64 `json:"reserved_bytes"`
	Quarantined int64 `json:"quarantined_bytes"`
	Reclaimable int64 `json:"reclaimable_bytes"`
	Relocatable int64 `json:"relocatable_bytes"`
	Stuck       int64 `json:"stuck_bytes"`
	Dead        int64 `json:"dead_bytes"`
	Tails       int64 `json:"tail_bytes"`
	Failed      int64 `json:"failed_bytes"`
	Writable    int64 `json:"writable_estimate_bytes"`
	Reclaiming  bool  `json:"reclaim_running"`
	Dirty       int64 `json:"dirty_bytes"`
	Raw         int64 `json:"raw_bytes"`
	// Copies is how often each byte is stored.
	Copies  uint32 `json:"copies"`
	Logical int64  `json:"logical_bytes"`
	Stored  int64  `json:"stored_bytes"`
	Inline  int64  `json:"inline_bytes"`
	// Ratio is logical to stored and inline; 0: nothing is stored.
	Ratio       float64 `json:"ratio"`
	Files       int64   `json:"files"`
	Extents     int64   `json:"extents"`
	Metadata    int64   `json:"metadata_bytes"`
	MetadataMax int64   `json:"metadata_max_bytes"`
	Active      int32   `json:"active_zones"`
	MaxActive   int32   `json:"max_active_zones"` // 0: no limit
	Open        int32   `json:"open_zones"`
	MaxOpen     int32   `json:"max_open_zones"` // 0: no limit
	// Classes are the block groups by class and kind of zone; they count the relocation reserve in.
	Classes []classJSON `json:"classes,omitempty"`
}

func usageToJSON(u *client.Usage, copies uint32) usageJSON {
	j := usageJSON{
		Total: u.GetTotalBytes(), Used: u.GetUsedBytes(), Free: u.GetFreeBytes(), Unusable: u.GetZoneUnusableBytes(),
		Reserved: u.GetReservedBytes(), Quarantined: u.GetQuarantinedBytes(), Reclaimable: u.GetReclaimableBytes(),
		Dirty: u.GetDirtyBytes(), Raw: u.GetRawBytes(), Copies: copies, Logical: u.GetLogicalBytes(), Stored: u.GetStoredBytes(),
		Inline: u.GetInlineBytes(), Files: u.GetFiles(), Extents: u.GetExtents(), Metadata: u.GetMetadataBytes(),
		MetadataMax: u.GetMetadataMaxBytes(), Active: u.GetActiveZones(), MaxActive: u.GetMaxActiveZones(),
		Open: u.GetOpenZones(), MaxOpen: u.GetMaxOpenZones(), Classes: classesToJSON(u),
	}
	why := u.GetUnusable()
	j.Relocatable, j.Stuck = why.GetRelocatableBytes(), why.GetStuckBytes()
	j.Dead, j.Tails, j.Failed = why.GetDeadBytes(), why.GetTailBytes(), why.GetFailedBytes()
	j.Writable, j.Reclaiming = u.GetWritableEstimateBytes(), u.GetReclaimRunning()
	if held := j.Stored + j.Inline; held > 0 {
		j.Ratio = float64(j.Logical) / float64(held)
	}
	return j
}

func (a *app) dfCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "df",
		Short: "show how full the store is",
		Long: `df shows where the space is: total = used + free + unusable + reserved + quarantined.
How much can be written counts on data that does not compress, in pieces of 4 KiB, which the
metadata has to have room for; of larger ones it is more, up to what is free or unusable.
Unusable is dead, was never written (tails) or was lost in failed writes, and comes back when its
zone is reset, for which live data in the same zone has to be moved: see reclaim. Reserved is
promised to received bytes; quarantined lies in zones that have failed. Dirty is received and not
yet durable. Total is what can be stored: with two copies each byte of it takes two of the raw size
of the devices. Logical is the sum of the files' sizes, holes included, stored and inline what is kept
of it; ratio says how many times smaller that is.
Where there are block groups of several classes or on zones of both kinds, each has a line, the
relocation reserve counted in.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := a.c.Usage(cmd.Context())
			if err != nil {
				return err
			}
			info, err := a.c.Info(cmd.Context())
			if err != nil {
				return err
			}
			j := usageToJSON(u, info.GetCopies())
			return a.answer(j, func(w io.Writer) error { return dfText(w, j) })
		},
	}
}

func dfText(w io.Writer, j usageJSON) error {
	share := func(n int64) string {
		if j.Total <= 0 {
			return ""
		}
		return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(j.Total))
	}
	note := func(n int64, what string) string {
		if n == 0 {
			return ""
		}
		return size(n) + " " + what
	}
	ratio := ""
	if j.Ratio > 0 {
		ratio = fmt.Sprintf(", ratio %.2f", j.Ratio)
	}
	err := table(w, [][]string{
		{"space", ">size", ">share", ""},
		{"total", size(j.Total), "", note(j.Raw, fmt.Sprintf("raw, copies %d", j.Copies))},
		{"used", size(j.Used), share(j.Used), ""},
		{"free", size(j.Free), share(j.Free), note(j.Writable, "or more can be written, reclaim included")},
		{"unusable", size(j.Unusable), share(j.Unusable), note(j.Reclaimable, "back without moving anything")},
		{"  dead", size(j.Dead), share(j.Dead), note(j.Relocatable, "back when live data is moved")},
		{"  tails", size(j.Tails), share(j.Tails), note(j.Stuck, "stuck behind bad blocks")},
		{"  failed", size(j.Failed), share(j.Failed), ""},
		{"reserved", size(j.Reserved), share(j.Reserved), ""},
		{"quarantined", size(j.Quarantined), share(j.Quarantined), ""},
		{"dirty", size(j.Dirty), "", ""},
		{"logical", size(j.Logical), "", "in " + count(uint64(j.Files), "file") + ratio},
		{"stored", size(j.Stored), "", fmt.Sprintf("in %s", count(uint64(j.Extents), "extent"))},
		{"inline", size(j.Inline), "", "in the files' records"},
		{"metadata", size(j.Metadata), "", "of at most " + size(j.MetadataMax)},
		{"active zones", fmt.Sprint(j.Active), "", limit(j.MaxActive)},
		{"open zones", fmt.Sprint(j.Open), "", limit(j.MaxOpen)},
	})
	if err != nil {
		return err
	}
	if err := identityText(w, j); err != nil {
		return err
	}
	return classesText(w, j.Classes)
}

// identityText prints the sum that always holds; should it not, it says so, in bytes.
func identityText(w io.Writer, j usageJSON) error {
	parts := []struct {
		name string
		n    int64
	}{{"used", j.Used}, {"free", j.Free}, {"unusable", j.Unusable}, {"reserved", j.Reserved}, {"quarantined", j.Quarantined}}
	sum, text := int64(0), make([]string, len(parts))
	for i, p := range parts {
		sum += p.n
		text[i] = p.name + " " + size(p.n)
	}
	line := fmt.Sprintf("total %s = %s", size(j.Total), strings.Join(text, " + "))
	if sum != j.Total {
		line = fmt.Sprintf("the parts come to %d bytes, and the total is %d: this is a bug of the engine", sum, j.Total)
	}
	_, err := fmt.Fprintln(w, "\n"+line)
	return err
}

// limit prints a bound of which 0 is none.
func limit(n int32) string {
	if n == 0 {
		return "no limit"
	}
	return fmt.Sprintf("of at most %d", n)
}
