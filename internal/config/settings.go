package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Config is what the engine was told. Zeros in the sizes mean the engine's own defaults.
type Config struct {
	Data          string   // folder
	Listen        string   // host:port
	AdminListen   string   // host:port, "": off
	Devices       []Device // none: the emulated one in Data
	Copies        int      // of each byte in a new store; 0: 1, or what the store has
	NoDelalloc    bool
	Compression   *extent.Codec // nil: what the store was formatted with
	DirtyLimit    int64         // bytes
	ReadLimit     int64         // bytes
	MetadataLimit int64         // bytes
	MaxWait       time.Duration
	// ReclaimThreshold and ReclaimPace are percentages: reclaim.Options.Threshold and Busy.
	ReclaimThreshold, ReclaimPace int
	DrainTimeout                  time.Duration
	LogLevel                      slog.Level
}

// Setting is one thing that can be told by flag or variable.
type Setting struct {
	// Name is the flag's, without the dashes.
	Name string
	// Default is the text that counts when nothing else is given; "" means that Usage says it.
	Default string
	Usage   string
	// Switch says that the value is true or false, and the flag alone means true.
	Switch bool
	// Many says that the flag may be given several times. Its values count together: they are one
	// text, each on a line of its own.
	Many bool

	set func(*Config, string) error
}

// Env is the setting's environment variable.
func (s Setting) Env() string {
	return "SHINGLE_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

const (
	minDirtyLimit    = 8 << 20 // engine.Options.DirtyLimit
	minReadLimit     = 8 << 20 // engine.Options.ReadLimit
	minMetadataLimit = 1 << 20 // store.MinMaxBytes
)

var settings = []Setting{
	{Name: "data", Default: "./shingle-data", Usage: "folder of the store: metadata, and the emulated device",
		set: func(c *Config, s string) error { return text(&c.Data, s, "a folder") }},
	{Name: "listen", Default: "127.0.0.1:7411", Usage: "address to serve on, host:port; port 0: any free one",
		set: func(c *Config, s string) error { return address(&c.Listen, s) }},
	{Name: "admin-listen", Usage: "address of /healthz, pprof and channelz, host:port (default off)",
		set: func(c *Config, s string) error { return address(&c.AdminListen, s) }},
	{Name: "device", Many: true, Usage: "device, '" + DeviceSyntax + "'; once for each of several (default a 16 GiB emulated ZNS device in the data folder, made on first start)",
		set: func(c *Config, s string) (err error) { c.Devices, err = ParseDevices(s); return err }},
	{Name: "copies", Usage: "how often a new store keeps each byte, 1 or 2: on different devices if there are several (default 1)",
		set: func(c *Config, s string) error { return copies(&c.Copies, s) }},
	{Name: "nodelalloc", Default: "false", Switch: true, Usage: "place bytes as they are received instead of collecting them first",
		set: func(c *Config, s string) error { return boolean(&c.NoDelalloc, s) }},
	{Name: "compression", Usage: "compression of new files, none or zstd (default as the store was formatted: zstd)",
		set: func(c *Config, s string) error { return codec(&c.Compression, s) }},
	{Name: "dirty-limit", Default: "512MiB", Usage: "most memory for received data that is not durable yet",
		set: func(c *Config, s string) error { return sizeOf(&c.DirtyLimit, s, minDirtyLimit) }},
	{Name: "read-limit", Default: "256MiB", Usage: "most memory for what was read and clients have not taken yet; half of it gives each read 128KiB",
		set: func(c *Config, s string) error { return sizeOf(&c.ReadLimit, s, minReadLimit) }},
	{Name: "metadata-limit", Usage: "most bytes of the metadata file, set aside on disk (default 1/64 of the device, 64MiB to 16GiB)",
		set: func(c *Config, s string) error { return sizeOf(&c.MetadataLimit, s, minMetadataLimit) }},
	{Name: "max-wait", Default: "30s", Usage: "how long a write waits for writeback or space without progress",
		set: func(c *Config, s string) error { return duration(&c.MaxWait, s, time.Millisecond) }},
	{Name: "reclaim-threshold", Default: "75", Usage: "how much of a zone must be dead, in percent, for its live data to be moved while there is space to spare",
		set: func(c *Config, s string) error { return percent(&c.ReclaimThreshold, s) }},
	{Name: "reclaim-pace", Default: "25", Usage: "how much of its time reclaim works, in percent, while others use the store and space is not low",
		set: func(c *Config, s string) error { return percent(&c.ReclaimPace, s) }},
	{Name: "drain-timeout", Default: "20s", Usage: "how long calls under way may take to end when the engine stops",
		set: func(c *Config, s string) error { return duration(&c.DrainTimeout, s, 0) }},
	{Name: "log-level", Default: "info", Usage: "debug, info, warn or error",
		set: func(c *Config, s string) error { return level(&c.LogLevel, s) }},
}

// Settings returns the settings of the given names, in that order; without names, all. Unknown
// names are a fault of the program and panic.
func Settings(names ...string) []Setting {
	if len(names) == 0 {
		return slices.Clone(settings)
	}
	out := make([]Setting, len(names))
	for i, name := range names {
		at := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
		if at < 0 {
			panic("config: no setting " + name)
		}
		out[i] = settings[at]
	}
	return out
}

// Resolve works out the settings: a flag counts before the environment, that before the default.
// flag returns a flag's text and whether it was given, env the same of a variable; an empty
// variable is as good as none. Settings that are not in use keep Config's zero value.
//
// A value that is not allowed is an InvalidArgument error whose Field is the setting's name and
// whose message names the flag or the variable and says what is allowed.
func Resolve(in []Setting, flag, env func(string) (string, bool)) (Config, error) {
	var c Config
	for _, s := range in {
		value, from := s.Default, "--"+s.Name
		if v, ok := flag(s.Name); ok {
			value = v
		} else if v, ok := env(s.Env()); ok && v != "" {
			value, from = v, s.Env()
		} else if value == "" {
			continue
		}
		if err := s.set(&c, value); err != nil {
			msg := err.Error()
			if e, ok := err.(*errdefs.Error); ok {
				msg = e.Msg
			}
			return Config{}, errdefs.Invalid("config.Resolve", s.Name, from+": "+msg)
		}
	}
	return c, nil
}

func text(to *string, s, what string) error {
	if s == "" {
		return fmt.Errorf("give %s", what)
	}
	*to = s
	return nil
}

func address(to *string, s string) error {
	at := strings.LastIndexByte(s, ':')
	if at < 0 {
		return fmt.Errorf("%q is no address: give host:port, such as 127.0.0.1:7411", s)
	}
	if _, err := strconv.ParseUint(s[at+1:], 10, 16); err != nil {
		return fmt.Errorf("%q has no port of 0 to 65535: give host:port, such as 127.0.0.1:7411", s)
	}
	*to = s
	return nil
}

func boolean(to *bool, s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", s)
	}
	*to = b
	return nil
}

func codec(to **extent.Codec, s string) error {
	c := extent.CodecNone
	switch s {
	case "none":
	case "zstd":
		c = extent.CodecZstd
	default:
		return fmt.Errorf("%q is not built in: give none or zstd", s)
	}
	*to = &c
	return nil
}

func copies(to *int, s string) error {
	switch s {
	case "1":
		*to = 1
	case "2":
		*to = 2
	default:
		return fmt.Errorf("%q copies cannot be kept: give 1 or 2", s)
	}
	return nil
}

func sizeOf(to *int64, s string, least int64) error {
	n, err := ParseSize(s)
	if err != nil {
		return err
	}
	if n < least {
		return fmt.Errorf("%s is too small: give at least %s", s, FormatSize(least))
	}
	*to = n
	return nil
}

func duration(to *time.Duration, s string, least time.Duration) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is no duration: give a number with ms, s, m or h, such as 30s", s)
	}
	if d < least {
		return fmt.Errorf("%s is too short: give at least %s", s, least)
	}
	*to = d
	return nil
}

func percent(to *int, s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 100 {
		return fmt.Errorf("%q is no percentage: give a whole number from 1 to 100", s)
	}
	*to = n
	return nil
}

func level(to *slog.Level, s string) error {
	switch s {
	case "debug":
		*to = slog.LevelDebug
	case "info":
		*to = slog.LevelInfo
	case "warn":
		*to = slog.LevelWarn
	case "error":
		*to = slog.LevelError
	default:
		return fmt.Errorf("%q is no level: give debug, info, warn or error", s)
	}
	return nil
}
