package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// statusJSON is what status answers.
type statusJSON struct {
	Healthy    bool            `json:"healthy"`
	Version    string          `json:"version"`
	StoreUUID  string          `json:"store_uuid"`
	BootID     string          `json:"boot_id"`
	ReadOnly   bool            `json:"read_only"`
	Total      int64           `json:"total_bytes"`
	Used       int64           `json:"used_bytes"`
	Writable   int64           `json:"writable_estimate_bytes"`
	Conditions []conditionJSON `json:"conditions"`
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "say whether all is well, and what helps if not",
		Long: `status says which engine answers and how full its store is, and names each thing that is wrong
with the command that helps.

Exit status: 0 all is well, 6 something is wrong: at least one condition that is a warning or an
error; 5 no engine answers. Conditions of severity info are shown, and change nothing.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, err := a.c.Info(cmd.Context())
			if err != nil {
				return err
			}
			usage, err := a.c.Usage(cmd.Context())
			if err != nil {
				return err
			}
			conditions, err := a.c.Conditions(cmd.Context())
			if err != nil {
				return err
			}
			i := infoToJSON(info, conditions)
			j := statusJSON{
				Version: i.Version, StoreUUID: i.StoreUUID, BootID: i.BootID, ReadOnly: i.ReadOnly, Conditions: i.Conditions,
				Total: usage.GetTotalBytes(), Used: usage.GetUsedBytes(), Writable: usage.GetWritableEstimateBytes(),
			}
			wrong := wrongs(i)
			j.Healthy = wrong == ""
			if err := a.answer(j, func(w io.Writer) error { return a.statusText(w, j) }); err != nil || j.Healthy {
				return err
			}
			return &statusError{exitUnhealthy, fmt.Errorf("something is wrong: %s", wrong)}
		},
	}
}

// wrongs counts what is wrong, the worst first; "" is nothing.
func wrongs(i infoJSON) string {
	var errs, warnings uint64
	for _, c := range i.Conditions {
		switch c.Severity {
		case "error":
			errs++
		case "warning":
			warnings++
		}
	}
	var parts []string
	if errs > 0 {
		parts = append(parts, count(errs, "error"))
	}
	if warnings > 0 {
		parts = append(parts, count(warnings, "warning"))
	}
	if len(parts) == 0 && i.ReadOnly {
		parts = append(parts, "the store is read-only")
	}
	return strings.Join(parts, ", ")
}

func (a *app) statusText(w io.Writer, j statusJSON) error {
	if !a.quiet {
		state := "reads and writes"
		if j.ReadOnly {
			state = "read-only until it is opened again"
		}
		fmt.Fprintf(w, "engine %s at %s, run %s, store %s: %s\n", j.Version, a.addr, j.BootID, j.StoreUUID, state)
		fmt.Fprintf(w, "%s used of %s, %s or more can be written\n", size(j.Used), size(j.Total), size(j.Writable))
		if len(j.Conditions) == 0 {
			fmt.Fprintln(w, "all is well")
		}
	}
	for _, c := range j.Conditions {
		fmt.Fprintf(w, "%s: %s\n", c.Severity, conditionText(c))
		if help := remedy(c); help != "" {
			fmt.Fprintf(w, "  see: %s\n", help)
		}
	}
	return nil
}

// conditionText is a condition in a line, without its severity.
func conditionText(c conditionJSON) string {
	message := c.Message
	for _, name := range []string{c.Object, strings.TrimPrefix(c.Object, "files/")} { // named once is enough
		message = strings.TrimPrefix(message, name+": ")
	}
	text := fmt.Sprintf("%s %s: %s", c.Reason, c.Object, message)
	if c.Advice != "" {
		text += "; " + c.Advice
	}
	return text
}

// remedy is the command that shows more of a condition or mends it; "": none does. Quotes make it one that
// can be pasted into a shell.
func remedy(c conditionJSON) string {
	file, isFile := strings.CutPrefix(c.Object, "files/")
	switch c.Reason {
	case "CORRUPTION", "SYNC_FAILED":
		if isFile {
			return "client put GOOD-COPY " + shellWord(file)
		}
		return "engine check"
	case "ZONE_NOT_RECLAIMABLE":
		return "client scrub start -B, then client scrub findings"
	case "DEVICE_FAILED", "DEVICE_MISSING":
		if number, ok := strings.CutPrefix(c.Object, "devices/"); ok {
			return "client device replace " + shellWord(number) + " PATH"
		}
		return "client device ls"
	case "DEVICE_STALE", "DEVICE_UNREADABLE", "DEGRADED", "COPIES_DIFFER":
		return "client device ls"
	case "ZONE_FAILED", "ZONE_QUARANTINED", "WRITE_FAILED", "WRITE_POINTER_AHEAD", "WRITE_POINTER_BEHIND", "LABEL_ZONE_FAILED":
		return "client zones"
	case "METADATA_SPACE", "NO_SPACE":
		return "client df"
	case "LABEL_DAMAGED", "LABEL_NOT_WRITTEN", "BITMAP_LOST", "BITMAP_MENDED", "DATA_LOSS", "READ_ONLY":
		return "engine check"
	}
	return ""
}

// shellWord quotes a name for a shell, where it has to be.
func shellWord(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:@%=", r)
	}
	if name != "" && !strings.HasPrefix(name, "-") && strings.TrimFunc(name, plain) == "" {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}
