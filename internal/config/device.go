package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// The emulated device that is made when nothing else is asked for, and what a device URL leaves
// open. The limits are those of common drives: 14 active zones of a ZNS SSD, 128 open ones of an
// SMR disk.
const (
	DefaultDeviceSize = 16 << 30
	defaultZoneSize   = 64 << 20
	defaultZNSLimit   = 14
	defaultSMROpen    = 128
)

// DeviceSyntax is how a device URL is written, for help texts.
const DeviceSyntax = "file:PATH?size=&zone-size=&zone-capacity=&conventional=&max-open=&max-active=&append-limit=&dialect="

// Device is a device as a URL names it. The zero value names none.
type Device struct {
	Path string
	// given are the values of the keys in the URL.
	given map[string]int64
}

// deviceKey is one key of a device URL: how its value is read, and where a geometry has it.
type deviceKey struct {
	name, allowed string
	parse         func(string) (int64, error)
	of            func(zone.Geometry) int64
}

var deviceKeys = []deviceKey{
	{"size", "a size, such as 16GiB", ParseSize, zone.Geometry.DeviceBytes},
	{"zone-size", "a size, such as 64MiB", ParseSize, func(g zone.Geometry) int64 { return g.ZoneSize }},
	{"zone-capacity", "a size up to the zone size", ParseSize, func(g zone.Geometry) int64 { return g.ZoneCapacity }},
	{"conventional", "a number of zones", parseCount, func(g zone.Geometry) int64 { return int64(g.Conventional) }},
	{"max-open", "a number of zones, 0 for no limit", parseCount, func(g zone.Geometry) int64 { return int64(g.MaxOpen) }},
	{"max-active", "a number of zones, 0 for no limit", parseCount, func(g zone.Geometry) int64 { return int64(g.MaxActive) }},
	{"append-limit", "a size, 0 for no limit", ParseSize, func(g zone.Geometry) int64 { return g.AppendLimit }},
	{"dialect", "zns or smr", parseDialect, func(g zone.Geometry) int64 { return int64(g.Dialect) }},
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", s)
	}
	return int64(n), nil
}

func parseDialect(s string) (int64, error) {
	switch s {
	case "zns":
		return int64(zone.ZNS), nil
	case "smr":
		return int64(zone.SMR), nil
	}
	return 0, fmt.Errorf("%q is no dialect", s)
}

// ParseDevice reads a device URL, as DeviceSyntax has it. PATH is taken as it is, up to the first
// question mark. Every key may be left out; one that is not known, comes twice or has a value
// that is not allowed is an InvalidArgument error with Field "device" that names the key and
// says what is allowed.
func ParseDevice(s string) (Device, error) {
	bad := func(format string, a ...any) (Device, error) {
		return Device{}, errdefs.Invalid("config.ParseDevice", "device", fmt.Sprintf(format, a...))
	}
	rest, ok := strings.CutPrefix(s, "file:")
	if !ok {
		return bad("%q is no device: write %s", s, DeviceSyntax)
	}
	path, query, _ := strings.Cut(rest, "?")
	if path == "" || strings.ContainsRune(path, 0) {
		return bad("%q names no file: write %s", s, DeviceSyntax)
	}
	d := Device{Path: path, given: map[string]int64{}}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		key, ok := keyNamed(name)
		if !ok {
			return bad("%q is no key of a device: those are %s", name, strings.Join(keyNames(), ", "))
		}
		if _, twice := d.given[name]; twice {
			return bad("%s is given twice", name)
		}
		n, err := key.parse(value)
		if err != nil {
			return bad("%s=%s is not allowed: give %s", name, value, key.allowed)
		}
		d.given[name] = n
	}
	if _, sized := d.given["size"]; sized {
		if _, _, err := d.Geometry(); err != nil {
			return Device{}, err
		}
	}
	return d, nil
}

func keyNamed(name string) (deviceKey, bool) {
	for _, k := range deviceKeys {
		if k.name == name {
			return k, true
		}
	}
	return deviceKey{}, false
}

func keyNames() []string {
	names := make([]string, len(deviceKeys))
	for i, k := range deviceKeys {
		names[i] = k.name
	}
	return names
}

// DefaultDevice is the emulated device that a data folder gets when no other is named.
func DefaultDevice(path string) Device {
	return Device{Path: path, given: map[string]int64{"size": DefaultDeviceSize}}
}

// Geometry returns the geometry of a device made from the URL; ok is false if the URL gives no
// size, for then it can only name a device that is there. What is left out: zones of 64 MiB
// (a last one is shorter if they do not divide the size), capacity = zone size, dialect zns,
// and limits of 14 open and active zones (zns; one limit given alone counts for both) or 128
// open ones (smr).
//
// A geometry that no device can have is an InvalidArgument error that names the key.
func (d Device) Geometry() (g zone.Geometry, ok bool, err error) {
	size, ok := d.given["size"]
	if !ok {
		return zone.Geometry{}, false, nil
	}
	value := func(name string, otherwise int64) int64 {
		if n, ok := d.given[name]; ok {
			return n
		}
		return otherwise
	}
	zoneSize := value("zone-size", defaultZoneSize)
	if zoneSize == 0 {
		return zone.Geometry{}, false, keyError("zone-size", "0 is no zone size: give a size, such as 64MiB")
	}
	zones := (size + zoneSize - 1) / zoneSize
	if zones == 0 || zones > zone.MaxZones {
		return zone.Geometry{}, false, keyError("size", fmt.Sprintf("%s makes %d zones of %s: 1 to %d are allowed",
			FormatSize(size), zones, FormatSize(zoneSize), zone.MaxZones))
	}
	g = zone.Geometry{
		Dialect:  zone.Dialect(value("dialect", int64(zone.ZNS))),
		ZoneSize: zoneSize, ZoneCapacity: value("zone-capacity", zoneSize),
		Zones: int(zones), LastZoneSize: size % zoneSize,
		Conventional: int(value("conventional", 0)), AppendLimit: value("append-limit", 0),
	}
	if g.Dialect == zone.SMR {
		g.MaxOpen = int(value("max-open", defaultSMROpen))
		g.MaxActive = int(value("max-active", 0))
	} else {
		g.MaxOpen = int(value("max-open", value("max-active", defaultZNSLimit)))
		g.MaxActive = int(value("max-active", value("max-open", defaultZNSLimit)))
	}
	if err := g.Validate(); err != nil {
		return zone.Geometry{}, false, geometryError(err)
	}
	return g, true, nil
}

func keyError(key, msg string) error {
	return errdefs.Invalid("config.Device", "device", key+": "+msg)
}

// keyOf gives the key of a URL for a field that zone.Geometry.Validate refuses.
var keyOf = map[string]string{
	"Dialect": "dialect", "ZoneSize": "zone-size", "ZoneCapacity": "zone-capacity", "Zones": "size",
	"Conventional": "conventional", "MaxOpen": "max-open", "MaxActive": "max-active",
	"AppendLimit": "append-limit", "LastZoneSize": "size",
}

// geometryError says what Validate says, in the words of the URL.
func geometryError(err error) error {
	e, ok := err.(*errdefs.Error)
	key := ""
	if ok {
		key = keyOf[e.Field]
	}
	if key == "" {
		return err
	}
	msg := strings.TrimPrefix(e.Msg, e.Field+" ")
	if e.Field == "LastZoneSize" {
		msg = "the last zone would have a size that is not allowed: " + msg
	}
	return keyError(key, msg)
}

// Agrees reports the first key of the URL that a device which is there contradicts, as a
// Precondition error with reason DEVICE_MISMATCH.
func (d Device) Agrees(g zone.Geometry) error {
	for _, k := range deviceKeys {
		want, given := d.given[k.name]
		if got := k.of(g); given && got != want {
			return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "config.Device", d.Path, fmt.Sprintf(
				"%s=%s was asked for, but the device has %s; leave the key out, or format it anew with --force",
				k.name, k.text(want), k.text(got)))
		}
	}
	return nil
}

// text writes a value as the URL has it.
func (k deviceKey) text(n int64) string {
	switch k.name {
	case "dialect":
		if zone.Dialect(n) == zone.SMR {
			return "smr"
		}
		return "zns"
	case "conventional", "max-open", "max-active":
		return strconv.FormatInt(n, 10)
	}
	return FormatSize(n)
}

// String writes the device as a URL that ParseDevice reads back.
func (d Device) String() string {
	var b strings.Builder
	b.WriteString("file:" + d.Path)
	sep := byte('?')
	for _, k := range deviceKeys {
		if n, ok := d.given[k.name]; ok {
			b.WriteByte(sep)
			b.WriteString(k.name + "=" + k.text(n))
			sep = '&'
		}
	}
	return b.String()
}
