package main

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"github.com/shingle-store/shingle/api/client"
	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]uint64{
		"0": 0, "1": 1, "4096": 4096, "1B": 1, "1K": 1 << 10, "1KiB": 1 << 10, "1KB": 1000, "3M": 3 << 20, "3MiB": 3 << 20,
		"3MB": 3e6, "2G": 2 << 30, "2GiB": 2 << 30, "2GB": 2e9, "1T": 1 << 40, "1TB": 1e12, "1P": 1 << 50, "1PB": 1e15,
		"15E": 15 << 60, "18EB": 18e18, "18446744073709551615": math.MaxUint64, "007": 7,
	} {
		if got, err := parseBytes(s); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "-1", "+1", "K", "B", "iB", "1iB", "1.5G", "1k", "1 K", "1KK", "1KBB", "1KiBiB", "1Ki", "1Z", "16E", "19EB", "18446744073709551616", "0x10",
	} {
		if got, err := parseBytes(s); err == nil || !strings.Contains(err.Error(), "is no size") {
			t.Errorf("%q is %d, %v", s, got, err)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"1", "1KiB", "1KB", "15E", "1iB", "B"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseBytes(s)
		v := byteValue{}
		if verr := v.Set(s); (verr == nil) != (err == nil) || v.set != (err == nil) {
			t.Fatalf("%v, %v", err, verr)
		}
		if err != nil {
			return
		}
		if back, err := parseBytes(v.String()); err != nil || back != n {
			t.Fatalf("%q is %d, written %q is %d, %v", s, n, v.String(), back, err)
		}
	})
}

const (
	stateRunning    = shinglev1.MaintenanceState_MAINTENANCE_STATE_RUNNING
	stateComplete   = shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE
	stateWithErrors = shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE_WITH_ERRORS
	stateCancelled  = shinglev1.MaintenanceState_MAINTENANCE_STATE_CANCELLED
)

// TestTrimShown shows what trim prints, for each way it can end.
func TestTrimShown(t *testing.T) {
	s := clienttest.New(t)
	const mib = 1 << 20
	whole := &shinglev1.TrimResponse{
		State: stateComplete, BytesTrimmed: 3700 * mib, ExtentsTrimmed: 120, DiscardCommands: 7, ZonesReset: 9, BytesDone: 20000 * mib,
		BytesTotal: 20000 * mib, NextStart: 20000 * mib, EffectiveMinLength: 4096, BytesInUse: 10000 * mib, BytesSkippedAlreadyTrimmed: 5000 * mib,
		BytesSkippedMinLength: 100 * mib, BytesSkippedPartialZone: 700 * mib, BytesSkippedBusy: 60 * mib, BytesSkippedUnsupported: 40 * mib,
		BytesSkippedGap: 200 * mib, BytesSkippedQuarantined: 200 * mib,
	}
	failed := proto.CloneOf(whole)
	failed.State, failed.BytesTrimmed, failed.BytesFailed, failed.FailedZones, failed.FirstError = stateWithErrors, 3600*mib, 100*mib, 2, "zone 17: medium error"
	cancelled := &shinglev1.TrimResponse{State: stateCancelled, BytesTrimmed: 5 * mib, ExtentsTrimmed: 1, BytesDone: 6 * mib, BytesTotal: 100 * mib, NextStart: 6 * mib, BytesInUse: mib, EffectiveMinLength: 4096}
	nothing := &shinglev1.TrimResponse{State: stateComplete, BytesTotal: 4096, BytesDone: 4096, BytesSkippedAlreadyTrimmed: 4096, NextStart: 4096, EffectiveMinLength: 4096}
	results := map[string]*shinglev1.TrimResponse{"whole": whole, "failed": failed, "cancelled": cancelled, "nothing": nothing}
	datadriven.RunTest(t, "testdata/trim", func(t *testing.T, d *datadriven.TestData) string {
		s.Trims.Replies = []*shinglev1.TrimResponse{{State: stateRunning}, results[d.Cmd]}
		s.Trims.Requests = nil
		r := cli(t, s.Addr, "", append([]string{"trim"}, strings.Fields(d.Input)...)...)
		out := ""
		for _, req := range s.Trims.Requests {
			out = "asked: " + strings.Join(strings.Fields(req.String()), " ") + "\n"
		}
		out += r.out + r.err
		if r.code != exitOK {
			out += "exit " + string(rune('0'+r.code)) + "\n"
		}
		return out
	})
}

// Interrupted, trim prints the count and fails.
func TestTrimInterrupted(t *testing.T) {
	s := clienttest.New(t)
	s.Trims.Hold = make(chan struct{})
	s.Trims.Replies = []*shinglev1.TrimResponse{
		{State: stateRunning}, {State: stateRunning, BytesTrimmed: 3 << 20, BytesDone: 4 << 20, BytesTotal: 100 << 20, NextStart: 4 << 20}, {State: stateComplete},
	}
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, interrupt)
	r := cliContext(t, ctx, s.Addr, "", "trim", "-v")
	r.failed(t, exitError, "^client: interrupted\n$")
	for _, want := range []string{"3.00 MiB (3145728 bytes) trimmed\n", "to go on: --offset 4194304\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("printed %q, not %q", r.out, want)
		}
	}
	if s.Trims.Cancels != 1 {
		t.Errorf("%d times cancelled", s.Trims.Cancels)
	}
	r = cli(t, s.Addr, "", "trim", "--timeout", "200ms", "--output", "json")
	r.failed(t, exitError, "not done within the 200ms of --timeout")
	var j trimJSON
	unmarshal(t, r.out, &j)
	if j.Trimmed != 3<<20 || j.State != "cancelled" || j.NextStart != 4<<20 {
		t.Errorf("%+v", j)
	}
}

func TestTrimProgress(t *testing.T) {
	var out bytes.Buffer
	l := &trimLine{w: &out, start: time.Now()}
	l.show(&client.TrimSummary{State: stateRunning, BytesTotal: 200 << 20, BytesDone: 50 << 20, BytesTrimmed: 10 << 20})
	l.show(&client.TrimSummary{State: stateRunning})
	l.show(&client.TrimSummary{State: stateComplete, BytesTotal: 1, BytesDone: 1})
	l.wipe()
	if want := "\r\x1b[K25.0 % of 200 MiB, 10.0 MiB trimmed, 0s\r\x1b[K100.0 % of 0 B, 0 B trimmed, 0s\r\x1b[K"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	none := &trimLine{}
	none.show(&client.TrimSummary{})
	none.wipe()
}
