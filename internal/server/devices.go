package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// devices is what the calls about devices need of the engine.
type devices interface {
	Devices() ([]engine.DeviceInfo, engine.Rebuild, error)
	AddDevice(ctx context.Context, path string, force bool) (engine.DeviceInfo, error)
	ReplaceDevice(ctx context.Context, number uint32, path string, force bool) (engine.DeviceInfo, error)
	RemoveDevice(ctx context.Context, number uint32) error
}

// deviceCalls are the calls about devices, over what open answers.
type deviceCalls struct {
	*Server
	open func(op string) (devices, error)
}

// devices are the calls about the devices of the engine.
func (s *Server) devices() deviceCalls {
	return deviceCalls{s, func(op string) (devices, error) {
		e, err := s.open(op)
		if err != nil {
			return nil, err // not a nil engine in a devices that is none
		}
		return e, nil
	}}
}

// ListDevices implements the RPC.
func (s *storeService) ListDevices(ctx context.Context, _ *shinglev1.ListDevicesRequest) (*shinglev1.ListDevicesResponse, error) {
	return s.devices().list(ctx)
}

// AddDevice implements the RPC.
func (s *storeService) AddDevice(ctx context.Context, r *shinglev1.AddDeviceRequest) (*shinglev1.AddDeviceResponse, error) {
	return s.devices().add(ctx, r)
}

// ReplaceDevice implements the RPC.
func (s *storeService) ReplaceDevice(ctx context.Context, r *shinglev1.ReplaceDeviceRequest) (*shinglev1.ReplaceDeviceResponse, error) {
	return s.devices().replace(ctx, r)
}

// RemoveDevice implements the RPC.
func (s *storeService) RemoveDevice(ctx context.Context, r *shinglev1.RemoveDeviceRequest) (*shinglev1.RemoveDeviceResponse, error) {
	return s.devices().remove(ctx, r)
}

// WatchDevices implements the RPC.
func (s *storeService) WatchDevices(r *shinglev1.WatchDevicesRequest, stream grpc.ServerStreamingServer[shinglev1.WatchDevicesResponse]) error {
	return s.devices().watch(stream.Context(), r, stream.Send)
}

func (s deviceCalls) list(ctx context.Context) (*shinglev1.ListDevicesResponse, error) {
	d, err := s.open("server.ListDevices")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	all, rebuild, err := d.Devices()
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.ListDevicesResponse{Devices: deviceProtos(all), Rebuild: rebuildProto(rebuild)}, nil
}

func (s deviceCalls) add(ctx context.Context, r *shinglev1.AddDeviceRequest) (*shinglev1.AddDeviceResponse, error) {
	c := check{op: "server.AddDevice"}
	c.devicePath("path", r.GetPath())
	if c.err != nil {
		return nil, s.status(ctx, c.err)
	}
	d, err := s.open(c.op)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	added, err := d.AddDevice(ctx, r.GetPath(), r.GetForce())
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.AddDeviceResponse{Device: deviceProto(added)}, nil
}

func (s deviceCalls) replace(ctx context.Context, r *shinglev1.ReplaceDeviceRequest) (*shinglev1.ReplaceDeviceResponse, error) {
	c := check{op: "server.ReplaceDevice"}
	number := c.deviceNumber("device", r.GetDevice())
	c.devicePath("path", r.GetPath())
	if c.err != nil {
		return nil, s.status(ctx, c.err)
	}
	d, err := s.open(c.op)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	added, err := d.ReplaceDevice(ctx, number, r.GetPath(), r.GetForce())
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.ReplaceDeviceResponse{Device: deviceProto(added)}, nil
}

func (s deviceCalls) remove(ctx context.Context, r *shinglev1.RemoveDeviceRequest) (*shinglev1.RemoveDeviceResponse, error) {
	c := check{op: "server.RemoveDevice"}
	number := c.deviceNumber("device", r.GetDevice())
	if c.err != nil {
		return nil, s.status(ctx, c.err)
	}
	d, err := s.open(c.op)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	if err := d.RemoveDevice(ctx, number); err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.RemoveDeviceResponse{}, nil
}

// watch sends how the devices stand until no rebuild runs, the stream ends, or the server goes down.
// Sending may block for as long as the client does not read.
func (s deviceCalls) watch(ctx context.Context, r *shinglev1.WatchDevicesRequest, send func(*shinglev1.WatchDevicesResponse) error) error {
	const op = "server.WatchDevices"
	c := check{op: op}
	every := c.watchInterval("interval", r.GetInterval())
	if c.err != nil {
		return s.status(ctx, c.err)
	}
	d, err := s.open(op)
	if err != nil {
		return s.status(ctx, err)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		all, rebuild, err := d.Devices()
		if err != nil {
			return s.status(ctx, err)
		}
		err = send(&shinglev1.WatchDevicesResponse{Devices: deviceProtos(all), Rebuild: rebuildProto(rebuild)})
		if err != nil || !rebuild.Running {
			return s.status(ctx, err)
		}
		select {
		case <-tick.C:
		case <-s.draining:
			return s.status(ctx, errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, op, "", "the server is going down"))
		case <-ctx.Done():
			return s.status(ctx, ctx.Err())
		}
	}
}
