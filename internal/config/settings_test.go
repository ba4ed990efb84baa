package config

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// given looks values up in a map.
func given(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := m[name]
		return v, ok
	}
}

func TestDefaults(t *testing.T) {
	got, err := Sources{Flag: given(nil), Env: given(nil)}.Resolve(Settings())
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Data: "./shingle-data", Listen: "127.0.0.1:7411", DirtyLimit: 512 << 20, ReadLimit: 256 << 20, ScrubMemory: 32 << 20, MaxWait: 30 * time.Second, DrainTimeout: 20 * time.Second,
		ReclaimThreshold: 75, ReclaimPace: 25, MaxConnections: 1024, MaxCalls: 4096,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Device{})); diff != "" {
		t.Error(diff)
	}
}

func TestEverySettingCanBeSet(t *testing.T) {
	none, zstd := extent.CodecNone, extent.CodecZstd
	devices, err := ParseDevices("file:d?size=1GiB")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range []struct {
		name, value string
		want        Config
	}{
		{"data", "/srv/data", Config{Data: "/srv/data"}},
		{"listen", "[::1]:0", Config{Listen: "[::1]:0"}},
		{"listen", ":7411", Config{Listen: ":7411"}},
		{"admin-listen", "localhost:9", Config{AdminListen: "localhost:9"}},
		{"listen", "unix:///run/engine.sock", Config{Listen: "unix:///run/engine.sock"}},
		{"admin-listen", "unix:///a b", Config{AdminListen: "unix:///a b"}},
		{"device", "file:d?size=1GiB", Config{Devices: devices}},
		{"device", "\nfile:d?size=1GiB\n", Config{Devices: devices}},
		{"copies", "1", Config{Copies: 1}},
		{"copies", "2", Config{Copies: 2}},
		{"nodelalloc", "true", Config{NoDelalloc: true}},
		{"nodelalloc", "0", Config{}},
		{"compression", "none", Config{Compression: &none}},
		{"compression", "zstd", Config{Compression: &zstd}},
		{"dirty-limit", "8MiB", Config{DirtyLimit: 8 << 20}},
		{"read-limit", "8MiB", Config{ReadLimit: 8 << 20}},
		{"scrub-memory", "1MiB", Config{ScrubMemory: 1 << 20}},
		{"metadata-limit", "1048576", Config{MetadataLimit: 1 << 20}},
		{"max-wait", "1m30s", Config{MaxWait: 90 * time.Second}},
		{"reclaim-threshold", "100", Config{ReclaimThreshold: 100}},
		{"reclaim-pace", "1", Config{ReclaimPace: 1}},
		{"drain-timeout", "0", Config{}},
		{"max-connections", "1", Config{MaxConnections: 1}},
		{"max-calls", "100000", Config{MaxCalls: 100000}},
		{"otlp-endpoint", "http://[::1]:4317", Config{OTLPEndpoint: "http://[::1]:4317"}},
		{"otlp-endpoint", "https://otel.example:443", Config{OTLPEndpoint: "https://otel.example:443"}},
		{"log-level", "debug", Config{LogLevel: slog.LevelDebug}},
		{"log-level", "warn", Config{LogLevel: slog.LevelWarn}},
		{"log-level", "error", Config{LogLevel: slog.LevelError}},
		{"log-level", "info", Config{}},
	} {
		seen[c.name] = true
		in := Settings(c.name)
		for from, got := range map[string]func() (Config, error){
			"flag": func() (Config, error) {
				return Sources{Flag: given(map[string]string{c.name: c.value}), Env: given(nil)}.Resolve(in)
			},
			"env": func() (Config, error) {
				return Sources{Flag: given(nil), Env: given(map[string]string{in[0].Env(): c.value})}.Resolve(in)
			},
		} {
			got, err := got()
			if err != nil {
				t.Errorf("%s %s from %s: %v", c.name, c.value, from, err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Device{})); diff != "" {
				t.Errorf("%s %s from %s: %s", c.name, c.value, from, diff)
			}
		}
	}
	for _, s := range Settings() {
		if !seen[s.Name] {
			t.Errorf("%s is not tried", s.Name)
		}
		if s.Usage == "" || s.Switch && s.Default != "false" {
			t.Errorf("%s is not described well: %+v", s.Name, s)
		}
	}
}

func TestAFlagCountsBeforeTheEnvironment(t *testing.T) {
	env := given(map[string]string{"SHINGLE_DATA": "env", "SHINGLE_LISTEN": "env:1", "SHINGLE_MAX_WAIT": "", "SHINGLE_DIRTY_LIMIT": "nonsense"})
	c, err := Sources{Flag: given(map[string]string{"data": "flag", "dirty-limit": "9MiB"}), Env: env}.Resolve(Settings("data", "listen", "max-wait", "dirty-limit"))
	if err != nil {
		t.Fatal(err) // a variable that does not count is not judged
	}
	if c.Data != "flag" || c.Listen != "env:1" || c.MaxWait != 30*time.Second || c.DirtyLimit != 9<<20 {
		t.Errorf("%+v", c)
	}
	// A variable of a setting that is not in use does not matter.
	if _, err := (Sources{Flag: given(nil), Env: env}).Resolve(Settings("data")); err != nil {
		t.Error(err)
	}
}

func TestWrongValuesSayWhoAndWhat(t *testing.T) {
	for _, c := range []struct{ name, value, say string }{
		{"data", "", "give a folder"},
		{"listen", "7411", `"7411" is no address: give host:port`},
		{"listen", "localhost:http", "has no port of 0 to 65535"},
		{"listen", "a:65536", "has no port of 0 to 65535"},
		{"admin-listen", "x", "is no address"},
		{"listen", "unix:engine.sock", `"unix:engine.sock" names no socket: give unix:// and a path from the root`},
		{"listen", "unix://engine.sock", "names no socket"},
		{"listen", "unix:///run/", "names no socket"},
		{"listen", "unix:///" + strings.Repeat("x", 107), "the path of a socket has at most 107 bytes"},
		{"max-connections", "0", `"0" is no number: give a whole one from 1 on`},
		{"max-calls", "many", `"many" is no number`},
		{"device", "disk", `"disk" is no device: write file:PATH`},
		{"device", "file:d?size=1GiB&max-open=7&max-active=6", "max-open: 7 is more than the active limit 6"},
		{"device", "file:d\ndisk", `"disk" is no device`},
		{"device", "file:d file:d", "device d is named twice"},
		{"copies", "0", `"0" copies cannot be kept: give 1 or 2`},
		{"copies", "3", "give 1 or 2"},
		{"nodelalloc", "maybe", `"maybe" is neither true nor false`},
		{"compression", "s2", `"s2" is not built in: give none or zstd`},
		{"dirty-limit", "7MiB", "7MiB is too small: give at least 8MiB"},
		{"dirty-limit", "a lot", `"a lot" is no size`},
		{"read-limit", "7MiB", "7MiB is too small: give at least 8MiB"},
		{"metadata-limit", "1023KiB", "give at least 1MiB"},
		{"max-wait", "30", `"30" is no duration: give a number with ms, s, m or h`},
		{"max-wait", "0s", "0s is too short: give at least 1ms"},
		{"reclaim-threshold", "0", `"0" is no percentage: give a whole number from 1 to 100`},
		{"reclaim-pace", "101", `"101" is no percentage`},
		{"reclaim-pace", "50%", `"50%" is no percentage`},
		{"drain-timeout", "-1s", "-1s is too short"},
		{"otlp-endpoint", "127.0.0.1:4317", `"127.0.0.1:4317" is no collector: give http://host:port or https://host:port`},
		{"otlp-endpoint", "http://collector", "is no collector"},
		{"otlp-endpoint", "http://collector:4317/v1/traces", "is no collector"},
		{"log-level", "INFO", `"INFO" is no level: give debug, info, warn or error`},
	} {
		in := Settings(c.name)
		check := func(from string, err error) {
			e, ok := err.(*errdefs.Error)
			switch {
			case !ok:
				t.Errorf("%s=%q: %v", from, c.value, err)
			case e.Kind != errdefs.InvalidArgument || e.Field != c.name || !strings.HasPrefix(e.Msg, from+": ") || !strings.Contains(e.Msg, c.say):
				t.Errorf("%s=%q: %v of %q says %q, want %q", from, c.value, e.Kind, e.Field, e.Msg, c.say)
			}
		}
		_, err := Sources{Flag: given(map[string]string{c.name: c.value}), Env: given(nil)}.Resolve(in)
		check("--"+c.name, err)
		if c.value != "" {
			_, err = Sources{Flag: given(nil), Env: given(map[string]string{in[0].Env(): c.value})}.Resolve(in)
			check(in[0].Env(), err)
		}
	}
}

func TestUnknownSettingIsAFaultOfTheProgram(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Settings("data", "colour")
}

// The README lists every setting.
func TestReadmeListsEverySetting(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Settings() {
		for _, want := range []string{"`--" + s.Name + "`", "`" + s.Env() + "`"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("README.md does not mention %s", want)
			}
		}
		if s.Default != "" && !strings.Contains(string(b), s.Default) {
			t.Errorf("README.md does not mention the default %s of %s", s.Default, s.Name)
		}
	}
	for _, k := range keyNames() {
		if !strings.Contains(string(b), "`"+k+"`") {
			t.Errorf("README.md does not mention the key %s of a device", k)
		}
	}
}
