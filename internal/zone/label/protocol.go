package label

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// Zones returns the two zones that labels live in: the first two sequential ones, or the first two
// of a device that is all conventional. A device without two is InvalidArgument.
func Zones(g zone.Geometry) (a, b int, err error) {
	switch n := g.NumSequential(); {
	case n == 0 && g.Zones >= 2:
		return 0, 1, nil
	case n < 2:
		return 0, 0, errdefs.Invalid("label.Zones", "Zones",
			fmt.Sprintf("labels need 2 zones of one kind and the device has %d, %d of them sequential", g.Zones, n))
	}
	return g.Conventional, g.Conventional + 1, nil
}

// Read returns the latest valid label of the device. Errors: NotFound if neither label zone
// holds anything of Shingle's, Corruption if one does and neither holds a valid label,
// Precondition if the device was written by a later version, Device if it cannot be read.
// A zone that cannot be read counts as damaged while the other one has a label.
func Read(dev zone.Device) (Label, error) {
	l, _, _, err := read(dev)
	return l, err
}

// ReadBoth is Read, and returns the generation of the label in the other label zone: 0 if that one
// holds no valid label, in which case it may have held one that was later.
func ReadBoth(dev zone.Device) (latest Label, other uint64, err error) {
	latest, _, other, err = read(dev)
	return latest, other, err
}

// read also returns the zone to write the next label to: not the one that holds the latest.
func read(dev zone.Device) (latest Label, next int, other uint64, err error) {
	const op = "label.Read"
	a, b, err := Zones(dev.Geometry())
	if err != nil {
		return Label{}, 0, 0, err
	}
	found, next := false, a
	var worst error
	for _, z := range []int{a, b} {
		l, err := readZone(dev, z)
		switch {
		case err == nil && (!found || l.Generation > latest.Generation):
			other = latest.Generation
			latest, found, next = l, true, a+b-z
		case err == nil:
			other = l.Generation
		case errdefs.Is(err, errdefs.Precondition):
			// A later version took this device over; what it left of the old label is stale.
			return Label{}, 0, 0, err
		case errdefs.Is(err, errdefs.NotFound):
		case worst == nil || errdefs.Is(err, errdefs.Device):
			worst = errdefs.Wrap(errdefs.KindOf(err), errdefs.ReasonOf(err), op, fmt.Sprintf("zone %d", z), err)
		}
	}
	switch {
	case found:
		return latest, next, other, nil
	case worst != nil:
		return Label{}, next, 0, worst
	}
	return Label{}, next, 0, errdefs.New(errdefs.NotFound, "", op, fmt.Sprintf("zones %d and %d", a, b),
		"the device holds no Shingle label")
}

func readZone(dev zone.Device, z int) (Label, error) {
	report, err := dev.Report(z, 1)
	if err != nil {
		return Label{}, err
	}
	if report[0].WP < extent.BlockSize {
		return Label{}, errdefs.New(errdefs.NotFound, "", "label.Read", fmt.Sprintf("zone %d", z), "empty")
	}
	b := aligned()
	err = dev.ReadAt(z, 0, b)
	if err != nil {
		err = dev.ReadAt(z, 0, b) // what passes is no damage
	}
	if err != nil {
		return Label{}, err
	}
	return DecodeLabel(b)
}

// Write makes l the device's label and durable: the zone that does not hold the latest label
// is reset, gets the block, is finished, which gives its active slot back, and the device is
// flushed. Before that label zones that are active are finished: a crash may have come between
// an append and its finish, and then the zone still holds an active slot. For a label of the
// generation that the device has already that is all there is to do; a lower one is refused
// (Precondition), or Read would not see it. The device needs one free active and open slot.
// Conventional zones are written in place instead, and get no other command. The new label is read
// back, for a device may lose a write without a word. After an error the old label is still there; the
// new one may be, too.
func Write(dev zone.Device, l Label) error {
	const op = "label.Write"
	b := EncodeLabel(l)
	if _, err := DecodeLabel(b); err != nil {
		return errdefs.Wrap(errdefs.InvalidArgument, "", op, "", err)
	}
	old, z, _, err := read(dev)
	switch {
	case err == nil && old.Generation > l.Generation:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, op, fmt.Sprintf("zone %d", z),
			fmt.Sprintf("label generation %d is below %d on the device", l.Generation, old.Generation))
	case err != nil && !errdefs.Is(err, errdefs.NotFound) && !errdefs.Is(err, errdefs.Corruption):
		return err
	}
	if err == nil {
		if err := Settle(dev); err != nil {
			return err
		}
		if old.Generation == l.Generation {
			return dev.Flush()
		}
	}
	if err := put(dev, z, b); err != nil {
		return err
	}
	if err := dev.Flush(); err != nil {
		return err
	}
	if got, err := readZone(dev, z); err != nil || got != l {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, fmt.Sprintf("zone %d", z),
			fmt.Errorf("the label that was written does not read back: %w", errors.Join(err, zone.ErrMedia)))
	}
	return nil
}

// Mend writes l over the label zones that hold no valid label, one after the other, each durable before the
// next is touched: what could not be read may be a label all the same, and then one of them is always there.
// Before that label zones that are active are finished; a device needs one free active and open slot. So
// two zones may hold labels of one generation: that of the latest.
func Mend(dev zone.Device, l Label) error {
	a, b, err := Zones(dev.Geometry())
	if err != nil {
		return err
	}
	if err := Settle(dev); err != nil {
		return err
	}
	for _, z := range []int{a, b} {
		if _, err := readZone(dev, z); err == nil {
			continue
		}
		if err := put(dev, z, EncodeLabel(l)); err != nil {
			return err
		}
		if err := dev.Flush(); err != nil {
			return err
		}
		if got, err := readZone(dev, z); err != nil || got != l {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "label.Mend", fmt.Sprintf("zone %d", z),
				fmt.Errorf("the label that was written does not read back: %w", errors.Join(err, zone.ErrMedia)))
		}
	}
	return nil
}

// put makes b the first block of a label zone.
func put(dev zone.Device, z int, b []byte) error {
	if !dev.Geometry().IsSequential(z) {
		return dev.Write(z, 0, [][]byte{b})
	}
	if err := dev.Reset(z); err != nil {
		return err
	}
	if _, err := dev.Append(z, [][]byte{b}); err != nil {
		return err
	}
	return dev.Finish(z)
}

// Settle finishes label zones that a crash, or a finish that failed, left active: each keeps one of the device's
// active slots from data. It does not flush.
func Settle(dev zone.Device) error {
	a, b, err := Zones(dev.Geometry())
	if err != nil {
		return err
	}
	for _, z := range []int{a, b} {
		report, err := dev.Report(z, 1)
		if err != nil {
			return err
		}
		if report[0].Condition.IsActive() {
			if err := dev.Finish(z); err != nil {
				return err
			}
		}
	}
	return nil
}

// Erase resets both label zones, or writes zeros over conventional ones' labels, and flushes, so
// that Read finds nothing: the first step of formatting a device anew, which may hold labels of any
// generation.
func Erase(dev zone.Device) error {
	a, b, err := Zones(dev.Geometry())
	if err != nil {
		return err
	}
	erase := dev.Reset
	if !dev.Geometry().IsSequential(a) {
		erase = func(z int) error { return put(dev, z, aligned()) }
	}
	for _, z := range []int{a, b} {
		if err := erase(z); err != nil {
			return err
		}
	}
	return dev.Flush()
}

// aligned returns a zeroed block on a block border in memory, which direct I/O wants.
func aligned() []byte {
	b := make([]byte, 2*extent.BlockSize)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % extent.BlockSize)
	return b[skip : skip+extent.BlockSize : skip+extent.BlockSize]
}
