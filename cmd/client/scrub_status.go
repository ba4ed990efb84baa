package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// scrubJSON is a scrub in JSON. Absent: not known, or the store as its scope. The counters are those of
// `btrfs scrub status -R`.
type scrubJSON struct {
	ID         string            `json:"scrub_id"`
	State      string            `json:"state"`
	File       string            `json:"file,omitempty"`
	BlockGroup *uint32           `json:"block_group,omitempty"`
	Device     string            `json:"device,omitempty"`
	ReadOnly   bool              `json:"read_only"`
	Limit      uint64            `json:"limit_bytes_per_second"` // 0: no limit
	Started    *time.Time        `json:"start_time,omitempty"`
	Ended      *time.Time        `json:"end_time,omitempty"`
	Active     float64           `json:"active_seconds"`
	Total      uint64            `json:"total_bytes"`
	Done       uint64            `json:"done_bytes"`
	Skipped    uint64            `json:"skipped_bytes"`
	Percent    json.Number       `json:"percent"`
	Rate       uint64            `json:"rate_bytes_per_second"`
	Left       *float64          `json:"eta_seconds,omitempty"`
	Findings   uint64            `json:"findings"`
	Error      string            `json:"error,omitempty"`
	Counters   map[string]uint64 `json:"counters"`
}

func scrubToJSON(s *client.Scrub) scrubJSON {
	j := scrubJSON{
		ID: s.GetScrubId(), State: scrubState(s), File: s.GetScope().GetFile(), Device: s.GetScope().GetDevice(), ReadOnly: s.GetReadOnly(),
		Limit: s.GetLimitBytesPerSecond(), Started: moment(s.GetStartTime()), Ended: moment(s.GetEndTime()),
		Active: s.GetActiveTime().AsDuration().Seconds(), Total: s.GetTotalBytes(), Done: s.GetDoneBytes(), Skipped: s.GetSkippedBytes(),
		Percent: json.Number(scrubPercent(s)), Rate: s.GetRateBytesPerSecond(), Findings: s.GetFindings(), Error: s.GetError(),
		Counters: map[string]uint64{},
	}
	if target, ok := s.GetScope().GetTarget().(*shinglev1.ScrubScope_BlockGroup); ok {
		j.BlockGroup = &target.BlockGroup
	}
	if s.Eta != nil {
		left := s.GetEta().AsDuration().Seconds()
		j.Left = &left
	}
	for _, c := range scrubCounters(s) {
		j.Counters[c.name] = c.n
	}
	return j
}

type scrubCounter struct {
	name string
	n    uint64
}

// scrubCounters are all counters in the order of the proto, which is that of btrfs.
func scrubCounters(s *client.Scrub) (out []scrubCounter) {
	m := s.GetCounters().ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		out = append(out, scrubCounter{string(fields.Get(i).Name()), m.Get(fields.Get(i)).Uint()})
	}
	return out
}

func scrubState(s *client.Scrub) string { return enumWord(s.GetState().String(), "SCRUB_STATE_") }

// scrubPercent is how much of a scrub is done, with two digits and rounded down, so that only all of it is
// 100.00. Of nothing, all is done when the scrub has finished.
func scrubPercent(s *client.Scrub) string {
	done, total := s.GetDoneBytes(), s.GetTotalBytes()
	switch {
	case total == 0 && s.GetState() != scrubFinished:
		return "0.00"
	case done >= total:
		return "100.00"
	}
	return fmt.Sprintf("%.2f", min(math.Floor(1e4*float64(done)/float64(total))/100, 99.99))
}

func (a *app) scrubStatusCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "status [ID]",
		Short: "show how a scrub stands",
		Long: `status shows how the scrub stands that runs or is paused, or the last one, or the one with the id.
Exit status 3: it has finished, and something could not be corrected.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			s, err := a.c.ScrubStatus(ctx, scrubID(args))
			if len(args) == 0 && client.IsNotFound(err) {
				return a.scrubNone(ctx)
			}
			if err != nil {
				return err
			}
			if err := a.scrubShow(ctx, s, raw); err != nil || s.GetState() != scrubFinished {
				return err
			}
			return scrubVerdict(s)
		},
	}
	cmd.Flags().BoolVarP(&raw, "raw", "R", false, "all counters instead of a summary")
	return cmd
}

// scrubNone says that there never was a scrub, which is no error.
func (a *app) scrubNone(ctx context.Context) error {
	info, err := a.c.Info(ctx)
	if err != nil {
		return err
	}
	return a.answer(nil, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%-18s%s\n\tno stats available\n", "UUID:", info.GetStoreUuid())
		return err
	})
}

// scrubShow prints how a scrub stands.
func (a *app) scrubShow(ctx context.Context, s *client.Scrub, raw bool) error {
	if a.output == "json" {
		return a.answer(scrubToJSON(s), nil)
	}
	info, err := a.c.Info(ctx)
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, scrubText(s, info.GetStoreUuid(), raw, time.Now()))
	return err
}

// scrubText is what `btrfs scrub status` prints, or with raw -R, and what it has no words for.
func scrubText(s *client.Scrub, store string, raw bool, now time.Time) string {
	var b strings.Builder
	line := func(key, format string, args ...any) {
		fmt.Fprintf(&b, "%-18s"+format+"\n", append([]any{key + ":"}, args...)...)
	}
	line("UUID", "%s", store)
	line("Scrub", "%s", s.GetScrubId())
	switch target := s.GetScope().GetTarget().(type) {
	case *shinglev1.ScrubScope_File:
		line("Scope", "file %s", target.File)
	case *shinglev1.ScrubScope_BlockGroup:
		line("Scope", "block group %d", target.BlockGroup)
	case *shinglev1.ScrubScope_Device:
		line("Scope", "device %s", target.Device)
	}
	if s.StartTime != nil {
		line("Scrub started", "%s", clock(s.GetStartTime().AsTime()))
	}
	status := scrubState(s)
	switch s.GetState() {
	case scrubRunning, scrubFinished, shinglev1.ScrubState_SCRUB_STATE_FAILED:
	default:
		status += ", incomplete"
	}
	if s.GetReadOnly() {
		status += " (read-only)"
	}
	line("Status", "%s", status)
	if s.GetError() != "" {
		line("Reason", "%s", s.GetError())
	}
	line("Duration", "%s", hours(s.GetActiveTime().AsDuration()))
	if raw {
		for _, c := range scrubCounters(s) {
			fmt.Fprintf(&b, "\t%s: %d\n", c.name, c.n)
		}
		return b.String()
	}
	if s.Eta != nil {
		left := s.GetEta().AsDuration()
		line("Time left", "%s", hours(left))
		line("ETA", "%s", clock(now.Add(left)))
	}
	line("Total to scrub", "%s", size(s.GetTotalBytes()))
	line("Bytes scrubbed", "%s  (%s%%)", size(s.GetDoneBytes()), scrubPercent(s))
	if n := s.GetSkippedBytes(); n > 0 {
		line("Bytes skipped", "%s  (moved, freed or overwritten since)", size(n))
	}
	rate := size(s.GetRateBytesPerSecond()) + "/s"
	if n := s.GetLimitBytesPerSecond(); n > 0 {
		rate += fmt.Sprintf(" (limit %s/s)", size(n))
	}
	line("Rate", "%s", rate)
	c := s.GetCounters()
	line("Error summary", "%s", scrubErrors(c))
	if scrubErrorCount(c) > 0 {
		line("  Corrected", "%d", c.GetCorrectedErrors())
		line("  Uncorrectable", "%d", c.GetUncorrectableErrors())
		line("  Unverified", "%d", c.GetUnverifiedErrors())
	}
	if n := c.GetMallocErrors(); n > 0 {
		line("Incomplete", "there was no memory for %d reads", n)
	}
	if n := s.GetFindings(); n > 0 {
		line("Findings", "%d; see `client scrub findings %s`", n, s.GetScrubId())
	}
	return b.String()
}

func scrubErrorCount(c *shinglev1.ScrubCounters) uint64 {
	return c.GetReadErrors() + c.GetSuperErrors() + c.GetVerifyErrors() + c.GetCsumErrors()
}

// scrubErrors is the error summary, in the order of btrfs.
func scrubErrors(c *shinglev1.ScrubCounters) string {
	if scrubErrorCount(c) == 0 {
		return "no errors found"
	}
	var parts []string
	for _, e := range []scrubCounter{
		{"read", c.GetReadErrors()}, {"super", c.GetSuperErrors()}, {"verify", c.GetVerifyErrors()}, {"csum", c.GetCsumErrors()},
	} {
		if e.n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", e.name, e.n))
		}
	}
	return strings.Join(parts, " ")
}

// clock prints a moment as btrfs does.
func clock(t time.Time) string { return t.Local().Format(time.ANSIC) }

// hours prints a duration as btrfs does: "26:03:09".
func hours(d time.Duration) string {
	s := int64(d.Round(time.Second) / time.Second)
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// scrubLine is the line of progress on a terminal; w is nil where nobody watches.
type scrubLine struct{ w io.Writer }

func (a *app) scrubProgress() *scrubLine {
	f, ok := a.err.(*os.File)
	if !ok || a.quiet || !term.IsTerminal(int(f.Fd())) {
		return &scrubLine{}
	}
	return &scrubLine{f}
}

func (l *scrubLine) show(s *client.Scrub) {
	if l.w != nil && s.GetState() == scrubRunning {
		fmt.Fprint(l.w, "\r\x1b[K"+scrubProgressText(s))
	}
}

func (l *scrubLine) wipe() {
	if l.w != nil {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}

// scrubProgressText is how far a scrub has come, in a line.
func scrubProgressText(s *client.Scrub) string {
	text := fmt.Sprintf("%s %% of %s, %s/s", scrubPercent(s), size(s.GetTotalBytes()), size(s.GetRateBytesPerSecond()))
	if s.Eta != nil {
		text += ", " + hours(s.GetEta().AsDuration()) + " left"
	}
	return text + ", " + scrubErrors(s.GetCounters())
}
