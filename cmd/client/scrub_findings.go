package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// findingJSON is a bad block in JSON. Absent: it is no file's, or lies in no zone.
type findingJSON struct {
	Name       string     `json:"name,omitempty"`
	FileID     uint64     `json:"file_id,omitempty"`
	Object     string     `json:"object,omitempty"`
	Offset     int64      `json:"offset"`
	Length     int64      `json:"length"`
	Address    uint64     `json:"address"`
	Device     string     `json:"device,omitempty"`
	Zone       *uint32    `json:"zone,omitempty"`
	ZoneOffset *uint64    `json:"zone_offset,omitempty"`
	Expected   uint32     `json:"expected_crc32c"`
	Actual     uint32     `json:"actual_crc32c"`
	Unreadable bool       `json:"unreadable"`
	Outcome    string     `json:"outcome"`
	Time       *time.Time `json:"time,omitempty"`
	Others     int32      `json:"other_references"`
}

func findingToJSON(f *client.ScrubFinding) findingJSON {
	j := findingJSON{
		Name: f.GetName(), FileID: f.GetFileId(), Object: f.GetObject(), Offset: f.GetOffset(), Length: f.GetLength(),
		Address: f.GetAddress(), Expected: f.GetExpectedCrc32C(), Actual: f.GetActualCrc32C(), Unreadable: f.GetUnreadable(),
		Outcome: enumWord(f.GetOutcome().String(), "CORRUPTION_OUTCOME_"), Time: moment(f.GetTime()), Others: f.GetOtherReferences(),
	}
	if z := f.GetZone(); z != nil {
		j.Device, j.Zone, j.ZoneOffset = z.GetDevice(), &z.Zone, &z.Offset
	}
	return j
}

func (a *app) scrubFindingsCommand() *cobra.Command {
	var uncorrected bool
	cmd := &cobra.Command{
		Use:   "findings [ID]",
		Short: "name the bad blocks that a scrub has met",
		Long: `findings lists the bad blocks that the scrub has met which runs or is paused, or the last one, or the
one with the id: the file and where in it, what its checksum is and should be, where it lies, and
what became of it.

JSON: {"findings": [...]}.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := listing[*client.ScrubFinding]{a: a, key: "findings", text: func(f *client.ScrubFinding) error {
				_, err := fmt.Fprintln(a.out, findingText(findingToJSON(f)))
				return err
			}}
			for f, err := range a.c.ScrubFindings(cmd.Context(), scrubID(args), uncorrected) {
				if err != nil {
					return err
				}
				if err := out.add(f, findingToJSON(f)); err != nil {
					return err
				}
			}
			return out.end()
		},
	}
	cmd.Flags().BoolVarP(&uncorrected, "uncorrected", "u", false, "only those that were not corrected")
	return cmd
}

// findingText is a finding in a line.
func findingText(j findingJSON) string {
	var what string
	switch {
	case j.Name != "":
		what = fmt.Sprintf("%s at offset %d, %s", j.Name, j.Offset, size(j.Length))
	case j.Object != "":
		what = j.Object
	default:
		what = "no file any more, " + size(j.Length)
	}
	bad := fmt.Sprintf("crc32c %08x, should be %08x", j.Actual, j.Expected)
	if j.Unreadable {
		bad = "unreadable"
	}
	var where []string
	if j.Zone != nil {
		where = append(where, fmt.Sprintf("device %s, zone %d at %d", j.Device, *j.Zone, *j.ZoneOffset))
	}
	if j.Object == "" {
		where = append(where, fmt.Sprintf("address %d", j.Address))
	}
	text := what + ": " + bad
	if len(where) > 0 {
		text += " (" + strings.Join(where, ", ") + ")"
	}
	outcome := j.Outcome
	if outcome == "not-repaired-read-only" {
		outcome = "not repaired, the scrub is read-only"
	}
	text += ": " + outcome
	if j.Others > 0 {
		text += "; shared with " + count(uint64(j.Others), "other file")
	}
	return text
}
