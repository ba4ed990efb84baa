package client

import (
	"context"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// twoDevices are those of a store that has some data.
func twoDevices(s *clienttest.Server) {
	s.SetDevices(
		&Device{Device: "0", Path: "file:/a", State: shinglev1.DeviceState_DEVICE_STATE_ONLINE, StoredBytes: 100, BlockGroups: 4},
		&Device{Device: "1", Path: "file:/b", State: shinglev1.DeviceState_DEVICE_STATE_ONLINE, StoredBytes: 100, BlockGroups: 4},
	)
}

// numbers are those of the devices that the store has now.
func numbers(t *testing.T, c *Client) (out []string) {
	t.Helper()
	all, _, err := c.Devices(t.Context())
	must(t, err)
	for _, d := range all {
		out = append(out, d.GetDevice())
	}
	return out
}

func TestDeviceVerbs(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx := t.Context()
	twoDevices(s)
	all, rebuild, err := c.Devices(ctx)
	if err != nil || len(all) != 2 || all[1].GetPath() != "file:/b" || rebuild.GetRunning() {
		t.Errorf("%v, %v, %v", all, rebuild, err)
	}
	if d, err := c.AddDevice(ctx, "file:/c?size=1GiB", true); err != nil || d.GetDevice() != "2" {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := c.AddDevice(ctx, "file:/c", false); !IsExists(err) {
		t.Errorf("added twice: %v", err)
	}
	if _, err := c.ReplaceDevice(ctx, "9", "file:/d", false); !IsNotFound(err) {
		t.Errorf("replaced what is not there: %v", err)
	}
	if d, err := c.ReplaceDevice(ctx, "0", "file:/d", false); err != nil || d.GetDevice() != "3" {
		t.Errorf("%v, %v", d, err)
	}
	if err := c.RemoveDevice(ctx, "1"); !IsPrecondition(err) {
		t.Errorf("removed one while another leaves: %v", err)
	}
	s.SetRebuild(&Rebuild{})
	must(t, c.RemoveDevice(ctx, "1"))
	s.SetRebuild(&Rebuild{})
	if err := c.RemoveDevice(ctx, "1"); !IsNotFound(err) {
		t.Errorf("removed what is gone: %v", err)
	}
	if got := numbers(t, c); !reflect.DeepEqual(got, []string{"2", "3"}) {
		t.Errorf("left are %v", got)
	}
	want := []string{
		"add file:/c?size=1GiB force", "add file:/c", "replace 9 file:/d", "replace 0 file:/d", "remove 1", "remove 1", "remove 1",
	}
	if !reflect.DeepEqual(s.Devices.Asked, want) {
		t.Errorf("asked for %q", s.Devices.Asked)
	}
}

// TestDeviceCallsAreRepeated: an engine that goes away before it answers is asked again, and what it did
// without having answered is not taken for a refusal; a refusal is still one.
func TestDeviceCallsAreRepeated(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx := t.Context()
	_, err := c.Info(ctx) // somebody is there
	must(t, err)
	gone := clienttest.Errorf(codes.Unavailable, "DRAINING", nil, "going down")
	// lose has the first call of a method lose its answer; effect is what it did before.
	lose := func(method string, effect func()) {
		lost := false
		s.Faults.Call = func(m string) error {
			if m != method || lost {
				return nil
			}
			lost = true
			effect()
			return gone
		}
	}
	nothing := func() {}

	twoDevices(s)
	lose("AddDevice", nothing)
	if d, err := c.AddDevice(ctx, "file:/c", false); err != nil || d.GetDevice() != "2" {
		t.Errorf("added: %v, %v", d, err)
	}
	lose("AddDevice", func() { _, _ = s.AddDevice(ctx, &shinglev1.AddDeviceRequest{Path: "file:/d"}) })
	if d, err := c.AddDevice(ctx, "file:/d", false); err != nil || d.GetDevice() != "3" {
		t.Errorf("added, unheard: %v, %v", d, err)
	}
	lose("AddDevice", nothing)
	if _, err := c.AddDevice(ctx, "file:/d", false); !IsExists(err) {
		t.Errorf("added before: %v", err)
	}

	twoDevices(s)
	lose("ReplaceDevice", func() { _, _ = s.ReplaceDevice(ctx, &shinglev1.ReplaceDeviceRequest{Device: "0", Path: "file:/c"}) })
	if d, err := c.ReplaceDevice(ctx, "0", "file:/c", false); err != nil || d.GetDevice() != "2" {
		t.Errorf("replaced, unheard: %v, %v", d, err)
	}
	lose("ReplaceDevice", nothing)
	if _, err := c.ReplaceDevice(ctx, "1", "file:/d", false); !IsPrecondition(err) {
		t.Errorf("replaced while another leaves: %v", err)
	}

	remove := func() { _, _ = s.RemoveDevice(ctx, &shinglev1.RemoveDeviceRequest{Device: "1"}) }
	for what, effect := range map[string]func(){
		"nothing done": nothing,
		"begun":        remove,
		"done":         func() { remove(); s.SetRebuild(&Rebuild{}) },
	} {
		twoDevices(s)
		lose("RemoveDevice", effect)
		if err := c.RemoveDevice(ctx, "1"); err != nil {
			t.Errorf("removed, %s: %v", what, err)
		}
	}
	twoDevices(s)
	remove()
	lose("RemoveDevice", nothing)
	if err := c.RemoveDevice(ctx, "0"); !IsPrecondition(err) {
		t.Errorf("removed while another leaves: %v", err)
	}
	// An engine that stays away is reported as that.
	s.Faults.Call = func(m string) error {
		if m == "AddDevice" {
			return gone
		}
		return nil
	}
	hasty := dial(t, s, WithRetryTime(30*time.Millisecond))
	if _, err := hasty.AddDevice(ctx, "file:/x", false); !IsUnavailable(err) {
		t.Errorf("%v", err)
	}
}

// TestWatchDevices follows a rebuild to its end, over an engine that goes away meanwhile.
func TestWatchDevices(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx := t.Context()
	twoDevices(s)
	if all, err := c.WatchDevices(ctx, 0, nil); err != nil || len(all) != 2 {
		t.Errorf("nothing runs: %v, %v", all, err)
	}
	must(t, c.RemoveDevice(ctx, "1"))
	faults := 0
	s.Faults.Call = func(m string) error {
		if m == "WatchDevices" && faults == 0 {
			faults++
			return clienttest.Errorf(codes.Unavailable, "DRAINING", nil, "going down")
		}
		return nil
	}
	var seen []int64
	all, err := c.WatchDevices(ctx, time.Second, func(all []*Device, r *Rebuild) {
		seen = append(seen, r.GetBytesDone())
		switch {
		case len(all) == 0:
			t.Error("an answer without devices")
		case len(seen) == 1:
			s.SetRebuild(&Rebuild{Running: true, Bytes: 100, BytesDone: 60})
		case r.GetRunning():
			s.SetRebuild(&Rebuild{Bytes: 100, BytesDone: 100})
		}
	})
	if err != nil || len(all) != 1 || faults != 1 || !reflect.DeepEqual(seen, []int64{0, 60, 100}) {
		t.Errorf("%v, %v after %v", all, err, seen)
	}
}

func TestWatchDevicesEnds(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	twoDevices(s)
	must(t, c.RemoveDevice(t.Context(), "1"))
	ctx, cancel := context.WithCancel(t.Context())
	all, err := c.WatchDevices(ctx, 0, func([]*Device, *Rebuild) { cancel() })
	if CodeOf(err) != codes.Canceled || len(all) != 2 {
		t.Errorf("given up: %v, %v", all, err)
	}
	if _, r, err := c.Devices(t.Context()); err != nil || !r.GetRunning() {
		t.Errorf("the rebuild does not go on: %v, %v", r, err)
	}
	s.Faults.Call = func(string) error { return clienttest.Errorf(codes.Internal, "DEVICE_IO", nil, "broken") }
	if all, err := c.WatchDevices(t.Context(), 0, nil); CodeOf(err) != codes.Internal || all != nil {
		t.Errorf("refused: %v, %v", all, err)
	}
}
