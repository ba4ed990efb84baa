package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// The messages about devices under the names that callers of this package use.
type (
	Device  = shinglev1.Device
	Rebuild = shinglev1.Rebuild
)

// Devices lists the devices of the store by number, and says how far their rebuild is.
func (c *Client) Devices(ctx context.Context) ([]*Device, *Rebuild, error) {
	r, err := again(ctx, c, func() (*shinglev1.ListDevicesResponse, error) {
		return c.store.ListDevices(ctx, &shinglev1.ListDevicesRequest{})
	})
	return r.GetDevices(), r.GetRebuild(), err
}

// AddDevice makes the device at path, as the engine's --device has it, a part of the store; with force also
// one that holds another store, which is destroyed. The engine must be given it at each later start.
// IsExists holds for the error if it is part of the store, and IsPrecondition if it cannot be.
//
// The request is sent again if the engine goes away meanwhile; it is then no error that the store has grown
// by a device that the first one added.
func (c *Client) AddDevice(ctx context.Context, path string, force bool) (*Device, error) {
	return c.growBy(ctx, func() (*Device, error) {
		r, err := c.store.AddDevice(ctx, &shinglev1.AddDeviceRequest{Path: path, Force: force})
		return r.GetDevice(), err
	})
}

// ReplaceDevice adds the device at path, as AddDevice does, and begins to move to it what lies on another
// one, which then is no part of the store any more. It goes on by itself: see WatchDevices. IsNotFound holds
// for the error if there is no such device, IsPrecondition if it cannot be replaced, or not by this one.
func (c *Client) ReplaceDevice(ctx context.Context, device, path string, force bool) (*Device, error) {
	return c.growBy(ctx, func() (*Device, error) {
		r, err := c.store.ReplaceDevice(ctx, &shinglev1.ReplaceDeviceRequest{Device: device, Path: path, Force: force})
		return r.GetDevice(), err
	})
}

// growBy makes a call that adds a device, again if the engine goes away meanwhile. When it is not known what
// became of a request, one device that was not there before is what it added; numbers are given once.
func (c *Client) growBy(ctx context.Context, call func() (*Device, error)) (*Device, error) {
	before, _, err := c.Devices(ctx)
	if err != nil {
		return nil, err
	}
	had := func(d *Device) bool {
		return slices.ContainsFunc(before, func(b *Device) bool { return b.GetDevice() == d.GetDevice() })
	}
	calls := 0
	added, err := again(ctx, c, func() (*Device, error) {
		calls++
		return call()
	})
	if err == nil || calls == 1 || passing(err) {
		return added, err
	}
	now, _, lerr := c.Devices(ctx)
	if now = slices.DeleteFunc(now, had); lerr == nil && len(now) == 1 {
		return now[0], nil
	}
	return nil, err
}

// RemoveDevice begins to move what lies on a device to the others; then it is no part of the store any more.
// It goes on by itself: see WatchDevices. IsNotFound holds for the error if there is no such device,
// IsPrecondition if the others are too few, and IsNoSpace if they cannot hold what lies on it.
//
// The request is sent again if the engine goes away meanwhile; it is then no error that the device is leaving
// or gone.
func (c *Client) RemoveDevice(ctx context.Context, device string) error {
	calls := 0
	err := c.retry(ctx, func() error {
		calls++
		_, err := c.store.RemoveDevice(ctx, &shinglev1.RemoveDeviceRequest{Device: device})
		return err
	})
	if calls == 1 || !IsNotFound(err) && !IsPrecondition(err) {
		return err
	}
	all, _, lerr := c.Devices(ctx)
	at := slices.IndexFunc(all, func(d *Device) bool { return d.GetDevice() == device })
	if lerr == nil && (at < 0 || all[at].GetState() == shinglev1.DeviceState_DEVICE_STATE_LEAVING) {
		return nil
	}
	return err
}

// WatchDevices follows the devices until no rebuild runs, and returns how they stand then. progress, unless
// nil, is called with every answer on the way and the last, one each interval (100 ms to 1 h; 0: 1 s), in
// the calling goroutine. When ctx ends the rebuild goes on.
//
// When the engine goes away it is asked again. After an error the devices are those that were last seen.
func (c *Client) WatchDevices(ctx context.Context, interval time.Duration, progress func([]*Device, *Rebuild)) ([]*Device, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := &shinglev1.WatchDevicesRequest{}
	if interval != 0 {
		req.Interval = durationpb.New(interval)
	}
	pause := c.patience()
	var last *shinglev1.WatchDevicesResponse
	for {
		err := c.watchDevices(ctx, req, func(r *shinglev1.WatchDevicesResponse) {
			last = r
			pause.ok()
			if progress != nil {
				progress(r.GetDevices(), r.GetRebuild())
			}
		})
		switch {
		case err == nil && (last == nil || last.GetRebuild().GetRunning()):
			return last.GetDevices(), failure(codes.Internal, "", nil, "devices: the server ended the watch of a rebuild that runs")
		case err == nil:
			return last.GetDevices(), nil
		case passing(err) && pause.wait(ctx):
		case ctx.Err() != nil:
			return last.GetDevices(), asError(ctx.Err())
		default:
			return last.GetDevices(), err
		}
	}
}

// watchDevices follows one stream to its end.
func (c *Client) watchDevices(ctx context.Context, req *shinglev1.WatchDevicesRequest, seen func(*shinglev1.WatchDevicesResponse)) error {
	stream, err := c.store.WatchDevices(ctx, req)
	if err != nil {
		return asError(err)
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			err = asError(err)
			c.heard(err)
			return err
		}
		c.heard(nil)
		seen(r)
	}
}
