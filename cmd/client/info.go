package main

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// infoJSON is what info answers in JSON. Sizes are bytes, durations seconds.
type infoJSON struct {
	Version       string            `json:"version"`
	Revision      string            `json:"revision"`
	StoreUUID     string            `json:"store_uuid"`
	BootID        string            `json:"boot_id"`
	StartTime     *time.Time        `json:"start_time,omitempty"`
	FormatVersion uint32            `json:"format_version"`
	Features      []string          `json:"features"`
	ReadOnly      bool              `json:"read_only"`
	Copies        uint32            `json:"copies"`
	Compression   string            `json:"default_compression"`
	NoDelalloc    bool              `json:"nodelalloc"`
	Device        geometryJSON      `json:"device"`
	Limits        limitsJSON        `json:"limits"`
	Conditions    []conditionJSON   `json:"conditions"`
	Counters      map[string]uint64 `json:"counters,omitempty"`
}

type geometryJSON struct {
	Dialect      string `json:"dialect"`
	ZoneSize     int64  `json:"zone_size"`
	ZoneCapacity int64  `json:"zone_capacity"`
	Zones        int32  `json:"zones"`
	Conventional int32  `json:"conventional_zones"`
	MaxOpen      int32  `json:"max_open_zones"`   // 0: no limit
	MaxActive    int32  `json:"max_active_zones"` // 0: no limit
	AppendLimit  int64  `json:"append_limit"`     // 0: no limit
}

type limitsJSON struct {
	Data          int64   `json:"max_data_bytes"`
	PreferredData int64   `json:"preferred_data_bytes"`
	AckInterval   int64   `json:"ack_interval_bytes"`
	Name          int64   `json:"max_name_bytes"`
	Attributes    int64   `json:"max_attribute_bytes"`
	FileSize      int64   `json:"max_file_size"`
	Dirty         int64   `json:"dirty_limit_bytes"`
	ExtentSize    int64   `json:"max_extent_size"`
	PageSize      int32   `json:"max_page_size"`
	MaxWait       float64 `json:"default_max_wait_seconds"`
	StagedTTL     float64 `json:"staged_write_ttl_seconds"`
}

type conditionJSON struct {
	Reason   string     `json:"reason"`
	Severity string     `json:"severity"`
	Object   string     `json:"object"`
	Message  string     `json:"message"`
	Advice   string     `json:"advice,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
}

func (a *app) infoCommand() *cobra.Command {
	var counters bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "show the engine, its store, and what is wrong",
		Long: `info shows which engine answers, which store and device it has, its limits, and what is wrong
now; with --counters also exact counts of what it has done since it was started.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			info, err := a.c.Info(ctx)
			if err != nil {
				return err
			}
			conditions, err := a.c.Conditions(ctx)
			if err != nil {
				return err
			}
			j := infoToJSON(info, conditions)
			if counters {
				c, err := a.c.Counters(ctx)
				if err != nil {
					return err
				}
				j.Counters = c.GetCounters()
			}
			return a.answer(j, func(w io.Writer) error { return infoText(w, j) })
		},
	}
	cmd.Flags().BoolVar(&counters, "counters", false, "counts since the engine was started")
	return cmd
}

func infoToJSON(i *client.Info, conditions []*client.Condition) infoJSON {
	l := i.GetLimits()
	j := infoJSON{
		Version: i.GetVersion(), Revision: i.GetRevision(), StoreUUID: i.GetStoreUuid(), BootID: bootID(i.GetBootId()),
		StartTime: moment(i.GetStartTime()), FormatVersion: i.GetFormatVersion(), Features: i.GetFeatures(),
		ReadOnly: i.GetReadOnly(), Copies: i.GetCopies(),
		Compression: enumWord(i.GetDefaultCompression().String(), "COMPRESSION_"), NoDelalloc: i.GetNodelalloc(),
		Device: geometryToJSON(i.GetGeometry()),
		Limits: limitsJSON{
			Data: l.GetMaxDataBytes(), PreferredData: l.GetPreferredDataBytes(), AckInterval: l.GetAckIntervalBytes(),
			Name: l.GetMaxNameBytes(), Attributes: l.GetMaxAttributeBytes(), FileSize: l.GetMaxFileSize(),
			Dirty: l.GetDirtyLimitBytes(), ExtentSize: l.GetMaxExtentSize(), PageSize: l.GetMaxPageSize(),
			MaxWait: l.GetDefaultMaxWait().AsDuration().Seconds(), StagedTTL: l.GetStagedWriteTtl().AsDuration().Seconds(),
		},
		Conditions: []conditionJSON{},
	}
	if j.Features == nil {
		j.Features = []string{}
	}
	for _, c := range conditions {
		j.Conditions = append(j.Conditions, conditionJSON{
			Reason: c.GetReason(), Severity: enumWord(c.GetSeverity().String(), "SEVERITY_"), Object: c.GetObject(),
			Message: c.GetMessage(), Advice: c.GetAdvice(), Since: moment(c.GetSince()),
		})
	}
	return j
}

func infoText(w io.Writer, j infoJSON) error {
	line := func(key, format string, args ...any) {
		fmt.Fprintf(w, "%-12s "+format+"\n", append([]any{key + ":"}, args...)...)
	}
	version := j.Version
	if j.Revision != "" {
		version += " (" + j.Revision + ")"
	}
	line("engine", "%s", version)
	line("store", "%s, format %d, copies %d", j.StoreUUID, j.FormatVersion, j.Copies)
	line("run", "%s", j.BootID)
	if j.StartTime != nil {
		line("started", "%s", j.StartTime.Local().Format(time.RFC3339))
	}
	state := "reads and writes"
	if j.ReadOnly {
		state = "read-only until it is opened again"
	}
	line("state", "%s", state)
	collect := ""
	if j.NoDelalloc {
		collect = ", writes go through"
	}
	line("compression", "%s%s", j.Compression, collect)
	d := j.Device
	line("device", "%s, %d zones of %s (capacity %s), %d of them conventional", d.Dialect, d.Zones, size(d.ZoneSize),
		size(d.ZoneCapacity), d.Conventional)
	line("zone limits", "active %s, open %s", strings.TrimPrefix(limit(d.MaxActive), "of "), strings.TrimPrefix(limit(d.MaxOpen), "of "))
	line("limits", "file %s, extent %s, dirty %s", size(j.Limits.FileSize), size(j.Limits.ExtentSize), size(j.Limits.Dirty))
	if len(j.Features) > 0 {
		line("features", "%s", strings.Join(j.Features, " "))
	}
	if len(j.Conditions) == 0 {
		line("conditions", "none: healthy")
	}
	for _, c := range j.Conditions {
		line(c.Severity, "%s", conditionText(c))
	}
	if j.Counters == nil {
		return nil
	}
	names := make([]string, 0, len(j.Counters))
	for n := range j.Counters {
		names = append(names, n)
	}
	sort.Strings(names)
	fmt.Fprintln(w)
	rows := [][]string{{"counter", ">value"}}
	for _, n := range names {
		rows = append(rows, []string{n, fmt.Sprint(j.Counters[n])})
	}
	return table(w, rows)
}
