package array_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/zonetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shape is a way to make one device of some.
type shape struct {
	name string
	// members are the geometries of the devices that together make one of g.
	members func(g zone.Geometry) []zone.Geometry
	// sets are the places of the zones of g.
	sets func(g zone.Geometry) [][]array.Place
	// counted corrects the members' counters to those of one device.
	counted func(devs []*zone.Mem, appends uint64) zone.Stats
}

var shapes = []shape{
	{
		name:    "one",
		members: func(g zone.Geometry) []zone.Geometry { return []zone.Geometry{g} },
		sets:    func(g zone.Geometry) [][]array.Place { return single(0, g.Zones) },
	},
	{
		name:    "mirrored",
		members: func(g zone.Geometry) []zone.Geometry { return []zone.Geometry{g, g} },
		sets:    func(g zone.Geometry) [][]array.Place { return mirrored(g.Zones) },
		counted: func(devs []*zone.Mem, appends uint64) zone.Stats {
			st := devs[0].Stats() // the first of equals, and it alone is read
			st.Writes -= appends
			st.Appends = appends
			return st
		},
	},
	{
		name: "concatenated",
		// The limits are those of the first: the suite meets them on the first zones.
		members: func(g zone.Geometry) []zone.Geometry {
			first, second := g, g
			second.Zones, second.Conventional = 2, 0
			if g.Zones <= 4 {
				second.Zones = 1
			}
			first.Zones, first.LastZoneSize = g.Zones-second.Zones, 0
			if g.OpenLimit() == 0 && g.ActiveLimit() == 0 {
				return []zone.Geometry{first, second}
			}
			second.MaxOpen, second.MaxActive = 0, 0
			return []zone.Geometry{first, second}
		},
		sets: func(g zone.Geometry) [][]array.Place {
			n := 2
			if g.Zones <= 4 {
				n = 1
			}
			return append(single(0, g.Zones-n), single(1, n)...)
		},
		counted: func(devs []*zone.Mem, _ uint64) zone.Stats {
			st := devs[0].Stats() // all of the case happens there, but for what goes to both
			st.Flushes = max(st.Flushes, devs[1].Stats().Flushes)
			return st
		},
	},
	{
		name: "two zones a set",
		members: func(g zone.Geometry) []zone.Geometry {
			g.Zones, g.Conventional = 2*g.Zones, 2*g.Conventional
			g.MaxOpen, g.MaxActive = 2*g.MaxOpen, 2*g.MaxActive
			if g.LastZoneSize != 0 {
				g.Zones-- // the last zone of the last set is in the whole zone before it
			}
			return []zone.Geometry{g}
		},
		sets: func(g zone.Geometry) [][]array.Place {
			sets := make([][]array.Place, g.Zones)
			for i := range sets {
				sets[i] = []array.Place{{Zone: 2 * i}, {Zone: 2*i + 1}}
			}
			if g.LastZoneSize != 0 {
				sets[g.Zones-1] = sets[g.Zones-1][:1]
			}
			return sets
		},
		counted: func(devs []*zone.Mem, appends uint64) zone.Stats {
			st := devs[0].Stats()
			for _, n := range []*uint64{
				&st.Writes, &st.WrittenBytes, &st.Opens, &st.Closes, &st.Finishes, &st.Resets, &st.Evictions,
				&st.ImplicitOpens, &st.Discards, &st.DiscardRanges, &st.DiscardedBytes, &st.Releases,
				&st.RefusedTooManyOpen, &st.RefusedTooManyActive,
			} {
				*n /= 2
			}
			st.PeakOpen, st.PeakActive = st.PeakOpen/2, st.PeakActive/2
			st.Writes -= appends
			st.Appends = appends
			return st
		},
	},
}

func single(device, zones int) [][]array.Place {
	sets := make([][]array.Place, zones)
	for i := range sets {
		sets[i] = []array.Place{{Device: device, Zone: i}}
	}
	return sets
}

func mirrored(zones int) [][]array.Place {
	sets := make([][]array.Place, zones)
	for i := range sets {
		sets[i] = []array.Place{{Device: 0, Zone: i}, {Device: 1, Zone: i}}
	}
	return sets
}

// counting is an array whose counters are those of one device, as the suite wants them.
type counting struct {
	*array.Array
	shape   shape
	devs    []*zone.Mem
	appends atomic.Uint64
}

func (c *counting) Append(z int, bufs [][]byte) (int64, error) {
	off, err := c.Array.Append(z, bufs)
	if err == nil {
		c.appends.Add(1)
	}
	return off, err
}

func (c *counting) Stats() zone.Stats {
	if c.shape.counted == nil {
		return c.Array.Stats()
	}
	return c.shape.counted(c.devs, c.appends.Load())
}

func (s shape) open(t *testing.T, g zone.Geometry, o zone.MemOptions) (devs []*zone.Mem, members []array.Member) {
	t.Helper()
	for i, mg := range s.members(g) {
		d, err := zone.NewMem(mg, o)
		if err != nil {
			t.Fatal(err)
		}
		devs = append(devs, d)
		members = append(members, array.Member{Number: i, Device: d})
	}
	return devs, members
}

func newArray(t testing.TB, members []array.Member, sets [][]array.Place) *array.Array {
	t.Helper()
	a, err := array.New(members, sets)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestArraysKeepTheRules(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			zonetest.Run(t, func(t *testing.T, g zone.Geometry) zone.Device {
				devs, members := s.open(t, g, zone.MemOptions{})
				return &counting{Array: newArray(t, members, s.sets(g)), shape: s, devs: devs}
			})
		})
	}
}

// Power goes from all members at once, each of which keeps what it likes. What sets of several
// places are like then is in crash_test.go.
func TestArraysSurviveCrashes(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for _, s := range shapes {
		if s.name != "one" && s.name != "concatenated" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			zonetest.RunCrash(t, rounds, func(t *testing.T, g zone.Geometry) zonetest.Crasher {
				if s.name == "concatenated" && g.OpenLimit()+g.ActiveLimit() > 0 {
					t.Skip("the limits are those of each device")
				}
				devs, members := s.open(t, g, zone.MemOptions{})
				return zonetest.Crasher{
					Dev: newArray(t, members, s.sets(g)),
					Crash: func(t *testing.T, rng *rand.Rand) zone.Device {
						for _, d := range devs {
							d.CutPower()
						}
						for _, d := range devs {
							d.PowerOn(rng)
						}
						return newArray(t, members, s.sets(g))
					},
				}
			})
		})
	}
}
