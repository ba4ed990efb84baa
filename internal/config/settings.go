package config

import (
	"fmt"
	"log/slog"
	"math"
	"net/url"
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
	Listen        string   // host:port or unix:///path
	AdminListen   string   // the same, "": off
	Devices       []Device // none: the emulated one in Data
	Copies        int      // of each byte in a new store; 0: 1, or what the store has
	NoDelalloc    bool
	Compression   *extent.Codec // nil: what the store was formatted with
	DirtyLimit    int64         // bytes
	ReadLimit     int64         // bytes
	ScrubMemory   int64         // bytes
	MetadataLimit int64         // bytes
	MaxWait       time.Duration
	// ReclaimThreshold and ReclaimPace are percentages: reclaim.Options.Threshold and Busy.
	ReclaimThreshold, ReclaimPace int
	DrainTimeout                  time.Duration
	MaxConnections, MaxCalls      int
	OTLPEndpoint                  string // http://host:port or https://host:port, "": off
	LogLevel                      slog.Level
}

// Setting is one thing that can be told by flag, variable or file.
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
	minScrubMemory   = 1 << 20 // engine.Options.ScrubMemory
	minMetadataLimit = 1 << 20 // store.MinMaxBytes
)

var settings = []Setting{
	{Name: "data", Default: "./shingle-data", Usage: "folder of the store: metadata, and the emulated device",
		set: func(c *Config, s string) error { return text(&c.Data, s, "a folder") }},
	{Name: "listen", Default: "127.0.0.1:7411", Usage: "address to serve on, host:port or unix:///path; port 0: any free one",
		set: func(c *Config, s string) error { return address(&c.Listen, s) }},
	{Name: "admin-listen", Usage: "address of /metrics, /healthz, /readyz, pprof and channelz, host:port or unix:///path (default off)",
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
	{Name: "scrub-memory", Default: "32MiB", Usage: "most memory that a scrub reads into",
		set: func(c *Config, s string) error { return sizeOf(&c.ScrubMemory, s, minScrubMemory) }},
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
	{Name: "max-connections", Default: "1024", Usage: "most connections of clients at a time; more are closed at once",
		set: func(c *Config, s string) error { return count(&c.MaxConnections, s) }},
	{Name: "max-calls", Default: "4096", Usage: "most calls under way at a time, of all clients; more are refused as UNAVAILABLE",
		set: func(c *Config, s string) error { return count(&c.MaxCalls, s) }},
	{Name: "otlp-endpoint", Usage: "OpenTelemetry collector that gets a span of each call, over gRPC: http://host:port or, encrypted, https://host:port (default off)",
		set: func(c *Config, s string) error { return endpoint(&c.OTLPEndpoint, s) }},
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

// Sources are where settings come from: a flag counts before the environment, that before the
// file, that before the default.
type Sources struct {
	// Flag returns a flag's text and whether it was given, Env the same of a variable; an empty
	// variable is as good as none.
	Flag, Env func(string) (string, bool)
	File      File
}

// choose returns the text that counts and where it is from; "" if there is none. A flag that was
// given counts even if it is empty, and is then judged as it is.
func (s Sources) choose(setting Setting) (value, from string) {
	if v, ok := s.Flag(setting.Name); ok {
		return v, "--" + setting.Name
	}
	if v, ok := s.Env(setting.Env()); ok && v != "" {
		return v, setting.Env()
	}
	if v, ok := s.File.values[setting.Name]; ok {
		return v.text, s.File.where(v)
	}
	return setting.Default, "default"
}

// Resolve works out the settings. Those that are not in use keep Config's zero value.
//
// A value that counts and is not allowed is an InvalidArgument error whose Field is the setting's
// name and whose message names the flag, the variable or the line of the file, and says what is
// allowed.
func (s Sources) Resolve(in []Setting) (Config, error) {
	var c Config
	for _, setting := range in {
		value, from := s.choose(setting)
		if value == "" && from == "default" {
			continue
		}
		if err := setting.judge(&c, value, from); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// judge takes the value over into c, or says what is wrong with it and where it is from.
func (s Setting) judge(c *Config, value, from string) error {
	err := s.set(c, value)
	if err == nil {
		return nil
	}
	msg := err.Error()
	if e, ok := err.(*errdefs.Error); ok {
		msg = e.Msg
	}
	if strings.Contains(from, ":") {
		msg = s.Name + ": " + msg // a line of a file does not say it
	}
	return errdefs.Invalid("config.Resolve", s.Name, from+": "+msg)
}

func text(to *string, s, what string) error {
	if s == "" {
		return fmt.Errorf("give %s", what)
	}
	*to = s
	return nil
}

// maxSocketPath is the longest path of a unix socket, in bytes: sun_path less its NUL.
const maxSocketPath = 107

func address(to *string, s string) error {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		path, ok = strings.CutPrefix(path, "//")
		if !ok || !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0) {
			return fmt.Errorf("%q names no socket: give unix:// and a path from the root, such as unix:///run/shingle/engine.sock", s)
		}
		if len(path) > maxSocketPath {
			return fmt.Errorf("the path of a socket has at most %d bytes, %s has %d", maxSocketPath, path, len(path))
		}
		*to = s
		return nil
	}
	at := strings.LastIndexByte(s, ':')
	if at < 0 {
		return fmt.Errorf("%q is no address: give host:port, such as 127.0.0.1:7411, or unix:///path", s)
	}
	if _, err := strconv.ParseUint(s[at+1:], 10, 16); err != nil {
		return fmt.Errorf("%q has no port of 0 to 65535: give host:port, such as 127.0.0.1:7411", s)
	}
	*to = s
	return nil
}

func endpoint(to *string, s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is no collector: give http://host:port or https://host:port, such as http://127.0.0.1:4317", s)
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

func count(to *int, s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > math.MaxInt32 {
		return fmt.Errorf("%q is no number: give a whole one from 1 on", s)
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
