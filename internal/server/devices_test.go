package server

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// fakeDevices is an engine whose devices are what the test says.
type fakeDevices struct {
	all      []engine.DeviceInfo
	rebuilds []engine.Rebuild // of one Devices after the other; the last one stays
	err      error            // of every call
	asked    []string         // the changes, in words
}

func (f *fakeDevices) Devices() ([]engine.DeviceInfo, engine.Rebuild, error) {
	var r engine.Rebuild
	if len(f.rebuilds) > 0 {
		r = f.rebuilds[0]
		if len(f.rebuilds) > 1 {
			f.rebuilds = f.rebuilds[1:]
		}
	}
	return f.all, r, f.err
}

func (f *fakeDevices) AddDevice(_ context.Context, path string, force bool) (engine.DeviceInfo, error) {
	f.asked = append(f.asked, "add "+path+" "+strconv.FormatBool(force))
	return engine.DeviceInfo{Number: 7, Path: path, State: engine.DeviceOnline}, f.err
}

func (f *fakeDevices) ReplaceDevice(_ context.Context, number uint32, path string, force bool) (engine.DeviceInfo, error) {
	f.asked = append(f.asked, "replace "+deviceName(number)+" "+path+" "+strconv.FormatBool(force))
	return engine.DeviceInfo{Number: 8, Path: path, State: engine.DeviceOnline}, f.err
}

func (f *fakeDevices) RemoveDevice(_ context.Context, number uint32) error {
	f.asked = append(f.asked, "remove "+deviceName(number))
	return f.err
}

// calls are the handlers over the fake.
func (f *fakeDevices) calls() deviceCalls {
	return deviceCalls{New(nil, Options{Now: time.Now}), func(string) (devices, error) { return f, nil }}
}

func TestDeviceRequests(t *testing.T) {
	number := func(s string) error {
		c := check{op: "op"}
		c.deviceNumber("device", s)
		return c.err
	}
	path := func(s string) error {
		c := check{op: "op"}
		c.devicePath("path", s)
		return c.err
	}
	for _, c := range []struct {
		field string // "": valid
		err   error
	}{
		{"", number("0")},
		{"", number("4294967295")},
		{"device", number("")},
		{"device", number("4294967296")},
		{"device", number("-1")},
		{"device", number("+1")},
		{"device", number("01")},
		{"device", number("one")},
		{"device", number(strings.Repeat("9", 10_000))},
		{"", path("/a")},
		{"", path("file:/a b?size=1GiB")},
		{"", path(strings.Repeat("x", 4096))},
		{"path", path("")},
		{"path", path(strings.Repeat("x", 4097))},
		{"path", path("a\x00b")},
		{"path", path("a\xff")},
	} {
		if c.field == "" {
			if c.err != nil {
				t.Errorf("valid, but: %v", c.err)
			}
			continue
		}
		wantField(t, c.err, c.field)
		if len(c.err.Error()) > 2*maxErrorText {
			t.Errorf("it takes %d bytes to say so", len(c.err.Error()))
		}
	}
	c := check{op: "op"}
	if n := c.deviceNumber("device", "4294967295"); n != math.MaxUint32 {
		t.Errorf("it is %d", n)
	}
}

// TestDeviceCalls: each call asks the engine for what it was asked for, and answers what that says.
func TestDeviceCalls(t *testing.T) {
	f := &fakeDevices{
		all:      []engine.DeviceInfo{{Number: 0, State: engine.DeviceMissing}, {Number: 3, Path: "file:/b", State: engine.DeviceOnline}},
		rebuilds: []engine.Rebuild{{Running: true, Bytes: 9}},
	}
	s, ctx := f.calls(), t.Context()
	list, err := s.list(ctx)
	if err != nil || len(list.GetDevices()) != 2 || list.GetDevices()[1].GetDevice() != "3" || list.GetRebuild().GetBytes() != 9 {
		t.Errorf("%v, %v", list, err)
	}
	added, err := s.add(ctx, &pb.AddDeviceRequest{Path: "file:/c?size=1GiB", Force: true})
	if err != nil || added.GetDevice().GetDevice() != "7" || added.GetDevice().GetPath() != "file:/c" {
		t.Errorf("%v, %v", added, err)
	}
	replaced, err := s.replace(ctx, &pb.ReplaceDeviceRequest{Device: "3", Path: "/d"})
	if err != nil || replaced.GetDevice().GetDevice() != "8" || replaced.GetDevice().GetPath() != "/d" {
		t.Errorf("%v, %v", replaced, err)
	}
	if r, err := s.remove(ctx, &pb.RemoveDeviceRequest{Device: "0"}); err != nil || r == nil {
		t.Errorf("%v, %v", r, err)
	}
	want := []string{"add file:/c?size=1GiB true", "replace 3 /d false", "remove 0"}
	if !reflect.DeepEqual(f.asked, want) {
		t.Errorf("asked for %q", f.asked)
	}
}

// TestDeviceCallsFail: the engine's errors become statuses, and what makes no sense does not reach it.
func TestDeviceCallsFail(t *testing.T) {
	f := &fakeDevices{}
	s, ctx := f.calls(), t.Context()
	nowhere := func(*pb.WatchDevicesResponse) error { return errors.New("sent") }
	calls := map[string]func(device, path string) error{
		"add": func(_, path string) error { return second(s.add(ctx, &pb.AddDeviceRequest{Path: path})) },
		"replace": func(n, path string) error {
			return second(s.replace(ctx, &pb.ReplaceDeviceRequest{Device: n, Path: path}))
		},
		"remove": func(n, _ string) error { return second(s.remove(ctx, &pb.RemoveDeviceRequest{Device: n})) },
		"watch": func(n, _ string) error {
			r := &pb.WatchDevicesRequest{}
			if n == "" {
				r.Interval = durationpb.New(-1)
			}
			return s.watch(ctx, r, nowhere)
		},
	}
	for name, call := range calls {
		if err := call("", ""); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s of nothing: %v", name, err)
		}
	}
	if len(f.asked) != 0 {
		t.Errorf("the engine was asked for %q", f.asked)
	}
	if err := calls["replace"]("0", ""); !strings.Contains(err.Error(), "path: must not be empty") {
		t.Errorf("%v", err)
	}
	f.err = errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.AddDevice", "device 1", "its zones are of another size")
	calls["list"] = func(string, string) error { return second(s.list(ctx)) }
	for name, call := range calls {
		err := call("1", "/a")
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "its zones are of another size") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDevicesBeforeAttach: the calls are there, and are UNAVAILABLE until the store is open.
func TestDevicesBeforeAttach(t *testing.T) {
	_, conn := bare(t, new(logBuffer))
	c, ctx := pb.NewStoreServiceClient(conn), t.Context()
	watch := func() error {
		stream, err := c.WatchDevices(ctx, &pb.WatchDevicesRequest{})
		if err != nil {
			return err
		}
		return second(stream.Recv())
	}
	for name, err := range map[string]error{
		"ListDevices":   second(c.ListDevices(ctx, &pb.ListDevicesRequest{})),
		"AddDevice":     second(c.AddDevice(ctx, &pb.AddDeviceRequest{Path: "/a"})),
		"ReplaceDevice": second(c.ReplaceDevice(ctx, &pb.ReplaceDeviceRequest{Device: "0", Path: "/a"})),
		"RemoveDevice":  second(c.RemoveDevice(ctx, &pb.RemoveDeviceRequest{Device: "0"})),
		"WatchDevices":  watch(),
	} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeviceProtoIsWhole(t *testing.T) {
	d := engine.DeviceInfo{
		Number: 5, Path: "file:/a?size=1GiB&zone-size=1MiB", State: engine.DeviceLeaving, Message: "it is being replaced",
		Geometry: zone.Geometry{Dialect: zone.SMR, ZoneSize: 10, ZoneCapacity: 9, Zones: 2, Conventional: 1, MaxOpen: 1, MaxActive: 1, AppendLimit: 1, LastZoneSize: 1},
		Stored:   2, BlockGroups: 3, Incomplete: 4, Spare: 6,
	}
	stats := reflect.ValueOf(&d.Stats).Elem()
	for i := range stats.NumField() {
		if v := stats.Field(i); v.CanUint() {
			v.SetUint(uint64(i + 1))
		} else {
			v.SetInt(int64(i + 1))
		}
	}
	m := deviceProto(d)
	filled(t, m)
	filled(t, m.Counters)
	filled(t, m.Geometry)
	if m.Device != "5" || m.Path != "file:/a" || m.SizeBytes != 11 || m.StoredBytes != 2 || m.BlockGroups != 3 || m.IncompleteBlockGroups != 4 || m.SpareZones != 6 {
		t.Errorf("%v", m)
	}
	// Those that bear the same name carry the same number.
	fields := m.Counters.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := ""
		for part := range strings.SplitSeq(strings.TrimSuffix(string(fields.Get(i).Name()), "_zones"), "_") {
			name += strings.ToUpper(part[:1]) + part[1:]
		}
		from := stats.FieldByName(name)
		if !from.IsValid() {
			t.Errorf("nothing is called %s", name)
			continue
		}
		want := uint64(0)
		if from.CanUint() {
			want = from.Uint()
		} else {
			want = uint64(from.Int())
		}
		if got := m.Counters.ProtoReflect().Get(fields.Get(i)).Uint(); got != want {
			t.Errorf("%s is %d, not %d", name, got, want)
		}
	}
	r := rebuildProto(engine.Rebuild{Running: true, BlockGroups: 1, BlockGroupsDone: 2, Bytes: 3, BytesDone: 4, Stuck: "no room"})
	filled(t, r)
	if r.BlockGroups != 1 || r.BlockGroupsDone != 2 || r.Bytes != 3 || r.BytesDone != 4 || r.Stuck != "no room" {
		t.Errorf("%v", r)
	}
	long := strings.Repeat("x", 10_000)
	if n := len(deviceProto(engine.DeviceInfo{Message: long}).Message) + len(rebuildProto(engine.Rebuild{Stuck: long}).Stuck); n > 2*maxErrorText {
		t.Errorf("%d bytes of text", n)
	}
}

func TestDeviceStatesHaveNames(t *testing.T) {
	states := map[engine.DeviceState]string{
		engine.DeviceOnline: "ONLINE", engine.DeviceMissing: "MISSING", engine.DeviceFailed: "FAILED", engine.DeviceLeaving: "LEAVING",
		0: "UNSPECIFIED", 99: "UNSPECIFIED",
	}
	for s, want := range states {
		if got := deviceStateProto(s).String(); got != "DEVICE_STATE_"+want {
			t.Errorf("%d is %s", s, got)
		}
	}
	if len(pb.DeviceState_name) != len(states)-1 {
		t.Error("the proto has states that are never sent")
	}
}

// TestWatchDevices: a reply at once, one every interval, and the last one when no rebuild runs.
func TestWatchDevices(t *testing.T) {
	running := func(done int64) engine.Rebuild { return engine.Rebuild{Running: true, Bytes: 10, BytesDone: done} }
	watch := func(t *testing.T, ctx context.Context, s deviceCalls, every time.Duration, seen func(int)) (done []int64, took time.Duration, err error) {
		begin := time.Now()
		r := &pb.WatchDevicesRequest{}
		if every > 0 {
			r.Interval = durationpb.New(every)
		}
		err = s.watch(ctx, r, func(m *pb.WatchDevicesResponse) error {
			done = append(done, m.GetRebuild().GetBytesDone())
			if seen != nil {
				seen(len(done))
			}
			return nil
		})
		return done, time.Since(begin), err
	}
	for every, want := range map[time.Duration]time.Duration{0: 3 * time.Second, 100 * time.Millisecond: 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeDevices{rebuilds: []engine.Rebuild{running(0), running(4), running(9), {BytesDone: 10}}}
			done, took, err := watch(t, t.Context(), f.calls(), every, nil)
			if err != nil || !reflect.DeepEqual(done, []int64{0, 4, 9, 10}) || took != want {
				t.Errorf("every %v: %v in %v, %v", every, done, took, err)
			}
		})
	}
	t.Run("nothing runs", func(t *testing.T) {
		done, _, err := watch(t, t.Context(), (&fakeDevices{}).calls(), 0, nil)
		if err != nil || len(done) != 1 {
			t.Errorf("%v, %v", done, err)
		}
	})
	t.Run("the client goes", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fakeDevices{rebuilds: []engine.Rebuild{running(1)}}
		done, _, err := watch(t, ctx, f.calls(), time.Hour, func(int) { cancel() })
		if status.Code(err) != codes.Canceled || len(done) != 1 {
			t.Errorf("%v, %v", done, err)
		}
	})
	t.Run("the server goes down", func(t *testing.T) {
		f := &fakeDevices{rebuilds: []engine.Rebuild{running(1)}}
		s := f.calls()
		done, _, err := watch(t, t.Context(), s, time.Hour, func(int) { s.Drain() })
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "going down") || len(done) != 1 {
			t.Errorf("%v, %v", done, err)
		}
	})
	t.Run("nobody takes it", func(t *testing.T) {
		f := &fakeDevices{rebuilds: []engine.Rebuild{running(1)}}
		gone := status.Error(codes.Canceled, "gone")
		err := f.calls().watch(t.Context(), &pb.WatchDevicesRequest{}, func(*pb.WatchDevicesResponse) error { return gone })
		if !errors.Is(err, gone) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzDeviceRequests: no bytes make the validation panic; what reaches the engine is within bounds.
func FuzzDeviceRequests(f *testing.F) {
	for _, m := range []proto.Message{
		&pb.AddDeviceRequest{Path: "file:/a?size=1GiB", Force: true},
		&pb.ReplaceDeviceRequest{Device: "0", Path: "/a"},
		&pb.RemoveDeviceRequest{Device: "4294967296"},
		&pb.WatchDevicesRequest{Interval: durationpb.New(time.Second)},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fake := &fakeDevices{}
		s := fake.calls()
		for _, call := range []func() error{
			func() error {
				return decoded(b, func(r *pb.AddDeviceRequest) error { return second(s.add(t.Context(), r)) })
			},
			func() error {
				return decoded(b, func(r *pb.ReplaceDeviceRequest) error { return second(s.replace(t.Context(), r)) })
			},
			func() error {
				return decoded(b, func(r *pb.RemoveDeviceRequest) error { return second(s.remove(t.Context(), r)) })
			},
			func() error {
				return decoded(b, func(r *pb.WatchDevicesRequest) error {
					return s.watch(t.Context(), r, func(*pb.WatchDevicesResponse) error { return nil })
				})
			},
		} {
			if err := call(); err != nil && status.Code(err) != codes.InvalidArgument {
				t.Fatalf("%v", err)
			}
		}
		for _, asked := range fake.asked {
			if len(asked) > 5000 || strings.IndexByte(asked, 0) >= 0 {
				t.Fatalf("%q", asked)
			}
		}
	})
}
