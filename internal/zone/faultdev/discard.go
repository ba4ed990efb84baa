package faultdev

import (
	"fmt"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

var _ zone.Discarder = (*Device)(nil)

type commandFault struct {
	kind    zone.OpKind
	zone    int
	forever bool
}

// FailCommand makes a command of the kind, one of OpReset, OpDiscard and OpRelease, on the zone
// (AnyZone for any) fail with ErrMedia and without effect: the next one, or every one with forever.
func (d *Device) FailCommand(kind zone.OpKind, zone int, forever bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commands = append(d.commands, &commandFault{kind, zone, forever})
}

func (d *Device) commandFails(kind zone.OpKind, z int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, f := range d.commands {
		if f.kind == kind && (f.zone == AnyZone || f.zone == z) {
			if !f.forever {
				d.commands = slices.Delete(d.commands, i, i+1)
			}
			d.counts.FailedCommands++
			return true
		}
	}
	return false
}

// Discard implements zone.Discarder; ErrNoDiscard if the device below does not.
func (d *Device) Discard(z int, ranges []extent.Range) error {
	const op = "zone.Discard"
	d.wait(zone.OpDiscard, z, func(c *Counts) { c.Discards++ })
	if d.commandFails(zone.OpDiscard, z) {
		return mediaError(op, z)
	}
	if b, ok := d.inner.(zone.Discarder); ok {
		return b.Discard(z, ranges)
	}
	return noDiscard(op, z)
}

// Release implements zone.Discarder; ErrNoDiscard if the device below does not.
func (d *Device) Release(z int) error {
	const op = "zone.Release"
	d.wait(zone.OpRelease, z, func(c *Counts) { c.Releases++ })
	if d.commandFails(zone.OpRelease, z) {
		return mediaError(op, z)
	}
	if b, ok := d.inner.(zone.Discarder); ok {
		return b.Release(z)
	}
	return noDiscard(op, z)
}

func noDiscard(op string, z int) error {
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, fmt.Sprintf("zone %d", z), zone.ErrNoDiscard)
}
