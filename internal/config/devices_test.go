package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestSeveralDevices(t *testing.T) {
	for in, want := range map[string][]string{
		"file:/a":                                {"/a"},
		"file:/a\nfile:/b":                       {"/a", "/b"},
		"file:/a\r\nfile:/b\r\n":                 {"/a", "/b"},
		"\n\nfile:/a\n\n":                        {"/a"},
		"file:/a file:/b":                        {"/a", "/b"},
		" \tfile:/a \t file:/b\n file:/c ":       {"/a", "/b", "/c"},
		"file:/a?size=1GiB file:b?size=2GiB":     {"/a", "b"},
		"file:/my disks/a file:/my disks/b":      {"/my disks/a", "/my disks/b"},
		"file:/profile:/b":                       {"/profile:/b"},
		"file:/a\nfile:/b?size=1GiB&max-open=0 ": {"/a", "/b"},
	} {
		got, err := ParseDevices(in)
		var paths []string
		for _, d := range got {
			paths = append(paths, d.Path)
		}
		if err != nil || !slices.Equal(paths, want) {
			t.Errorf("%q names %q, %v", in, paths, err)
		}
	}
	if d, err := ParseDevices("file:/a?size=1GiB file:/b"); err != nil || d[0].given["size"] != 1<<30 || len(d[1].given) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestSeveralDevicesThatAreWrong(t *testing.T) {
	for in, say := range map[string]string{
		"":                               `"" is no device`,
		" \n ":                           "is no device",
		"disk":                           `"disk" is no device: write file:PATH`,
		"file:/a\ndisk":                  `"disk" is no device`,
		"disk file:/a":                   `"disk" is no device`,
		"file:/a?size=1GiB disk":         "size=1GiB disk is not allowed",
		"file:/a file:?size=1GiB":        "names no file",
		"file:/a\nfile:/a":               "device /a is named twice",
		"file:/a file:/b/../a?size=1GiB": "device /b/../a is named twice",
	} {
		_, err := ParseDevices(in)
		e, ok := err.(*errdefs.Error)
		if !ok || e.Kind != errdefs.InvalidArgument || e.Field != "device" || !strings.Contains(e.Msg, say) {
			t.Errorf("%q: %v, want %q", in, err, say)
		}
	}
}

func TestDescribeSeveralDevices(t *testing.T) {
	zns := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 16}
	smr := zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 16, LastZoneSize: 1 << 19}
	for want, gs := range map[string][]zone.Geometry{
		"16 MiB emulated ZNS device":        {zns},
		"2 emulated ZNS devices, 32 MiB":    {zns, zns},
		"3 emulated SMR devices, 47616 KiB": {smr, smr, {Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 16, LastZoneSize: 1 << 19}},
	} {
		if got := Describe(gs...); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAboutSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1.0 KiB", 1<<20 - 1: "1023.9 KiB", 1 << 20: "1.0 MiB", 1900 << 20: "1.8 GiB", 5 << 40: "5.0 TiB",
	} {
		if got := AboutSize(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// FuzzParseDevices: any text is taken or refused as device; what is taken comes back when each device is
// given on a line of its own.
func FuzzParseDevices(f *testing.F) {
	for _, s := range []string{"", "file:/a", "file:/a file:/b", "file:/a\nfile:/b?size=1GiB", " file: file:\r\n", "file:\r ", "file: ?", "file:/a\xff file:b\tfile:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		devices, err := ParseDevices(s)
		if err != nil {
			if e, ok := err.(*errdefs.Error); !ok || e.Field != "device" {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		lines := make([]string, len(devices))
		for i, d := range devices {
			lines[i] = d.String()
		}
		back, err := ParseDevices(strings.Join(lines, "\n"))
		if err != nil || len(back) != len(devices) || len(back) == 0 {
			t.Fatalf("%q is %+v, comes back as %+v, %v", s, devices, back, err)
		}
		for i := range back {
			if back[i].String() != devices[i].String() {
				t.Fatalf("%q: %s comes back as %s", s, devices[i], back[i])
			}
		}
	})
}
