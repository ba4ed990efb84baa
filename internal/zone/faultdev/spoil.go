package faultdev

import (
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Spoil says how a write that the device reports as good went wrong: only checksums can tell.
type Spoil uint8

// The ways a write goes wrong without an error.
const (
	// Lost: nothing of it reached the medium, though the write pointer moved.
	Lost Spoil = iota
	// Torn: a part of it, from some block on, did not.
	Torn
	// Misdirected: it landed somewhere else, over what was there.
	Misdirected
)

// Place is a range of a zone, in bytes from its start.
type Place struct {
	Zone int
	extent.Range
}

type spoilFault struct {
	zone  int
	after int
	how   Spoil
	over  Place
}

// corrupter is what inner must have for SpoilAppend: see zone.Mem.Corrupt.
type corrupter interface {
	Corrupt(zone int, off, n int64) error
}

// SpoilAppend makes the nth (from 1) append from now on to the zone, or to any with AnyZone, go
// wrong with no error. Write calls count as appends. over is where a Misdirected one lands, as far
// as it is as long: whole blocks below a write pointer; the others take none.
func (d *Device) SpoilAppend(zone, nth int, how Spoil, over Place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spoils = append(d.spoils, &spoilFault{zone, nth - 1, how, over})
}

// Spoiled returns the places whose content SpoilAppend has ruined so far.
func (d *Device) Spoiled() []Place {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.spoiled)
}

// spoil ruins what a write has just put at off, if one is due.
func (d *Device) spoil(z int, off, n int64) error {
	d.mu.Lock()
	var due *spoilFault
	for i, f := range d.spoils {
		if f.zone != AnyZone && f.zone != z {
			continue
		}
		if f.after--; f.after < 0 && due == nil {
			due = f
			d.spoils = slices.Delete(d.spoils, i, i+1)
			break
		}
	}
	if due == nil {
		d.mu.Unlock()
		return nil
	}
	places := []Place{{z, extent.Range{Off: off, End: off + n}}}
	switch due.how {
	case Torn:
		places[0].Off += d.rng.Int64N(n/extent.BlockSize) * extent.BlockSize
	case Misdirected:
		over := due.over
		over.End = min(over.End, over.Off+n)
		places = append(places, over)
	}
	d.spoiled = append(d.spoiled, places...)
	d.mu.Unlock()
	c, ok := d.inner.(corrupter)
	if !ok {
		return errdefs.New(errdefs.Internal, "", "faultdev.SpoilAppend", "", "the device below has no Corrupt")
	}
	for _, p := range places {
		if err := c.Corrupt(p.Zone, p.Off, p.Len()); err != nil {
			return err
		}
	}
	return nil
}
