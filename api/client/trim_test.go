package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

const (
	running   = shinglev1.MaintenanceState_MAINTENANCE_STATE_RUNNING
	complete  = shinglev1.MaintenanceState_MAINTENANCE_STATE_COMPLETE
	cancelled = shinglev1.MaintenanceState_MAINTENANCE_STATE_CANCELLED
)

func TestTrim(t *testing.T) {
	s := clienttest.New(t)
	s.Trims.Replies = []*TrimSummary{
		{State: running, BytesTotal: 100}, {State: running, BytesTotal: 100, BytesDone: 40, BytesTrimmed: 30},
		{State: complete, BytesTotal: 100, BytesDone: 100, BytesTrimmed: 70},
	}
	c := dial(t, s)
	var seen []*TrimSummary
	r, err := c.Trim(t.Context(), TrimOptions{}, func(r *TrimSummary) { seen = append(seen, r) })
	must(t, err)
	if len(seen) != 3 || !proto.Equal(r, s.Trims.Replies[2]) {
		t.Errorf("%d summaries, the last %v", len(seen), r)
	}
	o := TrimOptions{Start: 1, Length: proto.Uint64(2), MinLength: 3, Reclaim: true, DryRun: true}
	_, err = c.Trim(t.Context(), o, nil)
	must(t, err)
	want := []*shinglev1.TrimRequest{{}, {Start: 1, Length: proto.Uint64(2), MinLength: 3, Reclaim: true, DryRun: true}}
	for i, r := range s.Trims.Requests {
		if !proto.Equal(r, want[i]) {
			t.Errorf("asked for %v, want %v", r, want[i])
		}
	}
	if s.Trims.Cancels != 0 {
		t.Error("a trim that ended was cancelled")
	}
}

// When the caller gives up, a trim that has begun is cancelled and its count kept; one that waits
// for another to end cancels nobody.
func TestTrimThatIsGivenUp(t *testing.T) {
	for _, begun := range []bool{true, false} {
		s := clienttest.New(t)
		s.Trims.Hold = make(chan struct{})
		s.Trims.Replies = []*TrimSummary{{State: running, BytesTotal: 100}, {State: running, BytesTotal: 100}, {State: complete}}
		if begun {
			s.Trims.Replies[1].BytesDone, s.Trims.Replies[1].BytesTrimmed = 40, 30
		}
		c := dial(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		r, err := c.Trim(ctx, TrimOptions{}, func(*TrimSummary) {
			if n++; n == 2 {
				cancel()
			}
		})
		must(t, err)
		if r.GetState() != cancelled || begun != (r.GetBytesTrimmed() == 30) || begun != (s.Trims.Cancels == 1) {
			t.Errorf("begun %t: %v, %d cancels", begun, r, s.Trims.Cancels)
		}
		cancel()
	}
}

func TestTrimFails(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.Trims.Replies = []*TrimSummary{{State: running, BytesTotal: 100, BytesDone: 10, NextStart: 10}}
	if r, err := c.Trim(t.Context(), TrimOptions{}, nil); CodeOf(err) != codes.Internal || r.GetNextStart() != 10 {
		t.Errorf("without a last summary: %v, %v", r, err)
	}
	s.Faults.Call = func(method string) error {
		if method == "Trim" {
			return status.Error(codes.InvalidArgument, "start: no")
		}
		return nil
	}
	if r, err := c.Trim(t.Context(), TrimOptions{}, nil); !IsInvalid(err) || r != nil {
		t.Errorf("refused: %v, %v", r, err)
	}

	// An engine that comes back is asked again, as long as nothing was shown.
	tries := 0
	s.Faults.Call = func(string) error {
		if tries++; tries < 3 {
			return status.Error(codes.Unavailable, "starting")
		}
		return nil
	}
	s.Trims.Replies = []*TrimSummary{{State: running}, {State: complete, BytesTrimmed: 5}}
	if r, err := c.Trim(t.Context(), TrimOptions{}, nil); err != nil || r.GetBytesTrimmed() != 5 {
		t.Errorf("%v, %v", r, err)
	}

	// A crash in the middle leaves the count so far.
	s.Faults.Call = nil
	s.Trims.Hold = make(chan struct{})
	s.Trims.Replies = []*TrimSummary{{State: running}, {State: running, BytesDone: 40, NextStart: 40}, {State: complete}}
	n := 0
	r, err := c.Trim(t.Context(), TrimOptions{}, func(*TrimSummary) {
		if n++; n == 2 {
			go s.Stop()
		}
	})
	if !IsUnavailable(err) || r.GetNextStart() != 40 {
		t.Errorf("a crash: %v, %v", r, err)
	}
}

// TestTrimGivenUp: a call that is over here can still arrive there, so its server serves no other.
func TestTrimGivenUp(t *testing.T) {
	c := dial(t, clienttest.New(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := c.Trim(ctx, TrimOptions{}, nil); !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("given up before it began: %v, %v", r, err)
	}
}

func TestTrimDeadline(t *testing.T) {
	s := clienttest.New(t)
	s.Trims.Hold = make(chan struct{})
	s.Trims.Replies = []*TrimSummary{{State: running}, {State: running, BytesDone: 40, BytesTrimmed: 20}, {State: complete}}
	c := dial(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if r, err := c.Trim(ctx, TrimOptions{}, nil); err != nil || r.GetState() != cancelled || r.GetBytesTrimmed() != 20 {
		t.Errorf("%v, %v", r, err)
	}
}
