package client

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

const scrubFinished = shinglev1.ScrubState_SCRUB_STATE_FINISHED

func TestScrubOptions(t *testing.T) {
	slot := uint32(0)
	for _, c := range []struct {
		o    ScrubOptions
		want *shinglev1.StartScrubRequest
	}{
		{ScrubOptions{}, &shinglev1.StartScrubRequest{}},
		{ScrubOptions{ReadOnly: true, Limit: 8 << 20}, &shinglev1.StartScrubRequest{ReadOnly: true, LimitBytesPerSecond: 8 << 20}},
		{ScrubOptions{File: "a"}, &shinglev1.StartScrubRequest{Scope: &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_File{File: "a"}}}},
		{ScrubOptions{BlockGroup: &slot}, &shinglev1.StartScrubRequest{Scope: &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_BlockGroup{}}}},
		{ScrubOptions{Device: "0"}, &shinglev1.StartScrubRequest{Scope: &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_Device{Device: "0"}}}},
	} {
		s := clienttest.New(t)
		got, err := dial(t, s).StartScrub(t.Context(), c.o)
		must(t, err)
		if got.GetScrubId() != "scrub-1" || got.GetState() != scrubRunning || !proto.Equal(got.GetScope(), c.want.GetScope()) {
			t.Errorf("answers %v", got)
		}
		req := proto.CloneOf(s.Scrubs.Starts[0])
		if req.GetRequestId() == "" {
			t.Error("without a request id it is not safe to repeat")
		}
		req.RequestId = ""
		if !proto.Equal(req, c.want) {
			t.Errorf("asked for %v, want %v", req, c.want)
		}
	}
}

// TestScrubVerbs takes a scrub through its states.
func TestScrubVerbs(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx := t.Context()
	for _, call := range []func(context.Context, string) (*Scrub, error){c.ScrubStatus, c.PauseScrub, c.ResumeScrub, c.CancelScrub} {
		if got, err := call(ctx, ""); !IsNotFound(err) || got != nil {
			t.Errorf("nothing was begun: %v, %v", got, err)
		}
	}
	begun, err := c.StartScrub(ctx, ScrubOptions{})
	must(t, err)
	if _, err := c.StartScrub(ctx, ScrubOptions{}); !IsScrubRunning(err) || !IsExists(err) {
		t.Errorf("a second one: %v", err)
	}
	id := begun.GetScrubId()
	for _, step := range []struct {
		call func(context.Context, string) (*Scrub, error)
		id   string
		want shinglev1.ScrubState
		code codes.Code
	}{
		{c.ResumeScrub, "", 0, codes.FailedPrecondition},
		{c.PauseScrub, "another", 0, codes.NotFound},
		{c.PauseScrub, id, scrubPaused, codes.OK},
		{c.PauseScrub, "", 0, codes.FailedPrecondition},
		{c.ScrubStatus, "", scrubPaused, codes.OK},
		{c.ResumeScrub, "", scrubRunning, codes.OK},
		{c.CancelScrub, id, scrubCancelled, codes.OK},
		{c.CancelScrub, id, 0, codes.FailedPrecondition},
		{c.ResumeScrub, id, scrubRunning, codes.OK},
	} {
		got, err := step.call(ctx, step.id)
		if CodeOf(err) != step.code || got.GetState() != step.want {
			t.Errorf("got %v, %v; want %v, %v", got, err, step.want, step.code)
		}
	}
	if got, err := c.SetScrubLimit(ctx, 5); err != nil || got.GetLimitBytesPerSecond() != 5 || s.Scrub().GetLimitBytesPerSecond() != 5 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestScrubCallsAreRepeated: an engine that goes away before it answers is asked again, and what it did
// without having answered is not taken for a refusal.
func TestScrubCallsAreRepeated(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	_, err := c.Info(t.Context()) // somebody is there
	must(t, err)
	lost := false
	gone := clienttest.Errorf(codes.Unavailable, "DRAINING", nil, "going down")
	// lose makes the first call of a method have its effect and lose its answer.
	lose := func(method string, effect func()) {
		lost = false
		s.Faults.Call = func(m string) error {
			if m != method || lost {
				return nil
			}
			lost = true
			effect()
			return gone
		}
	}
	lose("StartScrub", func() {})
	begun, err := c.StartScrub(t.Context(), ScrubOptions{})
	if err != nil || !lost || begun.GetScrubId() != "scrub-1" {
		t.Fatalf("%v, %v", begun, err)
	}
	for _, step := range []struct {
		method string
		call   func(context.Context, string) (*Scrub, error)
		to     shinglev1.ScrubState
	}{
		{"PauseScrub", c.PauseScrub, scrubPaused}, {"ResumeScrub", c.ResumeScrub, scrubRunning}, {"CancelScrub", c.CancelScrub, scrubCancelled},
	} {
		for _, happened := range []bool{true, false} {
			before := s.Scrub()
			lose(step.method, func() {
				if happened {
					after := proto.CloneOf(before)
					after.State = step.to
					s.SetScrub(after)
				}
			})
			got, err := step.call(t.Context(), "")
			if err != nil || !lost || got.GetState() != step.to {
				t.Errorf("%s, happened %t: %v, %v", step.method, happened, got, err)
			}
			if happened {
				s.SetScrub(before)
			}
		}
	}
	// What is somebody else's doing is a refusal all the same.
	lose("PauseScrub", func() {})
	if got, err := c.PauseScrub(t.Context(), ""); !IsPrecondition(err) {
		t.Errorf("%v, %v", got, err)
	}
	requests := map[string]bool{}
	s.Faults.Call = nil
	s.Scrubs.Starts = nil
	for range 2 {
		s.SetScrub(&Scrub{ScrubId: "old", State: scrubFinished})
		_, err := c.StartScrub(t.Context(), ScrubOptions{})
		must(t, err)
	}
	for _, r := range s.Scrubs.Starts {
		requests[r.GetRequestId()] = true
	}
	if len(requests) != 2 {
		t.Error("two scrubs have one request id")
	}
}

// at is a running scrub that has come so far.
func at(done uint64) *Scrub {
	return &Scrub{ScrubId: "s", State: scrubRunning, TotalBytes: 100, DoneBytes: done}
}

func ended(state shinglev1.ScrubState, done uint64) *Scrub {
	return &Scrub{ScrubId: "s", State: state, TotalBytes: 100, DoneBytes: done}
}

func TestWatchScrub(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	if got, err := c.WatchScrub(t.Context(), "", 0, nil); !IsNotFound(err) || got != nil {
		t.Errorf("nothing to watch: %v, %v", got, err)
	}
	s.SetScrub(at(10))
	steps := []*Scrub{at(40), at(70), ended(scrubFinished, 100)}
	var seen []uint64
	got, err := c.WatchScrub(t.Context(), "", 0, func(now *Scrub) {
		seen = append(seen, now.GetDoneBytes())
		if len(seen) <= len(steps) {
			s.SetScrub(steps[len(seen)-1])
		}
	})
	if err != nil || got.GetState() != scrubFinished || len(seen) != 4 || seen[3] != 100 {
		t.Errorf("%v, %v after %v", got, err, seen)
	}
	// One that does not run is answered at once.
	for _, state := range []shinglev1.ScrubState{scrubPaused, scrubCancelled, scrubFinished} {
		s.SetScrub(ended(state, 50))
		n := 0
		got, err := c.WatchScrub(t.Context(), "s", 300*time.Millisecond, func(*Scrub) { n++ })
		if err != nil || got.GetState() != state || n != 1 {
			t.Errorf("%v: %v, %v, %d answers", state, got, err, n)
		}
	}
	w := s.Scrubs.Watches
	if last := w[len(w)-1]; last.GetScrubId() != "s" || last.GetInterval().AsDuration() != 300*time.Millisecond || w[0].Interval != nil {
		t.Errorf("asked for %v and %v", w[0], last)
	}
}

// TestWatchScrubAcrossCrashes: the watch goes on with the same scrub when the engine comes back.
func TestWatchScrubAcrossCrashes(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.SetScrub(at(10))
	port := true
	n := 0
	got, err := c.WatchScrub(within(t), "", 0, func(now *Scrub) {
		switch n++; {
		case n > 4:
		case n == 4:
			s.SetScrub(ended(shinglev1.ScrubState_SCRUB_STATE_INTERRUPTED, 60))
		default:
			s.Stop()
			s.SetScrub(at(uint64(10 + 10*n)))
			port = port && s.Start()
		}
	})
	if !port {
		t.Skip("the port was taken by another process")
	}
	if err != nil || got.GetState() != shinglev1.ScrubState_SCRUB_STATE_INTERRUPTED || n != 5 {
		t.Errorf("%v, %v after %d", got, err, n)
	}
	for i, w := range s.Scrubs.Watches {
		if want := map[bool]string{true: "", false: "s"}[i == 0]; w.GetScrubId() != want {
			t.Errorf("watch %d is of %q", i, w.GetScrubId())
		}
	}
}

// TestWatchScrubEnds: a watch that is given up can still arrive at the server, so each case has its own.
func TestWatchScrubEnds(t *testing.T) {
	watched := func(t *testing.T) (*clienttest.Server, *Client) {
		s := clienttest.New(t)
		s.SetScrub(at(30))
		return s, dial(t, s, WithRetryTime(100*time.Millisecond))
	}
	t.Run("the caller has enough", func(t *testing.T) {
		s, c := watched(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, err := c.WatchScrub(ctx, "", 0, func(*Scrub) { cancel() })
		if CodeOf(err) != codes.Canceled || got.GetDoneBytes() != 30 || s.Scrub().GetState() != scrubRunning {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		s, c := watched(t)
		s.Faults.Call = func(string) error {
			return clienttest.Errorf(codes.InvalidArgument, "INVALID_ARGUMENT", nil, "interval: no")
		}
		if got, err := c.WatchScrub(t.Context(), "", 1, nil); !IsInvalid(err) || got != nil {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("the caller has no time while the engine is away", func(t *testing.T) {
		s, c := watched(t)
		s.Faults.Call = func(string) error { return clienttest.Errorf(codes.Unavailable, "DRAINING", nil, "going down") }
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.WatchScrub(ctx, "", 0, nil); CodeOf(err) != codes.DeadlineExceeded {
			t.Errorf("%v", err)
		}
	})
	t.Run("the engine stays away", func(t *testing.T) {
		s, c := watched(t)
		got, err := c.WatchScrub(t.Context(), "", 0, func(*Scrub) { go s.Stop() })
		if !IsUnavailable(err) || got.GetDoneBytes() != 30 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestScrubFindings(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	count := func(id string, uncorrected bool) (n int, err error) {
		for f, ferr := range c.ScrubFindings(t.Context(), id, uncorrected) {
			if ferr != nil {
				return n, ferr
			}
			if f.GetOffset() != s.Scrubs.Findings[n].GetOffset() && !uncorrected {
				t.Errorf("finding %d is %v", n, f)
			}
			n++
		}
		return n, nil
	}
	if n, err := count("", false); n != 0 || !IsNotFound(err) {
		t.Errorf("%d, %v", n, err)
	}
	s.SetScrub(ended(scrubFinished, 100))
	if n, err := count("", false); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for i := range 7 {
		f := &ScrubFinding{Name: "a", Offset: int64(i) * 4096, Outcome: shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_UNCORRECTABLE}
		if i%3 == 0 {
			f.Outcome = shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_REPAIRED
		}
		s.Scrubs.Findings = append(s.Scrubs.Findings, f)
	}
	s.Scrubs.Lists = nil
	if n, err := count("s", false); n != 7 || err != nil || len(s.Scrubs.Lists) != 3 {
		t.Errorf("%d in %d pages, %v", n, len(s.Scrubs.Lists), err)
	}
	if n, err := count("", true); n != 4 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if last := s.Scrubs.Lists[len(s.Scrubs.Lists)-1]; !last.GetUncorrectedOnly() || last.GetPageToken() == "" {
		t.Errorf("asked for %v", last)
	}
}
