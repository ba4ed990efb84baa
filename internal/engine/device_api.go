package engine

import (
	"context"

	"github.com/shingle-store/shingle/internal/zone"
)

// Device is a zoned device by the name that the operator gave it.
type Device struct {
	Path string // as the operator named it; "" in tests
	zone.Device
}

// DeviceState says whether a device of the store takes part.
type DeviceState uint8

// The states of a device.
const (
	DeviceOnline  DeviceState = iota + 1
	DeviceMissing             // not given at the start
	DeviceFailed              // taken out of use while the engine ran, for it failed
	DeviceLeaving             // being replaced or removed: what lies on it is moved elsewhere
)

// DeviceInfo describes one device of the store.
type DeviceInfo struct {
	Number   uint32
	Path     string // "": missing
	State    DeviceState
	Message  string        // why it is not online; "" if it is
	Geometry zone.Geometry // zero values that are not known of a missing device: limits
	Stored   int64         // bytes of live data that lie on it
	// BlockGroups have a place on it; of these, the copy that lies there is out of date or cannot be
	// reached in Incomplete ones that hold data.
	BlockGroups, Incomplete int
	Spare                   int // zones of it that no block group has
	Stats                   zone.Stats
}

// Rebuild is how far the work is that gives every block group its copies back, or empties a device
// that is leaving. It runs by itself and goes on after a restart.
type Rebuild struct {
	Running bool
	// BlockGroups and Bytes are what has to be moved, what was moved since the work began included.
	BlockGroups, BlockGroupsDone int
	Bytes, BytesDone             int64
	// Stuck says why it does not get on: "" while it does, or when nothing is to be done.
	Stuck string
}

// Devices lists the devices of the store by number, and how far their rebuild is.
func (e *Engine) Devices() ([]DeviceInfo, Rebuild, error) { panic("devices: not merged") }

// AddDevice makes the device that Options.OpenDevice opens at path a part of the store; its zones take
// data from then on. It must be given at each later start. With two copies a block group needs zones
// on two devices: those of a single new device are used as block groups on the others become empty.
// Durable on return. Errors: DEVICE_MISMATCH (zone size, dialect), DEVICE_TOO_SMALL, IN_USE (it holds a
// store, without force), ALREADY_EXISTS (it is part of this store), ReadOnly, those of OpenDevice.
func (e *Engine) AddDevice(ctx context.Context, path string, force bool) (DeviceInfo, error) {
	panic("devices: not merged")
}

// ReplaceDevice adds the device at path and begins to move what lies on device number to it, from the
// device itself or from the other copy; then the old one is no part of the store any more. It answers
// when that has begun and goes on by itself, also after a restart: Devices says how far. Errors: as
// AddDevice, NotFound (no such device), Precondition (device number is missing and holds the only copy
// of something; the new one has too few zones; another device is leaving).
func (e *Engine) ReplaceDevice(ctx context.Context, number uint32, path string, force bool) (DeviceInfo, error) {
	panic("devices: not merged")
}

// RemoveDevice begins to move what lies on the device to the others; then it is no part of the store
// any more. Errors: NotFound, Precondition (two copies need two other devices; it is missing and holds
// the only copy of something; another is leaving), NO_SPACE (the others cannot hold it: numbers).
func (e *Engine) RemoveDevice(ctx context.Context, number uint32) error { panic("devices: not merged") }
