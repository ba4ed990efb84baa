package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// keepDiscarder is keep for a device that can discard.
type keepDiscarder struct{ zone.Discarder }

func (keepDiscarder) Close() error { return nil }

// trimStore is a store whose device can discard, and fail.
func trimStore(t *testing.T) (*stored, *faultdev.Device, pb.MaintenanceServiceClient) {
	t.Helper()
	s := newStore(t, small)
	s.closed()
	dev := faultdev.New(s.o.Devices[0].Device.(keep).Device, 1)
	s.o.Devices[0].Device = keepDiscarder{dev}
	e, err := engine.Open(context.Background(), s.o)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Now: time.Now}
	s.e, s.s = e, New(e, o)
	srv := NewGRPC(o)
	s.s.Register(srv)
	t.Cleanup(func() { _ = e.Close(context.Background()) })
	conn := serve(t, srv)
	s.files, s.store = pb.NewFileServiceClient(conn), pb.NewStoreServiceClient(conn)
	s.closed = func() {
		srv.Stop()
		_ = e.Close(context.Background())
	}
	return s, dev, pb.NewMaintenanceServiceClient(conn)
}

// summaries receives all replies of a Trim and holds each against the contract.
func summaries(t *testing.T, m pb.MaintenanceServiceClient, r *pb.TrimRequest) (all []*pb.TrimResponse, err error) {
	t.Helper()
	stream, err := m.Trim(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return all, err
		}
		wantTrimSum(t, r)
		all = append(all, r)
	}
	for i, r := range all {
		if running := r.State == pb.MaintenanceState_MAINTENANCE_STATE_RUNNING; running != (i < len(all)-1) {
			t.Errorf("reply %d of %d: %v", i, len(all), r)
		}
		if i > 0 && r.BytesDone < all[i-1].BytesDone {
			t.Errorf("bytes_done falls from %d to %d", all[i-1].BytesDone, r.BytesDone)
		}
	}
	if len(all) < 2 {
		t.Fatalf("%d replies: one at once, one in the end", len(all))
	}
	return all, nil
}

// wantTrimSum finds the figures by their names, as the contract says it.
func wantTrimSum(t *testing.T, r *pb.TrimResponse) {
	t.Helper()
	sum := uint64(0)
	fields := r.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := string(fields.Get(i).Name())
		if strings.HasPrefix(name, "bytes_skipped_") || name == "bytes_trimmed" || name == "bytes_in_use" || name == "bytes_failed" {
			sum += r.ProtoReflect().Get(fields.Get(i)).Uint()
		}
	}
	if sum != r.BytesDone || r.BytesDone > r.BytesTotal {
		t.Errorf("figures add up to %d: %v", sum, r)
	}
}

func TestTrim(t *testing.T) {
	s, dev, m := trimStore(t)
	info, err := s.store.GetServerInfo(t.Context(), &pb.GetServerInfoRequest{})
	if err != nil || info.AddressSpaceEnd == 0 || info.AddressSpaceEnd%uint64(small.ZoneSize) != 0 || !slices.Contains(info.Features, "trim") {
		t.Fatalf("%v, %v", info, err)
	}
	if _, err := s.write(&pb.WriteRequest{Name: "a"}, make([]byte, 100_000), 1<<20); err != nil {
		t.Fatal(err)
	}
	all, err := summaries(t, m, &pb.TrimRequest{})
	if err != nil {
		t.Fatal(err)
	}
	last := all[len(all)-1]
	if all[0].BytesTotal != info.AddressSpaceEnd || last.BytesDone != info.AddressSpaceEnd || last.NextStart != info.AddressSpaceEnd ||
		last.BytesTrimmed == 0 || last.BytesSkippedGap == 0 || last.EffectiveMinLength != 4096 ||
		last.State != pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE {
		t.Errorf("%v", last)
	}
	all, err = summaries(t, m, &pb.TrimRequest{Length: proto.Uint64(trim.ToEnd), MinLength: 1})
	if err != nil {
		t.Fatal(err)
	}
	if again := all[len(all)-1]; again.BytesTrimmed != 0 || again.BytesSkippedAlreadyTrimmed != last.BytesTrimmed {
		t.Errorf("again: %v", again)
	}
	dev.FailCommand(zone.OpRelease, 20, true)
	if all, err = summaries(t, m, &pb.TrimRequest{DryRun: true}); err != nil || all[len(all)-1].BytesTrimmed != 0 {
		t.Errorf("%v, %v", all, err)
	}
	for _, c := range []struct {
		r     *pb.TrimRequest
		field string
	}{
		{&pb.TrimRequest{Start: info.AddressSpaceEnd}, "start"},
		{&pb.TrimRequest{Length: proto.Uint64(0)}, "length"},
		{&pb.TrimRequest{Length: proto.Uint64(4095)}, "length"},
		{&pb.TrimRequest{Start: 4096, Length: proto.Uint64(trim.ToEnd - 1)}, "length"},
	} {
		_, err := summaries(t, m, c.r)
		st := status.Convert(err)
		if v := detail[*errdetails.BadRequest](st).GetFieldViolations(); st.Code() != codes.InvalidArgument || len(v) != 1 || v[0].Field != c.field {
			t.Errorf("%v: %v %v", c.r, err, st.Details())
		}
	}
	if _, err := m.CancelTrim(t.Context(), &pb.CancelTrimRequest{}); status.Code(err) != codes.NotFound {
		t.Errorf("nothing runs: %v", err)
	}
}

func TestTrimWithAFailingZone(t *testing.T) {
	_, dev, m := trimStore(t)
	dev.FailCommand(zone.OpRelease, 20, false)
	all, err := summaries(t, m, &pb.TrimRequest{})
	if err != nil {
		t.Fatal(err)
	}
	last := all[len(all)-1]
	if last.State != pb.MaintenanceState_MAINTENANCE_STATE_COMPLETE_WITH_ERRORS || last.FailedZones != 1 || last.BytesTrimmed == 0 ||
		last.BytesFailed != uint64(small.ZoneCapacity) || !strings.Contains(last.FirstError, "zone 20") || strings.Contains(last.FirstError, "engine.") {
		t.Errorf("%v", last)
	}
}

// CancelTrim lets the last reply through, a client that goes away needs none; both leave nothing held.
func TestTrimIsCancelled(t *testing.T) {
	s, dev, m := trimStore(t)
	for _, how := range []string{"CancelTrim", "client", "drain"} {
		gate, met := make(chan struct{}), make(chan struct{})
		dev.Stall(zone.OpRelease, faultdev.AnyZone, gate, met)
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := m.Trim(ctx, &pb.TrimRequest{})
		if err != nil {
			t.Fatal(err)
		}
		<-met
		answer := make(chan *pb.CancelTrimResponse, 1)
		switch how {
		case "CancelTrim":
			go func() {
				r, err := m.CancelTrim(t.Context(), &pb.CancelTrimRequest{})
				if err != nil {
					t.Error(err)
				}
				answer <- r
			}()
		case "client":
			cancel()
		case "drain":
			s.s.Drain()
		}
		time.Sleep(50 * time.Millisecond)
		close(gate)
		var last *pb.TrimResponse
		for {
			var r *pb.TrimResponse
			if r, err = stream.Recv(); err != nil {
				break
			}
			last = r
		}
		cancel()
		if how == "client" {
			if status.Code(err) != codes.Canceled {
				t.Errorf("%s: %v", how, err)
			}
		} else {
			wantTrimSum(t, last)
			if err != io.EOF || last.State != pb.MaintenanceState_MAINTENANCE_STATE_CANCELLED || last.BytesDone >= last.BytesTotal {
				t.Errorf("%s: %v, %v", how, last, err)
			}
		}
		if how == "CancelTrim" {
			if r := <-answer; !proto.Equal(r.GetResult(), last) {
				t.Errorf("CancelTrim answers %v, the stream %v", r, last)
			}
		}
	}
	// Whatever was held has been given back.
	r, terr := s.e.Trim(t.Context(), engine.TrimRequest{Length: trim.ToEnd, DryRun: true}, nil)
	if terr != nil || r.Busy != 0 {
		t.Errorf("%+v, %v", r, terr)
	}
}

// How summaries go out, with a trim that the test holds in its hands.
func TestSummaries(t *testing.T) {
	s := New(nil, Options{Now: time.Now})
	type sent = []*pb.TrimResponse
	first := engine.TrimResult{Total: 100}
	collect := func(out *sent) func(*pb.TrimResponse) error {
		return func(r *pb.TrimResponse) error {
			*out = append(*out, r)
			return nil
		}
	}
	t.Run("every interval", func(t *testing.T) {
		var out sent
		err := s.summaries(t.Context(), first, 5*time.Millisecond, func(ctx context.Context, progress func(engine.TrimResult)) (engine.TrimResult, error) {
			for i := range 5 {
				progress(engine.TrimResult{Total: 100, Done: uint64(i * 20), Trimmed: uint64(i * 20)})
				time.Sleep(10 * time.Millisecond)
			}
			return engine.TrimResult{State: trim.Complete, Total: 100, Done: 100, Trimmed: 100}, nil
		}, collect(&out))
		if err != nil || len(out) < 3 || out[0].BytesDone != 0 || out[len(out)-1].BytesDone != 100 || out[1].State != pb.MaintenanceState_MAINTENANCE_STATE_RUNNING {
			t.Errorf("%v, %v", out, err)
		}
	})
	t.Run("a client that does not take it", func(t *testing.T) {
		ended := false
		err := s.summaries(t.Context(), first, time.Millisecond, func(ctx context.Context, _ func(engine.TrimResult)) (engine.TrimResult, error) {
			<-ctx.Done()
			time.Sleep(5 * time.Millisecond)
			ended = true
			return engine.TrimResult{}, nil
		}, func(*pb.TrimResponse) error { return io.ErrClosedPipe })
		if !errors.Is(err, io.ErrClosedPipe) || !ended {
			t.Errorf("%v, ended %t", err, ended)
		}
	})
	t.Run("an error", func(t *testing.T) {
		var out sent
		fail := errdefs.New(errdefs.ReadOnly, "", "engine.Trim", "", "no")
		err := s.summaries(t.Context(), first, time.Hour, func(context.Context, func(engine.TrimResult)) (engine.TrimResult, error) {
			return engine.TrimResult{}, fail
		}, collect(&out))
		if !errors.Is(err, fail) || len(out) != 1 {
			t.Errorf("%v, %v", out, err)
		}
	})
	t.Run("a panic", func(t *testing.T) {
		var out sent
		err := s.summaries(t.Context(), first, time.Hour, func(context.Context, func(engine.TrimResult)) (engine.TrimResult, error) {
			panic("in a trim")
		}, collect(&out))
		if !errdefs.Is(err, errdefs.Internal) {
			t.Errorf("%v", err)
		}
	})
	t.Run("drained while it waits", func(t *testing.T) {
		var out sent
		s := New(nil, Options{Now: time.Now})
		err := s.summaries(t.Context(), first, time.Hour, func(ctx context.Context, _ func(engine.TrimResult)) (engine.TrimResult, error) {
			s.Drain()
			<-ctx.Done()
			return engine.TrimResult{}, ctx.Err()
		}, collect(&out))
		if err != nil || len(out) != 2 || out[1].State != pb.MaintenanceState_MAINTENANCE_STATE_CANCELLED || out[1].BytesTotal != 100 {
			t.Errorf("%v, %v", out, err)
		}
	})
}

// Every figure of a summary reaches the wire: a field that nobody fills is found by its zero.
func TestTrimProtoIsWhole(t *testing.T) {
	r := engine.TrimResult{
		State: trim.CompleteWithErrors, Trimmed: 1, Extents: 2, Commands: 3, ZonesReset: 4, Done: 5, Total: 6, NextStart: 7, MinLength: 8,
		InUse: 9, AlreadyTrimmed: 10, TooShort: 11, PartialZone: 12, Busy: 13, Unsupported: 14, Gap: 15, Quarantined: 16, Failed: 17,
		FailedZones: 18, Relocated: 19, FirstError: errors.New("x"),
	}
	m := trimProto(r).ProtoReflect()
	fields := m.Descriptor().Fields()
	seen := map[string]protoreflect.Name{}
	for i := range fields.Len() {
		f := fields.Get(i)
		v := m.Get(f).String()
		if other, twice := seen[v]; v == "0" || v == "" || twice && f.Kind() != protoreflect.EnumKind {
			t.Errorf("%s is %q, as %s is", f.Name(), v, other)
		}
		if f.Kind() != protoreflect.EnumKind {
			seen[v] = f.Name()
		}
	}
	for st, want := range map[trim.State]string{trim.Running: "RUNNING", trim.Complete: "COMPLETE", trim.CompleteWithErrors: "COMPLETE_WITH_ERRORS", trim.Cancelled: "CANCELLED", 99: "UNSPECIFIED"} {
		if got := trimStateProto(st).String(); got != "MAINTENANCE_STATE_"+want {
			t.Errorf("%v is %s", st, got)
		}
	}
}
