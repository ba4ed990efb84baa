package clienttest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// Devices is what the calls about devices answer. Nothing is moved: a rebuild goes on as SetRebuild says.
type Devices struct {
	// Asked are the changes so far, in words: "add file:/b", "replace 0 file:/b force", "remove 1". Read it
	// when no call runs.
	Asked []string

	// Guarded by Server.mu.
	now     []*shinglev1.Device
	rebuild *shinglev1.Rebuild
	next    int
	changed chan struct{} // closed when one of them changes
}

// SetDevices makes these the devices of the store, with no rebuild under way.
func (s *Server) SetDevices(devices ...*shinglev1.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Devices.now, s.Devices.rebuild = nil, nil
	for _, d := range devices {
		s.Devices.now = append(s.Devices.now, proto.CloneOf(d))
	}
	s.Devices.next = len(devices)
	s.devicesChangedLocked()
}

// SetRebuild says how far the rebuild is; every watch sends it. When it does not run, devices that are
// leaving are gone.
func (s *Server) SetRebuild(r *shinglev1.Rebuild) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Devices.rebuild = proto.CloneOf(r)
	if !r.GetRunning() {
		s.Devices.now = slices.DeleteFunc(s.Devices.now, func(d *shinglev1.Device) bool {
			return d.GetState() == shinglev1.DeviceState_DEVICE_STATE_LEAVING
		})
	}
	s.devicesChangedLocked()
}

func (s *Server) devicesChangedLocked() {
	if s.Devices.changed != nil {
		close(s.Devices.changed)
		s.Devices.changed = nil
	}
}

func (s *Server) devicesLocked() (out []*shinglev1.Device) {
	for _, d := range s.Devices.now {
		out = append(out, proto.CloneOf(d))
	}
	return out
}

// leaveLocked makes a device leave, which begins a rebuild.
func (s *Server) leaveLocked(number string) error {
	for _, d := range s.Devices.now {
		if d.GetState() == shinglev1.DeviceState_DEVICE_STATE_LEAVING {
			return Errorf(codes.FailedPrecondition, "FAILED_PRECONDITION", nil, fmt.Sprintf("device %s is leaving", d.GetDevice()))
		}
	}
	for _, d := range s.Devices.now {
		if d.GetDevice() == number {
			d.State = shinglev1.DeviceState_DEVICE_STATE_LEAVING
			s.Devices.rebuild = &shinglev1.Rebuild{Running: true, Bytes: d.GetStoredBytes(), BlockGroups: d.GetBlockGroups()}
			return nil
		}
	}
	return Errorf(codes.NotFound, "NOT_FOUND", nil, "there is no device "+number)
}

func (s *Server) addLocked(path string) (*shinglev1.Device, error) {
	path, _, _ = strings.Cut(path, "?")
	for _, d := range s.Devices.now {
		if d.GetPath() == path {
			return nil, Errorf(codes.AlreadyExists, "ALREADY_EXISTS", nil, path+" is part of this store")
		}
	}
	d := &shinglev1.Device{Device: fmt.Sprint(s.Devices.next), Path: path, State: shinglev1.DeviceState_DEVICE_STATE_ONLINE}
	s.Devices.next++
	s.Devices.now = append(s.Devices.now, d)
	s.devicesChangedLocked()
	return proto.CloneOf(d), nil
}

func (s *Server) askedLocked(force bool, words ...string) {
	if force {
		words = append(words, "force")
	}
	s.Devices.Asked = append(s.Devices.Asked, strings.Join(words, " "))
}

// ListDevices implements the RPC.
func (s *Server) ListDevices(context.Context, *shinglev1.ListDevicesRequest) (*shinglev1.ListDevicesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &shinglev1.ListDevicesResponse{Devices: s.devicesLocked(), Rebuild: proto.CloneOf(s.Devices.rebuild)}, nil
}

// AddDevice implements the RPC.
func (s *Server) AddDevice(_ context.Context, r *shinglev1.AddDeviceRequest) (*shinglev1.AddDeviceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askedLocked(r.GetForce(), "add", r.GetPath())
	d, err := s.addLocked(r.GetPath())
	return &shinglev1.AddDeviceResponse{Device: d}, err
}

// ReplaceDevice implements the RPC.
func (s *Server) ReplaceDevice(_ context.Context, r *shinglev1.ReplaceDeviceRequest) (*shinglev1.ReplaceDeviceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askedLocked(r.GetForce(), "replace", r.GetDevice(), r.GetPath())
	d, err := s.addLocked(r.GetPath())
	if err != nil {
		return nil, err
	}
	if err := s.leaveLocked(r.GetDevice()); err != nil {
		s.Devices.now = s.Devices.now[:len(s.Devices.now)-1]
		s.Devices.next--
		return nil, err
	}
	return &shinglev1.ReplaceDeviceResponse{Device: d}, nil
}

// RemoveDevice implements the RPC.
func (s *Server) RemoveDevice(_ context.Context, r *shinglev1.RemoveDeviceRequest) (*shinglev1.RemoveDeviceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askedLocked(false, "remove", r.GetDevice())
	if err := s.leaveLocked(r.GetDevice()); err != nil {
		return nil, err
	}
	s.devicesChangedLocked()
	return &shinglev1.RemoveDeviceResponse{}, nil
}

// WatchDevices implements the RPC: instead of at an interval it sends how the devices stand when that changes.
func (s *Server) WatchDevices(_ *shinglev1.WatchDevicesRequest, stream grpc.ServerStreamingServer[shinglev1.WatchDevicesResponse]) error {
	if f := s.Faults.Call; f != nil {
		if err := f("WatchDevices"); err != nil {
			return err
		}
	}
	for {
		s.mu.Lock()
		r := &shinglev1.WatchDevicesResponse{Devices: s.devicesLocked(), Rebuild: proto.CloneOf(s.Devices.rebuild)}
		if s.Devices.changed == nil {
			s.Devices.changed = make(chan struct{})
		}
		changed := s.Devices.changed
		s.mu.Unlock()
		if err := stream.Send(r); err != nil {
			return err
		}
		if !r.GetRebuild().GetRunning() {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
