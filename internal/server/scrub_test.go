package server

import (
	"context"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
)

func fileScope(name string) *pb.ScrubScope {
	return &pb.ScrubScope{Target: &pb.ScrubScope_File{File: name}}
}

func groupScope(slot uint32) *pb.ScrubScope {
	return &pb.ScrubScope{Target: &pb.ScrubScope_BlockGroup{BlockGroup: slot}}
}

func deviceScope(device string) *pb.ScrubScope {
	return &pb.ScrubScope{Target: &pb.ScrubScope_Device{Device: device}}
}

func TestScrubRequests(t *testing.T) {
	long := strings.Repeat("x", 256)
	start := func(r *pb.StartScrubRequest) error { return second(startScrubRequest("op", r)) }
	watch := func(d *durationpb.Duration) error {
		return second(watchScrubRequest(&pb.WatchScrubRequest{Interval: d}))
	}
	findings := func(r *pb.ListScrubFindingsRequest) error { return third(findingsRequest(r)) }
	limit := func(n uint64) error {
		c := check{op: "op"}
		c.scrubLimit(n)
		return c.err
	}
	for _, c := range []struct {
		field string // "": valid
		err   error
	}{
		{"", start(&pb.StartScrubRequest{})},
		{"", start(&pb.StartScrubRequest{Scope: &pb.ScrubScope{}})},
		{"", start(&pb.StartScrubRequest{Scope: fileScope("a/b"), ReadOnly: true, LimitBytesPerSecond: math.MaxInt64, RequestId: long[:64]})},
		{"", start(&pb.StartScrubRequest{Scope: groupScope(0)})},
		{"", start(&pb.StartScrubRequest{Scope: deviceScope("0")})},
		{"scope.file", start(&pb.StartScrubRequest{Scope: fileScope("")})},
		{"scope.file", start(&pb.StartScrubRequest{Scope: fileScope("/a")})},
		{"scope.device", start(&pb.StartScrubRequest{Scope: deviceScope("")})},
		{"scope.device", start(&pb.StartScrubRequest{Scope: deviceScope(long)})},
		{"request_id", start(&pb.StartScrubRequest{RequestId: long[:65]})},
		{"limit_bytes_per_second", start(&pb.StartScrubRequest{LimitBytesPerSecond: math.MaxInt64 + 1})},
		{"", limit(0)},
		{"", limit(math.MaxInt64)},
		{"limit_bytes_per_second", limit(math.MaxUint64)},
		{"", checkScrubID("op", "")},
		{"", checkScrubID("op", "17")},
		{"scrub_id", checkScrubID("op", long)},
		{"", watch(nil)},
		{"", watch(durationpb.New(0))},
		{"", watch(durationpb.New(minWatchInterval))},
		{"", watch(durationpb.New(maxWatchInterval))},
		{"interval", watch(durationpb.New(minWatchInterval - 1))},
		{"interval", watch(durationpb.New(maxWatchInterval + 1))},
		{"interval", watch(durationpb.New(-time.Second))},
		{"interval", watch(&durationpb.Duration{Seconds: 1, Nanos: -1})},
		{"interval", watch(&durationpb.Duration{Seconds: math.MaxInt64})},
		{"scrub_id", second(watchScrubRequest(&pb.WatchScrubRequest{ScrubId: long}))},
		{"", findings(&pb.ListScrubFindingsRequest{PageSize: math.MaxInt32, UncorrectedOnly: true})},
		{"page_size", findings(&pb.ListScrubFindingsRequest{PageSize: -1})},
		{"scrub_id", findings(&pb.ListScrubFindingsRequest{ScrubId: long})},
		{"page_token", findings(&pb.ListScrubFindingsRequest{PageToken: "x"})},
		{"page_token", findings(&pb.ListScrubFindingsRequest{PageToken: pageToken("scrub findings\x00", "five id")})},
		{"page_token", findings(&pb.ListScrubFindingsRequest{PageToken: pageToken("scrub findings\x00", "5")})},
		{"page_token", findings(&pb.ListScrubFindingsRequest{PageToken: pageToken("scrub findings\x00", "05 id")})},
		{"page_token", findings(&pb.ListScrubFindingsRequest{PageToken: pageToken("zones", "5 id")})},
		{"page_token", findings(&pb.ListScrubFindingsRequest{UncorrectedOnly: true, PageToken: pageToken("scrub findings\x00", "5 id")})},
	} {
		if c.field == "" {
			if c.err != nil {
				t.Errorf("valid, but: %v", c.err)
			}
			continue
		}
		wantField(t, c.err, c.field)
	}
}

func TestScrubRequestsArriveWhole(t *testing.T) {
	got, err := startScrubRequest("op", &pb.StartScrubRequest{Scope: groupScope(7), ReadOnly: true, LimitBytesPerSecond: 8 << 20, RequestId: "r"})
	slot := uint32(7)
	want := engine.ScrubRequest{Scope: engine.ScrubScope{BlockGroup: &slot}, ReadOnly: true, Limit: 8 << 20, RequestID: "r"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, s := range []*pb.ScrubScope{nil, fileScope("a"), groupScope(0), groupScope(9), deviceScope("0")} {
		r, err := startScrubRequest("op", &pb.StartScrubRequest{Scope: s})
		if back := scrubScopeProto(r.Scope); err != nil || !proto.Equal(back, s) {
			t.Errorf("%v came back as %v, %v", s, back, err)
		}
	}
	if every, _ := watchScrubRequest(&pb.WatchScrubRequest{}); every != time.Second {
		t.Errorf("every %v", every)
	}
	// A walk that began without an id stays with the scrub that it began with.
	q, query, err := findingsRequest(&pb.ListScrubFindingsRequest{UncorrectedOnly: true})
	if err != nil || q.ID != "" || q.After != 0 || q.Limit != maxFindingsPage || !q.UncorrectedOnly {
		t.Errorf("%+v, %v", q, err)
	}
	token := pageToken(query, findingsPosition(math.MaxUint64, "an id with spaces"))
	q, again, err := findingsRequest(&pb.ListScrubFindingsRequest{UncorrectedOnly: true, PageSize: 3, PageToken: token})
	if err != nil || q.ID != "an id with spaces" || q.After != math.MaxUint64 || q.Limit != 3 || again != query {
		t.Errorf("%+v, %v", q, err)
	}
}

// FuzzScrubRequests: no bytes make the validation of scrub's requests panic, its errors name a field, and
// what it lets through is within the bounds that the engine is promised.
func FuzzScrubRequests(f *testing.F) {
	for _, m := range []proto.Message{
		&pb.StartScrubRequest{Scope: fileScope("a"), LimitBytesPerSecond: 1, RequestId: "r"},
		&pb.StartScrubRequest{Scope: deviceScope("0")},
		&pb.WatchScrubRequest{ScrubId: "s", Interval: durationpb.New(time.Second)},
		&pb.ListScrubFindingsRequest{PageToken: pageToken("scrub findings\x00", "5 id")},
		&pb.SetScrubLimitRequest{LimitBytesPerSecond: math.MaxUint64},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, validate := range []func() error{
			func() error {
				return decoded(b, func(r *pb.StartScrubRequest) error {
					got, err := startScrubRequest("op", r)
					if err == nil && (got.Limit < 0 || len(got.RequestID) > 64) {
						t.Fatalf("%+v", got)
					}
					return err
				})
			},
			func() error {
				return decoded(b, func(r *pb.WatchScrubRequest) error {
					every, err := watchScrubRequest(r)
					if err == nil && (every < 100*time.Millisecond || every > time.Hour) {
						t.Fatalf("%v", every)
					}
					return err
				})
			},
			func() error {
				return decoded(b, func(r *pb.ListScrubFindingsRequest) error {
					q, _, err := findingsRequest(r)
					if err == nil && (q.Limit < 1 || q.Limit > 1000) {
						t.Fatalf("%+v", q)
					}
					return err
				})
			},
		} {
			err := validate()
			var e *errdefs.Error
			if err != nil && (!errors.As(err, &e) || e.Kind != errdefs.InvalidArgument || e.Field == "") {
				t.Fatalf("%v", err)
			}
		}
	})
}

// numbered sets every field of a struct of numbers to a value of its own.
func numbered(v any) {
	s := reflect.ValueOf(v).Elem()
	for i := range s.NumField() {
		s.Field(i).SetUint(uint64(i + 1))
	}
}

// filled fails the test for each field of m that is not set.
func filled(t *testing.T, m proto.Message, but ...protoreflect.Name) {
	t.Helper()
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		exempt := false
		for _, name := range but {
			exempt = exempt || f.Name() == name
		}
		if !exempt && !m.ProtoReflect().Has(f) {
			t.Errorf("%s is not filled", f.Name())
		}
	}
}

func TestScrubProtoIsWhole(t *testing.T) {
	at := time.Unix(1_700_000_000, 0).UTC()
	r := engine.Scrub{
		ID: "id", State: scrub.Running, Scope: engine.ScrubScope{File: "a"}, ReadOnly: true, Limit: 1, Started: at, Ended: at.Add(time.Hour),
		Active: time.Minute, Total: 2, Done: 3, Skipped: 4, Rate: 5, ETA: 90 * time.Second, Findings: 6, Error: "why",
	}
	numbered(&r.Counters)
	m := scrubProto(r)
	filled(t, m)
	if m.ScrubId != "id" || m.LimitBytesPerSecond != 1 || m.TotalBytes != 2 || m.DoneBytes != 3 || m.SkippedBytes != 4 ||
		m.RateBytesPerSecond != 5 || m.Findings != 6 || m.Error != "why" || m.Scope.GetFile() != "a" || !m.ReadOnly ||
		!m.StartTime.AsTime().Equal(at) || !m.EndTime.AsTime().Equal(at.Add(time.Hour)) ||
		m.ActiveTime.AsDuration() != time.Minute || m.Eta.AsDuration() != 90*time.Second {
		t.Errorf("%v", m)
	}
	// The counters have the same names on both sides.
	counters := m.Counters.ProtoReflect()
	fields := counters.Descriptor().Fields()
	from := reflect.ValueOf(r.Counters)
	if from.NumField() != fields.Len() {
		t.Errorf("%d counters become %d", from.NumField(), fields.Len())
	}
	for i := range fields.Len() {
		name := ""
		for part := range strings.SplitSeq(string(fields.Get(i).Name()), "_") {
			name += strings.ToUpper(part[:1]) + part[1:]
		}
		if v := from.FieldByName(name); !v.IsValid() || v.Uint() != counters.Get(fields.Get(i)).Uint() {
			t.Errorf("%s is %v", name, counters.Get(fields.Get(i)))
		}
	}
	// What is not known is absent, and a store needs no scope.
	bare := scrubProto(engine.Scrub{State: scrub.Running, Started: at})
	if bare.EndTime != nil || bare.Eta != nil || bare.Scope != nil {
		t.Errorf("%v", bare)
	}
	if long := scrubProto(engine.Scrub{Error: strings.Repeat("x", 10_000)}); len(long.Error) > maxErrorText {
		t.Errorf("an error of %d bytes", len(long.Error))
	}
}

func TestScrubValuesHaveNames(t *testing.T) {
	states := map[scrub.State]string{
		scrub.Running: "RUNNING", scrub.Paused: "PAUSED", scrub.Cancelled: "CANCELLED", scrub.Interrupted: "INTERRUPTED",
		scrub.Finished: "FINISHED", scrub.Failed: "FAILED", 0: "UNSPECIFIED", 99: "UNSPECIFIED",
	}
	for s, want := range states {
		if got := scrubStateProto(s).String(); got != "SCRUB_STATE_"+want {
			t.Errorf("%d is %s", s, got)
		}
	}
	outcomes := map[scrub.Outcome]string{
		scrub.Repaired: "REPAIRED", scrub.Uncorrectable: "UNCORRECTABLE", scrub.NotRepairedReadOnly: "NOT_REPAIRED_READ_ONLY",
		scrub.Gone: "GONE", 0: "UNSPECIFIED", 99: "UNSPECIFIED",
	}
	for o, want := range outcomes {
		if got := outcomeProto(o).String(); got != "CORRUPTION_OUTCOME_"+want {
			t.Errorf("%d is %s", o, got)
		}
	}
	if len(pb.ScrubState_name) != len(states)-1 || len(pb.CorruptionOutcome_name) != len(outcomes)-1 {
		t.Error("the proto has values that are never sent")
	}
}

func TestFindingProto(t *testing.T) {
	at := time.Unix(1_700_000_000, 0).UTC()
	f := engine.ScrubFinding{
		File: "d/a", FileID: 1, Offset: 4096, Length: 8192, Address: 1 << 40, Zone: 17, ZoneOffset: 12288, Expected: 2, Actual: 3,
		Outcome: scrub.Uncorrectable, Time: at, OtherReferences: 4,
	}
	m := findingProto(f)
	filled(t, m, "unreadable", "object")
	want := &pb.Corruption{
		Name: "d/a", FileId: 1, Offset: 4096, Length: 8192, Address: 1 << 40, Zone: &pb.ZoneRef{Device: "0", Zone: 17, Offset: 12288},
		ExpectedCrc32C: 2, ActualCrc32C: 3, Outcome: pb.CorruptionOutcome_CORRUPTION_OUTCOME_UNCORRECTABLE, Time: timeProto(at), OtherReferences: 4,
	}
	if !proto.Equal(m, want) {
		t.Errorf("%v", m)
	}
	label := findingProto(engine.ScrubFinding{Object: "devices/0/label", Zone: 1, Unreadable: true, Outcome: scrub.Repaired})
	if label.Object != "devices/0/label" || label.GetZone().GetZone() != 1 || !label.Unreadable {
		t.Errorf("%v", label)
	}
	if m := findingProto(engine.ScrubFinding{Object: "metadata/extents"}); m.Zone != nil {
		t.Errorf("metadata lies in no zone: %v", m)
	}
	if m := findingProto(engine.ScrubFinding{OtherReferences: math.MaxInt}); m.OtherReferences != math.MaxInt32 {
		t.Errorf("%v", m)
	}
}

// A page of findings is always one that a client takes without being told.
func TestFindingsPagesAreSmall(t *testing.T) {
	f := findingProto(engine.ScrubFinding{
		File: strings.Repeat("n", maxNameBytes), FileID: math.MaxUint64, Offset: math.MaxInt64, Length: math.MaxInt64, Address: math.MaxUint64,
		Zone: math.MaxUint32, ZoneOffset: math.MaxInt64, Expected: math.MaxUint32, Actual: math.MaxUint32, Outcome: scrub.Gone,
		Time: time.Now(), OtherReferences: math.MaxInt32, Object: strings.Repeat("o", 10_000), Unreadable: true,
	})
	if n := proto.Size(f) * maxFindingsPage; n > 3<<20 {
		t.Errorf("a page can have %d bytes", n)
	}
}

// How a watch goes out, with a scrub that the test holds in its hands.
func TestWatchScrub(t *testing.T) {
	type sent = []*pb.WatchScrubResponse
	into := func(out *sent) func(*pb.WatchScrubResponse) error {
		return func(r *pb.WatchScrubResponse) error {
			*out = append(*out, r)
			return nil
		}
	}
	steps := func(states ...scrub.State) func(context.Context, func(engine.Scrub) error) error {
		return func(_ context.Context, fn func(engine.Scrub) error) error {
			for i, s := range states {
				if err := fn(engine.Scrub{ID: "s", State: s, Done: int64(i)}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	t.Run("to the end", func(t *testing.T) {
		var out sent
		s := New(nil, Options{Now: time.Now})
		err := s.watchScrub(t.Context(), steps(scrub.Running, scrub.Running, scrub.Finished), into(&out))
		if err != nil || len(out) != 3 || out[1].Scrub.DoneBytes != 1 || out[2].Scrub.State != pb.ScrubState_SCRUB_STATE_FINISHED {
			t.Errorf("%v, %v", out, err)
		}
	})
	t.Run("a client that is gone", func(t *testing.T) {
		s := New(nil, Options{Now: time.Now})
		err := s.watchScrub(t.Context(), steps(scrub.Running, scrub.Finished), func(*pb.WatchScrubResponse) error { return io.ErrClosedPipe })
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a client that hangs up", func(t *testing.T) {
		var out sent
		s := New(nil, Options{Now: time.Now})
		ctx, cancel := context.WithCancel(t.Context())
		err := s.watchScrub(ctx, func(ctx context.Context, fn func(engine.Scrub) error) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}, into(&out))
		if !errors.Is(err, context.Canceled) || len(out) != 0 {
			t.Errorf("%v, %v", out, err)
		}
	})
	t.Run("an error", func(t *testing.T) {
		var out sent
		s := New(nil, Options{Now: time.Now})
		no := errdefs.New(errdefs.NotFound, "", "engine.WatchScrub", "scrub s", "")
		err := s.watchScrub(t.Context(), func(context.Context, func(engine.Scrub) error) error { return no }, into(&out))
		if !errors.Is(err, no) {
			t.Errorf("%v", err)
		}
	})
	t.Run("drained", func(t *testing.T) {
		var out sent
		s := New(nil, Options{Now: time.Now})
		err := s.watchScrub(t.Context(), func(ctx context.Context, fn func(engine.Scrub) error) error {
			_ = fn(engine.Scrub{State: scrub.Running})
			s.Drain()
			<-ctx.Done()
			return ctx.Err()
		}, into(&out))
		if errdefs.KindOf(err) != errdefs.Unavailable || errdefs.ReasonOf(err) != errdefs.ReasonDraining || len(out) != 1 {
			t.Errorf("%v, %v", out, err)
		}
	})
	t.Run("drained when it was over", func(t *testing.T) {
		var out sent
		s := New(nil, Options{Now: time.Now})
		s.Drain()
		if err := s.watchScrub(t.Context(), steps(scrub.Finished), into(&out)); err != nil || len(out) != 1 {
			t.Errorf("%v, %v", out, err)
		}
	})
}

// TestScrubBeforeAttach: scrub's calls are there, validate first, and are UNAVAILABLE until the store is open.
func TestScrubBeforeAttach(t *testing.T) {
	_, conn := bare(t, new(logBuffer))
	m := pb.NewMaintenanceServiceClient(conn)
	ctx := t.Context()
	long := strings.Repeat("x", 256)
	watch := func(r *pb.WatchScrubRequest) error {
		stream, err := m.WatchScrub(ctx, r)
		if err != nil {
			return err
		}
		return second(stream.Recv())
	}
	for name, call := range map[string]func(id string) error{
		"StartScrub": func(id string) error {
			return second(m.StartScrub(ctx, &pb.StartScrubRequest{RequestId: id}))
		},
		"GetScrub":    func(id string) error { return second(m.GetScrub(ctx, &pb.GetScrubRequest{ScrubId: id})) },
		"WatchScrub":  func(id string) error { return watch(&pb.WatchScrubRequest{ScrubId: id}) },
		"PauseScrub":  func(id string) error { return second(m.PauseScrub(ctx, &pb.PauseScrubRequest{ScrubId: id})) },
		"ResumeScrub": func(id string) error { return second(m.ResumeScrub(ctx, &pb.ResumeScrubRequest{ScrubId: id})) },
		"CancelScrub": func(id string) error { return second(m.CancelScrub(ctx, &pb.CancelScrubRequest{ScrubId: id})) },
		"SetScrubLimit": func(id string) error {
			r := &pb.SetScrubLimitRequest{}
			if id != "" {
				r.LimitBytesPerSecond = math.MaxUint64
			}
			return second(m.SetScrubLimit(ctx, r))
		},
		"ListScrubFindings": func(id string) error {
			return second(m.ListScrubFindings(ctx, &pb.ListScrubFindingsRequest{ScrubId: id}))
		},
	} {
		if err := call(""); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		if err := call(long); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s of a long id: %v", name, err)
		}
	}
}
