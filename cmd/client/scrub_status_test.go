package main

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

func TestScrubJSON(t *testing.T) {
	s := clienttest.New(t)
	status := func(name string) (j scrubJSON) {
		t.Helper()
		s.SetScrub(scrubs()[name])
		unmarshal(t, cli(t, s.Addr, "", "scrub", "status", "--output", "json").out, &j)
		return j
	}
	j := status("limited")
	if j.ID != "s-1" || j.State != "running" || j.BlockGroup == nil || *j.BlockGroup != 0 || !j.ReadOnly || j.Limit != 8<<20 || j.Percent != "33.30" ||
		j.Total != 1000<<20 || j.Done != 333<<20 || j.Skipped != 5<<20 || j.Rate != 8<<20 || j.Left == nil || *j.Left != 7203 || j.Active != 65 ||
		j.Started.Unix() != 1_000_000_000 || j.Ended != nil || j.Error != "" {
		t.Errorf("%+v", j)
	}
	if len(j.Counters) != 19 || j.Counters["no_csum"] != 8 || j.Counters["bytes_read"] != 19 || j.Counters["csum_errors"] != 0 {
		t.Errorf("%v", j.Counters)
	}
	if j := status("finished"); j.File != "docs/a" || j.BlockGroup != nil || j.Percent != "100.00" || j.Left != nil || j.Ended == nil {
		t.Errorf("%+v", j)
	}
	if j := status("bad"); j.Device != "0" || j.Findings != 10 || j.Counters["uncorrectable_errors"] != 8 {
		t.Errorf("%+v", j)
	}
	if j := status("interrupted"); j.Error == "" || j.State != "interrupted" {
		t.Errorf("%+v", j)
	}
	s.SetScrub(nil)
	if out := cli(t, s.Addr, "", "scrub", "status", "--output", "json").ok(t); out != "null\n" {
		t.Errorf("said %q", out)
	}
}

func TestFindingsJSON(t *testing.T) {
	s := clienttest.New(t)
	s.SetScrub(scrubs()["bad"])
	var none, got struct{ Findings []findingJSON }
	if unmarshal(t, cli(t, s.Addr, "", "scrub", "findings", "--output", "json").ok(t), &none); none.Findings == nil || len(none.Findings) != 0 {
		t.Errorf("%+v", none)
	}
	s.Scrubs.Findings = scrubFindings()
	unmarshal(t, cli(t, s.Addr, "", "scrub", "findings", "--output", "json").ok(t), &got)
	if len(got.Findings) != 5 {
		t.Fatalf("%+v", got)
	}
	f := got.Findings[0]
	if f.Name != "docs/a" || f.FileID != 7 || f.Offset != 8192 || f.Length != 4096 || f.Address != 1<<30 || f.Device != "0" || *f.Zone != 17 ||
		*f.ZoneOffset != 12288 || f.Expected != 0x12345678 || f.Actual != 0xabc || f.Unreadable || f.Outcome != "uncorrectable" ||
		f.Time.Unix() != 1_000_000_000 || f.Others != 2 {
		t.Errorf("%+v", f)
	}
	if f := got.Findings[1]; !f.Unreadable || f.Outcome != "repaired" {
		t.Errorf("%+v", f)
	}
	if f := got.Findings[3]; f.Object != "devices/0/label" || f.Name != "" || *f.Zone != 1 || f.Outcome != "not-repaired-read-only" {
		t.Errorf("%+v", f)
	}
	if f := got.Findings[4]; f.Zone != nil || f.Object != "metadata/extents" {
		t.Errorf("%+v", f)
	}
}

// TestScrubPercent: never over 100, 100 only when all is done, and a number for an empty store.
func TestScrubPercent(t *testing.T) {
	for _, c := range []struct {
		state       shinglev1.ScrubState
		done, total uint64
		want        string
	}{
		{scrubRunning, 0, 0, "0.00"}, {scrubFinished, 0, 0, "100.00"}, {scrubCancelled, 0, 0, "0.00"},
		{scrubRunning, 0, 100, "0.00"}, {scrubRunning, 1, 3, "33.33"}, {scrubRunning, 2, 3, "66.66"}, {scrubRunning, 100, 100, "100.00"},
		{scrubRunning, 999_999, 1_000_000, "99.99"}, {scrubRunning, math.MaxUint64 - 1, math.MaxUint64, "99.99"},
		{scrubRunning, math.MaxUint64, 5, "100.00"}, {scrubPaused, 1, math.MaxUint64, "0.00"},
	} {
		if got := scrubPercent(&client.Scrub{State: c.state, DoneBytes: c.done, TotalBytes: c.total}); got != c.want {
			t.Errorf("%v, %d of %d: %s, want %s", c.state, c.done, c.total, got, c.want)
		}
	}
}

func TestHours(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0:00:00", 499 * time.Millisecond: "0:00:00", 1500 * time.Millisecond: "0:00:02", time.Hour - 1: "1:00:00",
		26*time.Hour + 3*time.Minute + 9*time.Second: "26:03:09",
	} {
		if got := hours(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestScrubProgress(t *testing.T) {
	var out bytes.Buffer
	l := &scrubLine{&out}
	l.show(scrubs()["running"])
	l.show(&client.Scrub{State: scrubRunning})
	l.show(scrubs()["bad"]) // the summary follows
	l.wipe()
	want := "\r\x1b[K33.30 % of 0.98 GiB, 8.00 MiB/s, 2:00:03 left, no errors found\r\x1b[K0.00 % of 0 B, 0 B/s, no errors found\r\x1b[K"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	none := &scrubLine{}
	none.show(scrubs()["running"])
	none.wipe()
}
