package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestDeviceGeometry(t *testing.T) {
	const mib = 1 << 20
	zns := func(zones, open, active int) zone.Geometry {
		return zone.Geometry{Dialect: zone.ZNS, ZoneSize: 64 * mib, ZoneCapacity: 64 * mib, Zones: zones, MaxOpen: open, MaxActive: active}
	}
	for _, c := range []struct {
		query string
		want  zone.Geometry
	}{
		{"size=16GiB", zns(256, 14, 14)},
		{"size=1GiB&max-open=4", zns(16, 4, 4)},
		{"size=1GiB&max-active=6", zns(16, 6, 6)},
		{"size=1GiB&max-active=6&max-open=2", zns(16, 2, 6)},
		{"size=1GiB&max-active=0", zns(16, 0, 0)},
		{"size=1GiB&max-active=0&max-open=3", zns(16, 3, 0)},
		{"&size=1GiB&", zns(16, 14, 14)},
		{"size=100MiB&zone-size=8MiB&zone-capacity=6MiB&append-limit=672KiB&dialect=zns", zone.Geometry{
			Dialect: zone.ZNS, ZoneSize: 8 * mib, ZoneCapacity: 6 * mib, Zones: 13, LastZoneSize: 4 * mib,
			MaxOpen: 14, MaxActive: 14, AppendLimit: 672 << 10,
		}},
		{"size=1GiB&zone-size=256MiB&conventional=1&dialect=smr", zone.Geometry{
			Dialect: zone.SMR, ZoneSize: 256 * mib, ZoneCapacity: 256 * mib, Zones: 4, Conventional: 1, MaxOpen: 128,
		}},
		{"dialect=smr&size=1GiB&max-open=0", zone.Geometry{Dialect: zone.SMR, ZoneSize: 64 * mib, ZoneCapacity: 64 * mib, Zones: 16}},
	} {
		d, err := ParseDevice("file:/a b/c%20d?" + c.query)
		if err != nil {
			t.Errorf("%s: %v", c.query, err)
			continue
		}
		if d.Path != "/a b/c%20d" {
			t.Errorf("path %q", d.Path)
		}
		g, ok, err := d.Geometry()
		if err != nil || !ok {
			t.Errorf("%s: %v, %v", c.query, ok, err)
		}
		if diff := cmp.Diff(c.want, g); diff != "" {
			t.Errorf("%s: %s", c.query, diff)
		}
		if err := d.Agrees(g); err != nil {
			t.Errorf("%s disagrees with the device made from it: %v", c.query, err)
		}
		back, err := ParseDevice(d.String())
		if err != nil || back.String() != d.String() {
			t.Errorf("%s is written %s and read back %s, %v", c.query, d, back, err)
		}
	}
}

func TestDefaultDeviceIsAnOrdinaryOne(t *testing.T) {
	g, ok, err := DefaultDevice("x").Geometry()
	want := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 64 << 20, ZoneCapacity: 64 << 20, Zones: 256, MaxOpen: 14, MaxActive: 14}
	if diff := cmp.Diff(want, g); diff != "" || !ok || err != nil {
		t.Errorf("%v, %v, %s", ok, err, diff)
	}
	if got := Describe(g); got != "16 GiB emulated ZNS device" {
		t.Errorf("it is described as %q", got)
	}
	g.Dialect = zone.SMR
	if got := Describe(g); got != "16 GiB emulated SMR device" {
		t.Errorf("it is described as %q", got)
	}
}

func TestADeviceWithoutSizeOnlyNamesOne(t *testing.T) {
	for _, s := range []string{"file:dev", "file:dev?", "file:dev?zone-size=1MiB"} {
		d, err := ParseDevice(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := d.Geometry(); ok || err != nil {
			t.Errorf("%s has a geometry: %v, %v", s, ok, err)
		}
	}
}

func TestDeviceErrorsNameTheKey(t *testing.T) {
	for _, c := range []struct{ in, say string }{
		{"", `"" is no device: write file:PATH`},
		{"dev", `"dev" is no device: write file:PATH`},
		{"/dev/nvme0n1", "is no device: write file:PATH"},
		{"file:", "names no file"},
		{"file:?size=1GiB", "names no file"},
		{"file:a\x00b", "names no file"},
		{"file:a?colour=red", `"colour" is no key of a device: those are size, zone-size, zone-capacity, conventional, max-open, max-active, append-limit, dialect`},
		{"file:a?Size=1GiB", `"Size" is no key`},
		{"file:a?=1", `"" is no key`},
		{"file:a?size", "size= is not allowed: give a size, such as 16GiB"},
		{"file:a?size=", "size= is not allowed"},
		{"file:a?size=big", "size=big is not allowed"},
		{"file:a?size=1GiB&size=1GiB", "size is given twice"},
		{"file:a?max-open=-1", "max-open=-1 is not allowed: give a number of zones, 0 for no limit"},
		{"file:a?max-active=4MiB", "max-active=4MiB is not allowed"},
		{"file:a?conventional=9999999999", "conventional=9999999999 is not allowed"},
		{"file:a?dialect=ZNS", "dialect=ZNS is not allowed: give zns or smr"},
		// Of geometries that no device has:
		{"file:a?size=0", "size: 0 makes 0 zones"},
		{"file:a?size=1GiB&zone-size=0", "zone-size: 0 is no zone size"},
		{"file:a?size=8388607TiB&zone-size=4KiB", "size: 8388607TiB makes"},
		{"file:a?size=1GiB&zone-size=1000", "zone-size: 1000 is no positive multiple of 4096"},
		{"file:a?size=1GiB&zone-capacity=65MiB", "zone-capacity: 68157440 is more than the zone size"},
		{"file:a?size=1GiB&zone-capacity=60MiB&dialect=smr", "zone-capacity: 62914560 differs from the zone size"},
		{"file:a?size=1GiB&conventional=1", "conventional: 1 must be 0: ZNS has no conventional zones"},
		{"file:a?size=1GiB&conventional=17&dialect=smr", "conventional: 17 is outside 0..16"},
		{"file:a?size=1GiB&max-open=7&max-active=6", "max-open: 7 is more than the active limit 6"},
		{"file:a?size=1GiB&max-active=6&dialect=smr", "max-active: 6 must be 0: SMR has no active limit"},
		{"file:a?size=1GiB&append-limit=100", "append-limit: 100 is neither 0 nor at least one block"},
		{"file:a?size=1073741825", "size: the last zone would have a size that is not allowed: 1 is no positive multiple of 4096"},
	} {
		_, err := ParseDevice(c.in)
		e, ok := err.(*errdefs.Error)
		switch {
		case !ok:
			t.Errorf("%q: %v", c.in, err)
		case e.Kind != errdefs.InvalidArgument || e.Field != "device" || !strings.Contains(e.Msg, c.say):
			t.Errorf("%q: %v of %q says %q, want %q", c.in, e.Kind, e.Field, e.Msg, c.say)
		}
	}
}

func TestAgrees(t *testing.T) {
	g := zone.Geometry{
		Dialect: zone.ZNS, ZoneSize: 8 << 20, ZoneCapacity: 6 << 20, Zones: 100, LastZoneSize: 4 << 20,
		MaxOpen: 4, MaxActive: 6, AppendLimit: 672 << 10,
	}
	for query, say := range map[string]string{
		"": "", "size=796MiB": "", "max-open=4&max-active=6&append-limit=672KiB&dialect=zns&conventional=0&zone-size=8MiB&zone-capacity=6MiB": "",
		"size=800MiB":        "size=800MiB was asked for, but the device has 796MiB",
		"zone-size=16MiB":    "zone-size=16MiB was asked for, but the device has 8MiB",
		"zone-capacity=8MiB": "zone-capacity=8MiB was asked for, but the device has 6MiB",
		"conventional=2":     "conventional=2 was asked for, but the device has 0",
		"max-open=14":        "max-open=14 was asked for, but the device has 4",
		"max-active=0":       "max-active=0 was asked for, but the device has 6",
		"append-limit=0":     "append-limit=0 was asked for, but the device has 672KiB",
		"dialect=smr":        "dialect=smr was asked for, but the device has zns",
	} {
		d, err := ParseDevice("file:dev?" + query)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		err = d.Agrees(g)
		if say == "" {
			if err != nil {
				t.Errorf("%s: %v", query, err)
			}
			continue
		}
		if errdefs.ReasonOf(err) != errdefs.ReasonDeviceMismatch || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v, want %q", query, err, say)
		}
	}
}

func FuzzParseDevice(f *testing.F) {
	for _, s := range []string{
		"", "file:", "file:a", "file:a?size=16GiB&zone-size=64MiB&zone-capacity=60MiB&max-open=4&max-active=6&append-limit=672KiB&dialect=zns",
		"file:a?size=1GiB&conventional=3&dialect=smr", "file:a?size=9223372036854775807&zone-size=4096", "file:?&=&", "file:a?size=1GiB&size=1GiB",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDevice(s)
		if err != nil {
			if errdefs.KindOf(err) != errdefs.InvalidArgument {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		back, err := ParseDevice(d.String())
		if err != nil || back.String() != d.String() {
			t.Fatalf("%q is written %q and read back %q, %v", s, d, back, err)
		}
		g, ok, err := d.Geometry()
		if err != nil || !ok {
			return
		}
		if err := g.Validate(); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if err := d.Agrees(g); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
