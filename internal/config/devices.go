package config

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// deviceScheme is what every device URL begins with.
const deviceScheme = "file:"

// ParseDevices reads one or several device URLs, as ParseDevice does. They are on lines of their own, or
// separated by spaces or tabs; such a separator is only one before "file:", so that a PATH may have spaces in
// it. A PATH that comes twice is an InvalidArgument error with Field "device".
func ParseDevices(s string) (out []Device, err error) {
	for line := range strings.Lines(s) {
		for _, url := range splitURLs(line) {
			d, err := ParseDevice(url)
			if err != nil {
				return nil, err
			}
			if strings.TrimRight(d.Path, trimmed) != d.Path {
				return nil, errdefs.Invalid("config.ParseDevices", "device", fmt.Sprintf("%q ends in a blank; name a file without one", d.Path))
			}
			for _, other := range out {
				if filepath.Clean(other.Path) == filepath.Clean(d.Path) {
					return nil, errdefs.Invalid("config.ParseDevices", "device", fmt.Sprintf("device %s is named twice", d.Path))
				}
			}
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		_, err = ParseDevice(s) // which says what is missing
	}
	return out, err
}

// trimmed is what a device URL neither begins nor ends with, nor its PATH ends with.
const trimmed = " \t\r\n"

// splitURLs splits a line before each "file:" that has a space or a tab before it.
func splitURLs(line string) (urls []string) {
	const blank = " \t"
	from := 0
	for at := 1; at < len(line); at++ {
		if strings.IndexByte(blank, line[at-1]) >= 0 && strings.HasPrefix(line[at:], deviceScheme) {
			urls = append(urls, strings.Trim(line[from:at], trimmed))
			from = at
		}
	}
	urls = append(urls, strings.Trim(line[from:], trimmed))
	kept := urls[:0]
	for _, u := range urls {
		if u != "" {
			kept = append(kept, u)
		}
	}
	return kept
}

// Describe names devices of these geometries, which have one dialect, in a few words: "16 GiB emulated ZNS
// device", "2 emulated ZNS devices, 32 GiB".
func Describe(devices ...zone.Geometry) string {
	family, bytes := "ZNS", int64(0)
	for _, g := range devices {
		if bytes += g.DeviceBytes(); g.Dialect == zone.SMR {
			family = "SMR"
		}
	}
	if len(devices) == 1 {
		return ProseSize(bytes) + " emulated " + family + " device"
	}
	return fmt.Sprintf("%d emulated %s devices, %s", len(devices), family, ProseSize(bytes))
}
