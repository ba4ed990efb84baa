package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// zoneJSON is a zone in JSON; start is bytes from the start of the device, write_pointer from
// that of the zone.
type zoneJSON struct {
	Device       string  `json:"device"`
	Zone         uint32  `json:"zone"`
	Condition    string  `json:"condition"`
	Use          string  `json:"use"`
	Conventional bool    `json:"conventional"`
	Quarantined  bool    `json:"quarantined"`
	Start        uint64  `json:"start"`
	Size         uint64  `json:"size"`
	Capacity     uint64  `json:"capacity"`
	WritePointer uint64  `json:"write_pointer"`
	Live         uint64  `json:"live_bytes"`
	Unusable     uint64  `json:"unusable_bytes"`
	BlockGroup   *uint32 `json:"block_group,omitempty"`
	Resets       uint64  `json:"resets"`
}

func zoneToJSON(z *client.Zone) zoneJSON {
	return zoneJSON{
		Device: z.GetDevice(), Zone: z.GetZone(), Condition: enumWord(z.GetCondition().String(), "ZONE_CONDITION_"),
		Use: enumWord(z.GetUse().String(), "ZONE_USE_"), Conventional: z.GetConventional(), Quarantined: z.GetQuarantined(),
		Start: z.GetStart(), Size: z.GetSize(), Capacity: z.GetCapacity(), WritePointer: z.GetWritePointer(),
		Live: z.GetLiveBytes(), Unusable: z.GetUnusableBytes(), BlockGroup: z.BlockGroup, Resets: z.GetResets(),
	}
}

func (a *app) zonesCommand() *cobra.Command {
	var report bool
	cmd := &cobra.Command{
		Use:   "zones",
		Short: "show the zones of the devices",
		Long: `zones lists the zones of each device by number: condition, what it is for, write pointer and
capacity, what of it is live and what comes back at a reset, and the block group on it.

With --report they are printed as blkzone report does, device by device, in its words and its unit, sectors of 512 bytes:
start, len, cap and wptr (from the start of the zone) in hexadecimal; the condition as number and word:
em empty, oi and oe open, implicitly and explicitly, cl closed, fu full, ro read-only, ol offline, nw no
write pointer.

JSON: {"zones": [...]}.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			head, device := false, ""
			out := listing[*client.Zone]{a: a, key: "zones", text: func(z *client.Zone) error {
				if report {
					if !head || z.GetDevice() != device {
						head, device = true, z.GetDevice()
						fmt.Fprintf(a.out, "device %s:\n", device)
					}
					_, err := fmt.Fprintln(a.out, zoneReport(z))
					return err
				}
				if !head {
					head = true
					if err := a.zoneLine("device", "zone", "condition", "use", "wp", "capacity", "live", "unusable", "group", ""); err != nil {
						return err
					}
				}
				return a.zoneText(zoneToJSON(z))
			}}
			for z, err := range a.c.Zones(cmd.Context()) {
				if err != nil {
					return err
				}
				if err := out.add(z, zoneToJSON(z)); err != nil {
					return err
				}
			}
			return out.end()
		},
	}
	cmd.Flags().BoolVar(&report, "report", false, "in the words of blkzone report")
	return cmd
}

func (a *app) zoneText(z zoneJSON) error {
	wp, group, mark := size(z.WritePointer), "", ""
	if z.Conventional {
		wp = "-"
	}
	if z.BlockGroup != nil {
		group = fmt.Sprint(*z.BlockGroup)
	}
	if z.Quarantined {
		mark = "quarantined"
	}
	return a.zoneLine(z.Device, fmt.Sprint(z.Zone), z.Condition, z.Use, wp, size(z.Capacity), size(z.Live), size(z.Unusable), group, mark)
}

// zoneLine prints a line of the table; the columns have room for any device.
func (a *app) zoneLine(columns ...any) error {
	line := fmt.Sprintf("%6s  %6s  %-13s  %-12s  %9s  %9s  %9s  %9s  %6s  %s", columns...)
	_, err := fmt.Fprintln(a.out, strings.TrimRight(line, " "))
	return err
}
