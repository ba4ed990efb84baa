package server

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/zone"
)

// Of WatchScrubRequest.interval and WatchDevicesRequest.interval.
const (
	defaultWatchInterval = time.Second
	minWatchInterval     = 100 * time.Millisecond
	maxWatchInterval     = time.Hour
)

// watchInterval checks the time from one reply of a watch to the next.
func (c *check) watchInterval(field string, d *durationpb.Duration) time.Duration {
	c.duration(field, d)
	every := d.AsDuration()
	switch {
	case c.err != nil:
	case every == 0:
		return defaultWatchInterval
	case every < minWatchInterval || every > maxWatchInterval:
		c.fail(field, "%v is not within %v and %v", every, minWatchInterval, maxWatchInterval)
	}
	return every
}

// deviceNumber checks the number of a device, written as Device.device is.
func (c *check) deviceNumber(field, s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || deviceName(uint32(n)) != s {
		c.fail(field, "%q is no number of a device; ListDevices says which there are", clip(s))
	}
	return uint32(n)
}

func deviceName(number uint32) string { return strconv.FormatUint(uint64(number), 10) }

// devicePath checks the path or URL of a device as far as the API has rules for it.
func (c *check) devicePath(field, path string) {
	switch {
	case path == "":
		c.fail(field, "must not be empty")
	case len(path) > maxNameBytes:
		c.fail(field, "%d bytes long; at most %d", len(path), maxNameBytes)
	case !utf8.ValidString(path):
		c.fail(field, "not valid UTF-8")
	case strings.IndexByte(path, 0) >= 0:
		c.fail(field, "holds a NUL")
	}
}

func deviceProtos(all []engine.DeviceInfo) (out []*shinglev1.Device) {
	for _, d := range all {
		out = append(out, deviceProto(d))
	}
	return out
}

func deviceProto(d engine.DeviceInfo) *shinglev1.Device {
	path, _, _ := strings.Cut(d.Path, "?") // what follows is for making it
	size := int64(0)
	if d.Geometry.Zones > 0 {
		size = d.Geometry.DeviceBytes()
	}
	return &shinglev1.Device{
		Device: deviceName(d.Number), SizeBytes: size, Path: path, State: deviceStateProto(d.State), Message: clip(d.Message),
		Geometry: geometryProto(d.Geometry), StoredBytes: d.Stored, BlockGroups: int32(d.BlockGroups),
		IncompleteBlockGroups: int32(d.Incomplete), SpareZones: int32(d.Spare), Counters: deviceCountersProto(d.Stats),
	}
}

func deviceStateProto(s engine.DeviceState) shinglev1.DeviceState {
	switch s {
	case engine.DeviceOnline:
		return shinglev1.DeviceState_DEVICE_STATE_ONLINE
	case engine.DeviceMissing:
		return shinglev1.DeviceState_DEVICE_STATE_MISSING
	case engine.DeviceFailed:
		return shinglev1.DeviceState_DEVICE_STATE_FAILED
	case engine.DeviceLeaving:
		return shinglev1.DeviceState_DEVICE_STATE_LEAVING
	}
	return shinglev1.DeviceState_DEVICE_STATE_UNSPECIFIED
}

func deviceCountersProto(s zone.Stats) *shinglev1.DeviceCounters {
	return &shinglev1.DeviceCounters{
		Reads: s.Reads, ReadBytes: s.ReadBytes, Writes: s.Writes, Appends: s.Appends, WrittenBytes: s.WrittenBytes,
		Flushes: s.Flushes, Opens: s.Opens, Closes: s.Closes, Finishes: s.Finishes, Resets: s.Resets,
		Evictions: s.Evictions, ImplicitOpens: s.ImplicitOpens, Discards: s.Discards, DiscardRanges: s.DiscardRanges,
		DiscardedBytes: s.DiscardedBytes, PeakOpenZones: uint32(s.PeakOpen), PeakActiveZones: uint32(s.PeakActive),
	}
}

func rebuildProto(r engine.Rebuild) *shinglev1.Rebuild {
	return &shinglev1.Rebuild{
		Running: r.Running, BlockGroups: int32(r.BlockGroups), BlockGroupsDone: int32(r.BlockGroupsDone),
		Bytes: r.Bytes, BytesDone: r.BytesDone, Stuck: clip(r.Stuck),
	}
}
