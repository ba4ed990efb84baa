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

	"github.com/shingle-store/shingle/api/client"
	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// setDevices makes the devices of the store what the name says.
func setDevices(t *testing.T, s *clienttest.Server, name string) {
	const mib, gib = 1 << 20, 1 << 30
	geometry := &shinglev1.Geometry{Dialect: shinglev1.ZoneDialect_ZONE_DIALECT_ZNS, ZoneSize: 64 * mib, ZoneCapacity: 60 * mib, Zones: 256, MaxActiveZones: 14}
	device := func(number, path string) *shinglev1.Device {
		return &shinglev1.Device{
			Device: number, Path: path, State: shinglev1.DeviceState_DEVICE_STATE_ONLINE, Geometry: geometry, SizeBytes: 16 * gib,
			StoredBytes: 300 * mib, BlockGroups: 254, Counters: &shinglev1.DeviceCounters{Appends: 9, PeakOpenZones: 3},
		}
	}
	a, b := device("0", "file:/srv/a"), device("1", "file:/srv/b")
	missing := &shinglev1.Device{
		Device: "1", State: shinglev1.DeviceState_DEVICE_STATE_MISSING, Message: "no --device holds it", StoredBytes: 300 * mib,
		BlockGroups: 254, IncompleteBlockGroups: 5, SpareZones: 2, Geometry: &shinglev1.Geometry{ZoneSize: 64 * mib, Zones: 256},
	}
	running := &shinglev1.Rebuild{Running: true, BlockGroups: 10, BlockGroupsDone: 3, Bytes: 300 * mib, BytesDone: 100 * mib}
	switch name {
	case "one":
		s.SetDevices(a)
	case "two":
		s.SetDevices(a, b)
	case "missing":
		s.SetDevices(a, missing)
	case "two-missing":
		other := device("2", "")
		other.State = shinglev1.DeviceState_DEVICE_STATE_MISSING
		s.SetDevices(a, missing, other)
	case "leaving":
		b.State, b.Message = shinglev1.DeviceState_DEVICE_STATE_LEAVING, "it is being replaced by device 2"
		s.SetDevices(a, b, device("2", "file:/srv/c"))
		s.SetRebuild(running)
	case "stuck":
		b.State, running.Stuck = shinglev1.DeviceState_DEVICE_STATE_LEAVING, "the others are full"
		s.SetDevices(a, b)
		s.SetRebuild(running)
	default:
		t.Fatalf("no devices %q", name)
	}
}

var (
	tookTime = regexp.MustCompile(`moved in \d+:\d\d:\d\d`)
	ratesRun = regexp.MustCompile(`"(rate_bytes_per_second|eta_seconds)": [\d.]+`)
)

// TestDevicesShown shows what the verbs of device print of stores in each state, what they asked for, and
// the exit status. A rebuild that is waited for comes to its end.
func TestDevicesShown(t *testing.T) {
	s := clienttest.New(t)
	s.Faults.Call = func(method string) error {
		if method == "WatchDevices" {
			time.AfterFunc(50*time.Millisecond, func() { s.SetRebuild(&shinglev1.Rebuild{Bytes: 300 << 20, BytesDone: 300 << 20}) })
		}
		return nil
	}
	datadriven.RunTest(t, "testdata/device", func(t *testing.T, d *datadriven.TestData) string {
		setDevices(t, s, d.Cmd)
		s.Devices.Asked = nil
		r := cli(t, s.Addr, "", append([]string{"device"}, strings.Fields(d.Input)...)...)
		out := ""
		for _, asked := range s.Devices.Asked {
			out += "asked: " + asked + "\n"
		}
		out += ratesRun.ReplaceAllString(tookTime.ReplaceAllString(r.out, "moved in TIME"), `"$1": N`) + r.err
		if r.code != exitOK {
			out += fmt.Sprintf("exit %d\n", r.code)
		}
		return out
	})
}

// TestDeviceWaitInterrupted: Ctrl-C, and a timeout, leave the work going, and say so.
func TestDeviceWaitInterrupted(t *testing.T) {
	s := clienttest.New(t)
	for verb, args := range map[string][]string{"replaced": {"replace", "1", "file:/c"}, "removed": {"remove", "1"}} {
		goesOn := "device 1 is still being " + verb + ", and that goes on; `client device watch` follows it\n$"
		setDevices(t, s, "two")
		ctx, interrupt := context.WithCancel(t.Context())
		s.Faults.Call = func(method string) error {
			if method == "WatchDevices" {
				time.AfterFunc(50*time.Millisecond, interrupt)
			}
			return nil
		}
		r := cliContext(t, ctx, s.Addr, "", append([]string{"device"}, args...)...)
		interrupt()
		r.failed(t, exitError, "^client: interrupted: "+goesOn)
		if r.out != "" {
			t.Errorf("said %q", r.out)
		}
		s.Faults.Call = nil
		setDevices(t, s, "two")
		cli(t, s.Addr, "", append([]string{"device", "--timeout", "600ms"}, args...)...).failed(t, exitError, "^client: not done within the 600ms of --timeout: "+goesOn)
	}
	setDevices(t, s, "leaving")
	cli(t, s.Addr, "", "device", "watch", "--timeout", "300ms", "-q").failed(t, exitError, "^client: not done within")
}

// TestDeviceWaitFails: what was waited for and did not come about is an error.
func TestDeviceWaitFails(t *testing.T) {
	s := clienttest.New(t)
	setDevices(t, s, "two")
	after := func(do func()) {
		s.Faults.Call = func(method string) error {
			if method == "WatchDevices" {
				time.AfterFunc(20*time.Millisecond, do)
			}
			return nil
		}
	}
	after(func() { // the engine thought better of it
		setDevices(t, s, "two")
	})
	cli(t, s.Addr, "", "device", "remove", "1").failed(t, exitError, "^client: device 1 could not be removed: it is online; see `client device ls`\n$")
	after(func() { setDevices(t, s, "missing") })
	cli(t, s.Addr, "", "device", "replace", "1", "file:/c").failed(t, exitError, "^client: device 1 could not be replaced: no --device holds it; see")
	s.Faults.Call = func(method string) error {
		if method == "WatchDevices" {
			return clienttest.Errorf(codes.Internal, "DEVICE_IO", nil, "broken")
		}
		return nil
	}
	setDevices(t, s, "two")
	cli(t, s.Addr, "", "device", "remove", "1").failed(t, exitError, "^client: device 1 is being removed, which goes on, but it cannot be watched: broken\n$")
	cli(t, "127.0.0.1:1", "", "device", "ls").failed(t, exitUnavailable, "no engine answers")
}

// TestDeviceWaitSaysWhatHinders: once, when it begins.
func TestDeviceWaitSaysWhatHinders(t *testing.T) {
	s := clienttest.New(t)
	setDevices(t, s, "two")
	steps := []*shinglev1.Rebuild{
		{Running: true, Bytes: 100, Stuck: "the others are full"},
		{Running: true, Bytes: 100, BytesDone: 1, Stuck: "the others are full"},
		{Running: true, Bytes: 100, BytesDone: 50},
		{Bytes: 100, BytesDone: 100},
	}
	begun := make(chan struct{})
	s.Faults.Call = func(method string) error {
		if method == "WatchDevices" {
			close(begun)
		}
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-begun
		for _, r := range steps {
			time.Sleep(60 * time.Millisecond)
			s.SetRebuild(r)
		}
	}()
	r := cli(t, s.Addr, "", "device", "remove", "1")
	<-done
	if r.code != exitOK || r.err != "client: it does not get on: the others are full\n" {
		t.Errorf("%+v", r)
	}
}

func TestDeviceWatch(t *testing.T) {
	s := clienttest.New(t)
	follow := func(args ...string) string {
		t.Helper()
		setDevices(t, s, "leaving")
		s.Faults.Call = func(method string) error {
			if method == "WatchDevices" {
				time.AfterFunc(200*time.Millisecond, func() {
					s.SetRebuild(&shinglev1.Rebuild{Running: true, BlockGroups: 10, BlockGroupsDone: 6, Bytes: 300 << 20, BytesDone: 200 << 20})
				})
				time.AfterFunc(400*time.Millisecond, func() { s.SetRebuild(&shinglev1.Rebuild{Bytes: 300 << 20, BytesDone: 300 << 20}) })
			}
			return nil
		}
		return cli(t, s.Addr, "", append([]string{"device", "watch", "--interval", "100ms"}, args...)...).ok(t)
	}
	want := regexp.MustCompile(`^33\.33 % of 300 MiB, 3 of 10 block groups\n` +
		`66\.66 % of 300 MiB, 6 of 10 block groups, [\d.]+ MiB/s, 0:00:0\d left\n` +
		`device  state +size +stored +groups +incomplete +spare  path\n(?s:.*)$`)
	if out := follow(); !want.MatchString(out) || strings.Contains(out, "leaving") {
		t.Errorf("said %q", out)
	}
	if out := follow("-q"); !strings.HasPrefix(out, "device  state") {
		t.Errorf("said %q", out)
	}
	lines := strings.Split(strings.TrimSpace(follow("--output", "json")), "\n")
	if len(lines) != 3 {
		t.Fatalf("%q", lines)
	}
	for i, want := range []string{"33.33", "66.66", "100.00"} {
		var j devicesJSON
		unmarshal(t, lines[i], &j)
		if string(j.Rebuild.Percent) != want || j.Rebuild.Running != (i < 2) || (j.Rebuild.Rate != nil) != (i > 0) || (j.Rebuild.Left != nil) != (i == 1) {
			t.Errorf("line %d: %+v", i, j)
		}
	}
	for _, bad := range []string{"99ms", "61m", "-1s", "0"} {
		cli(t, s.Addr, "", "device", "watch", "--interval", bad).failed(t, exitUsage, "--interval")
	}
}

func TestDeviceUsage(t *testing.T) {
	s := clienttest.New(t)
	setDevices(t, s, "two")
	for _, args := range [][]string{
		{}, {"frob"}, {"ls", "x"}, {"add"}, {"add", "a", "b"}, {"replace", "0"}, {"replace", "a", "file:/c"}, {"remove"}, {"remove", "-1"},
		{"remove", "file:/srv/a"}, {"remove", "4294967296"}, {"add", "--frob", "x"}, {"watch", "0"},
	} {
		if r := cli(t, s.Addr, "", append([]string{"device"}, args...)...); r.code != exitUsage || !strings.HasPrefix(r.err, "client: ") {
			t.Errorf("%q: exit %d, %q", args, r.code, r.err)
		}
	}
	if len(s.Devices.Asked) != 0 {
		t.Errorf("asked for %q", s.Devices.Asked)
	}
}

func TestRebuildPercent(t *testing.T) {
	for _, c := range []struct {
		r    *client.Rebuild
		want string
	}{
		{nil, "100.00"},
		{&client.Rebuild{}, "100.00"},
		{&client.Rebuild{Running: true}, "0.00"},
		{&client.Rebuild{Running: true, Bytes: 3, BytesDone: 2}, "66.66"},
		{&client.Rebuild{Running: true, Bytes: 1 << 50, BytesDone: 1<<50 - 1}, "99.99"},
		{&client.Rebuild{Running: true, Bytes: 3, BytesDone: 3}, "100.00"},
		{&client.Rebuild{Running: true, Bytes: 3, BytesDone: 4}, "100.00"},
		{&client.Rebuild{Running: true, Bytes: 3, BytesDone: -1}, "0.00"},
		{&client.Rebuild{Running: true, BlockGroups: 4, BlockGroupsDone: 1}, "25.00"},
	} {
		if got := rebuildPercent(c.r); got != c.want {
			t.Errorf("%v: %s, not %s", c.r, got, c.want)
		}
	}
}

func TestRebuildPace(t *testing.T) {
	var p rebuildPace
	begin := time.Unix(1e9, 0)
	for _, step := range []struct {
		second int
		done   int64
		want   int64 // -1: not known
	}{
		{0, 100, -1}, {0, 100, -1}, {1, 200, 100}, {4, 500, 100}, {8, 500, 50},
		{9, 0, -1}, // another rebuild
		{10, 7, 7},
	} {
		got := p.at(begin.Add(time.Duration(step.second)*time.Second), &client.Rebuild{Running: true, BytesDone: step.done})
		if (got == nil) != (step.want < 0) || got != nil && *got != step.want {
			t.Errorf("after %d s: %v, not %d", step.second, got, step.want)
		}
	}
	slow := int64(1)
	j := rebuildToJSON(&client.Rebuild{Running: true, Bytes: 1 << 62}, &slow)
	if text := rebuildText(j); strings.Contains(text, "left") {
		t.Errorf("%s", text)
	}
}

// TestRebuildLine is what a terminal gets: a line that is written over, and wiped in the end.
func TestRebuildLine(t *testing.T) {
	var out strings.Builder
	l := &rebuildLine{&out}
	rate := int64(10 << 20)
	r := &client.Rebuild{Running: true, BlockGroups: 4, BlockGroupsDone: 1, Bytes: 100 << 20, BytesDone: 25 << 20}
	l.show(rebuildToJSON(r, nil))
	l.show(rebuildToJSON(r, &rate))
	l.show(rebuildToJSON(&client.Rebuild{}, nil))
	l.wipe()
	want := "\r\x1b[K25.00 % of 100 MiB, 1 of 4 block groups" +
		"\r\x1b[K25.00 % of 100 MiB, 1 of 4 block groups, 10.0 MiB/s, 0:00:08 left\r\x1b[K"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	nobody := &rebuildLine{}
	nobody.show(rebuildToJSON(r, nil))
	nobody.wipe()
}
