package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

const (
	scrubPaused      = shinglev1.ScrubState_SCRUB_STATE_PAUSED
	scrubCancelled   = shinglev1.ScrubState_SCRUB_STATE_CANCELLED
	scrubInterrupted = shinglev1.ScrubState_SCRUB_STATE_INTERRUPTED
	scrubFailed      = shinglev1.ScrubState_SCRUB_STATE_FAILED
)

// scrubs are stores in which a scrub stands as their names say.
func scrubs() map[string]*shinglev1.Scrub {
	const mib = 1 << 20
	running := &shinglev1.Scrub{
		ScrubId: "s-1", State: scrubRunning, StartTime: timestamppb.New(time.Unix(1_000_000_000, 0)), ActiveTime: durationpb.New(65 * time.Second),
		TotalBytes: 1000 * mib, DoneBytes: 333 * mib, RateBytesPerSecond: 8 * mib, Eta: durationpb.New(2*time.Hour + 3*time.Second),
		Counters: &shinglev1.ScrubCounters{
			DataExtentsScrubbed: 1, TreeExtentsScrubbed: 2, DataBytesScrubbed: 3, TreeBytesScrubbed: 4, NoCsum: 8, CsumDiscards: 9,
			LastPhysical: 15, ExtentLookups: 16, CsumLookups: 17, ReadOperations: 18, BytesRead: 19,
		},
	}
	limited := proto.CloneOf(running)
	limited.LimitBytesPerSecond, limited.SkippedBytes, limited.ReadOnly = 8*mib, 5*mib, true
	limited.Scope = &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_BlockGroup{}}
	over := func(state shinglev1.ScrubState, why string) *shinglev1.Scrub {
		s := proto.CloneOf(running)
		s.State, s.Error, s.Eta = state, why, nil
		return s
	}
	good := over(scrubFinished, "")
	good.DoneBytes, good.EndTime = good.TotalBytes, timestamppb.New(time.Unix(1_000_000_065, 0))
	good.Scope = &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_File{File: "docs/a"}}
	mended := proto.CloneOf(good)
	mended.Scope = nil
	mended.Counters.CsumErrors, mended.Counters.CorrectedErrors, mended.Findings = 2, 2, 2
	bad := proto.CloneOf(mended)
	bad.Counters.ReadErrors, bad.Counters.SuperErrors, bad.Counters.VerifyErrors = 1, 3, 4
	bad.Counters.UncorrectableErrors, bad.Counters.UnverifiedErrors, bad.Counters.MallocErrors, bad.Findings = 8, 1, 2, 10
	bad.Scope = &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_Device{Device: "0"}}
	return map[string]*shinglev1.Scrub{
		"none": nil, "running": running, "limited": limited, "paused": over(scrubPaused, ""), "cancelled": over(scrubCancelled, ""),
		"interrupted": over(scrubInterrupted, "device 0: zone 17: medium error"), "failed": over(scrubFailed, "metadata: is gone"),
		"finished": good, "mended": mended, "bad": bad, "empty": {ScrubId: "s-2", State: scrubFinished}, "fresh": {ScrubId: "s-3", State: scrubRunning},
	}
}

func scrubFindings() []*shinglev1.Corruption {
	return []*shinglev1.Corruption{
		{Name: "docs/a", FileId: 7, Offset: 8192, Length: 4096, Address: 1 << 30, Zone: &shinglev1.ZoneRef{Device: "0", Zone: 17, Offset: 12288},
			ExpectedCrc32C: 0x12345678, ActualCrc32C: 0xabc, Outcome: shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_UNCORRECTABLE,
			Time: timestamppb.New(time.Unix(1_000_000_000, 0)), OtherReferences: 2},
		{Name: "docs/a", FileId: 7, Length: 131072, Address: 1<<30 + 4096, Zone: &shinglev1.ZoneRef{Device: "0", Zone: 17, Offset: 16384},
			ExpectedCrc32C: 1, Unreadable: true, Outcome: shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_REPAIRED, OtherReferences: 1},
		{Length: 4096, Address: 5, Zone: &shinglev1.ZoneRef{Device: "0"}, Outcome: shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_GONE},
		{Object: "devices/0/label", Zone: &shinglev1.ZoneRef{Device: "0", Zone: 1, Offset: 4096}, ExpectedCrc32C: 2, ActualCrc32C: 3,
			Outcome: shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_NOT_REPAIRED_READ_ONLY},
		{Object: "metadata/extents", ExpectedCrc32C: 4, ActualCrc32C: 5, Outcome: shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_UNCORRECTABLE},
	}
}

var dates = regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}`)

// TestScrubShown shows what the verbs of scrub print of scrubs in each state, what they asked for, and the
// exit status.
func TestScrubShown(t *testing.T) {
	s := clienttest.New(t)
	s.Info.StoreUuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	s.Scrubs.Findings = scrubFindings()
	datadriven.RunTest(t, "testdata/scrub", func(t *testing.T, d *datadriven.TestData) string {
		scrub, ok := scrubs()[d.Cmd]
		if !ok {
			t.Fatalf("%s: no scrub %q", d.Pos, d.Cmd)
		}
		s.SetScrub(scrub)
		s.Scrubs.Starts = nil
		r := cli(t, s.Addr, "", append([]string{"scrub"}, strings.Fields(d.Input)...)...)
		out := ""
		for _, req := range s.Scrubs.Starts {
			req.RequestId = ""
			out += "asked: " + strings.Join(strings.Fields(req.String()), " ") + "\n"
		}
		if now := s.Scrub(); now.GetState() != scrub.GetState() {
			out += "now: " + scrubState(now) + "\n"
		}
		if now := s.Scrub(); now.GetLimitBytesPerSecond() != scrub.GetLimitBytesPerSecond() {
			out += fmt.Sprintf("limit: %d\n", now.GetLimitBytesPerSecond())
		}
		out += dates.ReplaceAllString(r.out, "DATE") + r.err
		if r.code != exitOK {
			out += fmt.Sprintf("exit %d\n", r.code)
		}
		return out
	})
}

// TestScrubForeground: start -B and resume -B wait for the end and say how it ended.
func TestScrubForeground(t *testing.T) {
	for _, c := range []struct {
		state    shinglev1.ScrubState
		counters *shinglev1.ScrubCounters
		why      string
		code     int
		message  string
	}{
		{scrubFinished, &shinglev1.ScrubCounters{CsumErrors: 2, CorrectedErrors: 2}, "", exitOK, "^$"},
		{scrubFinished, &shinglev1.ScrubCounters{CsumErrors: 2, UncorrectableErrors: 2}, "", exitUncorrectable, "^client: 2 uncorrectable errors; see `client scrub findings scrub-1`\n$"},
		{scrubFinished, &shinglev1.ScrubCounters{CsumErrors: 1, UncorrectableErrors: 1}, "", exitUncorrectable, "^client: 1 uncorrectable error; see"},
		{scrubPaused, nil, "", exitError, "^client: the scrub is paused, incomplete; `client scrub resume` goes on with it\n$"},
		{scrubCancelled, nil, "", exitError, "is cancelled, incomplete"},
		{scrubInterrupted, nil, "zone 17: medium error", exitError, "is interrupted, incomplete: zone 17: medium error; `client scrub resume`"},
		{scrubFailed, nil, "the metadata is gone", exitError, "^client: the scrub failed: the metadata is gone\n$"},
	} {
		for _, verb := range []string{"start", "resume"} {
			t.Run(verb+"/"+c.state.String(), func(t *testing.T) {
				s := clienttest.New(t)
				if verb == "resume" {
					s.SetScrub(&shinglev1.Scrub{ScrubId: "scrub-1", State: scrubCancelled, TotalBytes: 100})
				}
				s.Faults.Call = func(method string) error {
					if method == "WatchScrub" {
						time.AfterFunc(20*time.Millisecond, func() {
							s.SetScrub(&shinglev1.Scrub{ScrubId: "scrub-1", State: c.state, TotalBytes: 100, DoneBytes: 60, Counters: c.counters, Error: c.why})
						})
					}
					return nil
				}
				r := cli(t, s.Addr, "", "scrub", verb, "-B")
				r.failed(t, c.code, c.message)
				if word := strings.ToLower(strings.TrimPrefix(c.state.String(), "SCRUB_STATE_")); !strings.Contains(r.out, "Status:           "+word) {
					t.Errorf("said %q", r.out)
				}
			})
		}
	}
}

func TestScrubForegroundForms(t *testing.T) {
	s := clienttest.New(t)
	s.Faults.Call = func(method string) error {
		if method == "WatchScrub" {
			bad := scrubs()["bad"]
			bad.ScrubId = s.Scrub().GetScrubId()
			s.SetScrub(bad)
		}
		return nil
	}
	run := func(args ...string) string {
		t.Helper()
		r := cli(t, s.Addr, "", append([]string{"scrub", "start", "-B"}, args...)...)
		r.failed(t, exitUncorrectable, "^client: 8 uncorrectable errors")
		return r.out
	}
	if out := run("-q"); out != "" {
		t.Errorf("said %q", out)
	}
	if out := run("-R"); !strings.Contains(out, "\n\tcsum_errors: 2\n") || strings.Contains(out, "Error summary") {
		t.Errorf("said %q", out)
	}
	var j scrubJSON
	if unmarshal(t, run("--output", "json", "-q"), &j); j.State != "finished" || j.Counters["csum_errors"] != 2 {
		t.Errorf("%+v", j)
	}
}

// TestScrubStartInterrupted: Ctrl-C of a scrub in the foreground cancels it, as btrfs does, and so does a
// timeout; of one that is watched it does not.
func TestScrubStartInterrupted(t *testing.T) {
	s := clienttest.New(t)
	interrupted := func(args ...string) result {
		t.Helper()
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		s.Faults.Call = func(method string) error {
			if method == "WatchScrub" {
				time.AfterFunc(50*time.Millisecond, interrupt)
			}
			return nil
		}
		return cliContext(t, ctx, s.Addr, "", append([]string{"scrub"}, args...)...)
	}
	const cancelled = "^client: interrupted: the scrub is cancelled; `client scrub resume` goes on with it\n$"
	r := interrupted("start", "-B")
	r.failed(t, exitError, cancelled)
	if !strings.Contains(r.out, "Status:           cancelled, incomplete\n") || s.Scrub().GetState() != scrubCancelled {
		t.Errorf("said %q, and is %v", r.out, s.Scrub())
	}
	interrupted("resume", "-B", "-q").failed(t, exitError, cancelled)
	if s.Scrub().GetState() != scrubCancelled {
		t.Errorf("is %v", s.Scrub())
	}
	cli(t, s.Addr, "", "scrub", "resume").ok(t)
	interrupted("watch").failed(t, exitError, "^client: interrupted\n$")
	if s.Scrub().GetState() != scrubRunning {
		t.Errorf("is %v", s.Scrub())
	}
	s.Faults.Call = nil
	cli(t, s.Addr, "", "scrub", "cancel").ok(t)
	cli(t, s.Addr, "", "scrub", "start", "-B", "--timeout", "600ms").failed(t, exitError, "^client: not done within the 600ms of --timeout: the scrub is cancelled")

	// One that was over before counts as what it came to.
	s.Faults.Call = func(method string) error {
		if method == "CancelScrub" {
			s.SetScrub(scrubs()["finished"])
			now := s.Scrub()
			now.ScrubId = "scrub-3"
			s.SetScrub(now)
		}
		return nil
	}
	s.SetScrub(nil)
	r = cli(t, s.Addr, "", "scrub", "start", "-B", "--timeout", "600ms")
	if r.code != exitOK || !strings.Contains(r.out, "Status:           finished\n") {
		t.Errorf("%+v", r)
	}
	// And when nobody answers any more, it says so.
	s.SetScrub(nil)
	s.Faults.Call = func(method string) error {
		if method == "CancelScrub" {
			return clienttest.Errorf(codes.Internal, "INTERNAL", nil, "no such luck")
		}
		return nil
	}
	cli(t, s.Addr, "", "scrub", "start", "-B", "--timeout", "600ms").failed(t, exitError,
		"^client: not done within the 600ms of --timeout, but the scrub could not be cancelled: no such luck\n$")
}

func TestScrubWatch(t *testing.T) {
	s := clienttest.New(t)
	follow := func(args ...string) result {
		steps := []*shinglev1.Scrub{scrubs()["limited"], scrubs()["mended"]}
		s.SetScrub(scrubs()["running"])
		stop, begun := make(chan struct{}), make(chan struct{})
		done := make(chan struct{})
		s.Faults.Call = func(string) error { // called with the watch, and at its end for what the store is
			select {
			case <-begun:
			default:
				close(begun)
			}
			return nil
		}
		go func() {
			defer close(done)
			<-begun
			for _, step := range steps {
				select {
				case <-time.After(100 * time.Millisecond):
					s.SetScrub(step)
				case <-stop:
				}
			}
		}()
		r := cli(t, s.Addr, "", append([]string{"scrub", "watch", "--interval", "100ms"}, args...)...)
		close(stop)
		<-done
		return r
	}
	out := follow().ok(t)
	const line = "33.30 % of 0.98 GiB, 8.00 MiB/s, 2:00:03 left, no errors found\n"
	if !strings.HasPrefix(out, line+line+"UUID:") || !strings.Contains(out, "Error summary:    csum=2\n") {
		t.Errorf("said %q", out)
	}
	if out := follow("-q").ok(t); !strings.HasPrefix(out, "UUID:") {
		t.Errorf("said %q", out)
	}
	lines := strings.Split(strings.TrimSpace(follow("--output", "json").ok(t)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%q", lines)
	}
	for i, want := range []string{"running", "running", "finished"} {
		var j scrubJSON
		unmarshal(t, lines[i], &j)
		if j.State != want {
			t.Errorf("line %d: %+v", i, j)
		}
	}
	for _, bad := range []string{"99ms", "61m", "-1s", "0"} {
		cli(t, s.Addr, "", "scrub", "watch", "--interval", bad).failed(t, exitError, "--interval")
	}
}

// TestScrubExitStatus: 2 and 3 mean what they mean to btrfs scrub and nothing else.
func TestScrubExitStatus(t *testing.T) {
	s := clienttest.New(t)
	for _, args := range [][]string{
		{"scrub"}, {"scrub", "frob"}, {"scrub", "resume", "--frob"}, {"scrub", "resume", "a", "b"}, {"scrub", "resume", "--output", "xml"},
		{"scrub", "status", "a", "b"}, {"scrub", "start", "x"}, {"scrub", "start", "-R"}, {"scrub", "resume", "-R"},
		{"scrub", "start", "--file", ""}, {"scrub", "start", "--device", ""},
		{"scrub", "start", "--file", "a", "--device", "0"}, {"scrub", "start", "--limit", "fast"}, {"scrub", "start", "--block-group", "-1"},
		{"scrub", "limit", "-1"}, {"scrub", "limit", "8 M"}, {"scrub", "limit", "1", "2"},
		{"scrub", "status", "gone"}, {"scrub", "watch", "gone"}, {"scrub", "watch"}, {"scrub", "pause"}, {"scrub", "cancel"}, {"scrub", "limit"},
		{"scrub", "limit", "1"}, {"scrub", "findings"},
	} {
		if r := cli(t, s.Addr, "", args...); r.code != exitError || !strings.HasPrefix(r.err, "client: ") {
			t.Errorf("%q: exit %d, %q", args, r.code, r.err)
		}
	}
	for code, want := range map[codes.Code]int{
		codes.NotFound: exitError, codes.InvalidArgument: exitError, codes.OutOfRange: exitError, codes.DataLoss: exitError,
		codes.FailedPrecondition: exitError, codes.Internal: exitError, codes.Unavailable: exitUnavailable,
	} {
		s.Faults.Call = func(string) error { return clienttest.Errorf(code, "R", nil, "no") }
		patience := "10s"
		if code == codes.Unavailable { // it is asked again for as long
			patience = "500ms"
		}
		cli(t, s.Addr, "", "scrub", "start", "--timeout", patience).failed(t, want, "^client: no\n$")
	}
	cli(t, "127.0.0.1:1", "", "scrub", "resume").failed(t, exitUnavailable, "no engine answers")
	// A store that takes no changes has something to resume all the same.
	s.Faults.Call = func(method string) error {
		if method == "ResumeScrub" {
			return clienttest.Errorf(codes.FailedPrecondition, "READ_ONLY", nil, "the store takes no changes")
		}
		return nil
	}
	s.SetScrub(scrubs()["paused"])
	cli(t, s.Addr, "", "scrub", "resume").failed(t, exitError, "^client: the store takes no changes\n$")
}
