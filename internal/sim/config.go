package sim

import (
	"math/rand/v2"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// Config is the store that a run works on and how hard it is treated. Everything else is chosen.
type Config struct {
	Geometry      zone.Geometry
	Compression   extent.Codec
	NoDelalloc    bool
	Workers       int
	WritebackAge  time.Duration
	DirtyLimit    int64 // bytes
	MetadataLimit int64 // bytes
	Garbage       bool  // a lost power scribbles over the last surviving block: zone.MemOptions
	Clients       int
	Lives         int // how often the store is opened; every life but the last ends badly or well
	Steps         int // at most so many choices a life
	// Faults is how many operations go by between two faults, about, in lives that have any.
	// 0: no life has.
	Faults int
	// Shared: the clients also fight over files in common.
	Shared bool
	// Tight: some files are so large that the store is nearly full, and lives from what reclaim brings.
	Tight bool
	// Scrub: the clients also have the store scrubbed.
	Scrub bool
	// Devices are how many devices the store has, of one geometry, and Copies how many copies of what is
	// stored. 0: 1.
	Devices, Copies int
	// Changes has devices added and replaced while the store is used.
	Changes bool
}

// geometries are small, so that zones fill, run out and are reset all the time.
var geometries = []zone.Geometry{
	{Dialect: zone.ZNS, ZoneSize: 512 << 10, ZoneCapacity: 384 << 10, Zones: 24, MaxOpen: 3, MaxActive: 4},
	{Dialect: zone.SMR, ZoneSize: 256 << 10, ZoneCapacity: 256 << 10, Zones: 40, MaxOpen: 4, Conventional: 3},
	{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 1<<20 - 4096*3, Zones: 14, AppendLimit: 124 << 10, LastZoneSize: 300 << 10},
	{Dialect: zone.ZNS, ZoneSize: 128 << 10, ZoneCapacity: 100 << 10, Zones: 80, MaxOpen: 1, MaxActive: 1, AppendLimit: 20 << 10},
	{Dialect: zone.SMR, ZoneSize: 256 << 10, ZoneCapacity: 256 << 10, Zones: 34, Conventional: 34},
	{Dialect: zone.SMR, ZoneSize: 128 << 10, ZoneCapacity: 128 << 10, Zones: 64, MaxOpen: 2, Conventional: 40, LastZoneSize: 40 << 10},
}

// tightGeometries are those of stores that are filled: what is in them is read back after each crash.
var tightGeometries = []zone.Geometry{
	{Dialect: zone.ZNS, ZoneSize: 64 << 10, ZoneCapacity: 64 << 10, Zones: 28, MaxOpen: 2, MaxActive: 3},
	{Dialect: zone.SMR, ZoneSize: 128 << 10, ZoneCapacity: 128 << 10, Zones: 18, MaxOpen: 4},
	{Dialect: zone.ZNS, ZoneSize: 128 << 10, ZoneCapacity: 100 << 10, Zones: 20, AppendLimit: 20 << 10},
	{Dialect: zone.SMR, ZoneSize: 64 << 10, ZoneCapacity: 64 << 10, Zones: 30, MaxOpen: 2, Conventional: 6},
}

// ConfigFor draws a configuration from a seed.
func ConfigFor(seed uint64) Config {
	r := rand.New(rand.NewPCG(seed, 0xc0f16))
	c := Config{
		Geometry:      geometries[r.IntN(len(geometries))],
		Compression:   []extent.Codec{extent.CodecNone, extent.CodecZstd}[r.IntN(2)],
		NoDelalloc:    r.IntN(3) == 0,
		Workers:       1 + r.IntN(2),
		WritebackAge:  []time.Duration{10 * time.Millisecond, 200 * time.Millisecond, 10 * time.Second}[r.IntN(3)],
		DirtyLimit:    8 << 20,
		MetadataLimit: 64 << 20,
		Garbage:       r.IntN(2) == 0,
		Clients:       1 + r.IntN(5),
		Lives:         20,
		Steps:         30 + r.IntN(150),
		Shared:        r.IntN(3) > 0,
	}
	if r.IntN(8) == 0 {
		c.MetadataLimit = 4 << 20
	}
	if r.IntN(2) == 0 {
		c.Faults = 4 << r.IntN(5)
	}
	if c.Tight = r.IntN(4) == 0; c.Tight {
		c.Geometry = tightGeometries[r.IntN(len(tightGeometries))]
	}
	c.Scrub = r.IntN(3) > 0
	if r.IntN(3) == 0 {
		c.chooseCopies(r)
	}
	return c
}

// ConfigWithCopiesFor draws one with several devices or copies.
func ConfigWithCopiesFor(seed uint64) Config {
	c := ConfigFor(seed)
	if c.Devices == 0 {
		c.chooseCopies(rand.New(rand.NewPCG(seed, 0xc0f17)))
	}
	c.Changes = true
	return c
}

// pairGeometries are those of a device that holds two copies: each of its sequential zones has a partner, and
// two can be active.
var pairGeometries = []zone.Geometry{geometries[0], geometries[2], geometries[5]}

// chooseCopies draws how many devices and copies there are, of which one is more than 1.
func (c *Config) chooseCopies(r *rand.Rand) {
	c.Devices, c.Copies = 2+r.IntN(2), 2
	switch r.IntN(5) {
	case 0:
		c.Copies = 1
	case 1:
		c.Devices, c.Tight = 1, false
		c.Geometry = pairGeometries[r.IntN(len(pairGeometries))]
	}
	if c.Copies > 1 && c.Geometry.NumSequential() == 0 { // two copies are kept in sequential zones only
		c.Geometry = geometries[0]
	}
}
