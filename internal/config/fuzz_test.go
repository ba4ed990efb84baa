package config

import (
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// FuzzResolve gives every setting any text: it is taken, or refused in a sentence that names the setting.
// What is taken is taken from the environment in the same way.
func FuzzResolve(f *testing.F) {
	for _, text := range []string{
		"", "true", "0", "1GiB", "8MiB", "-1", "9223372036854775807", "1e400", "30s", "-5m", "99999999h", "127.0.0.1:7411",
		"[::1]:0", ":", "host:65536", "none", "zstd", "debug", "file:d?size=1GiB&zone-size=64MiB", "file:?", "\x00", "\xff\xfe",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range Settings() {
			only := func(name string) func(string) (string, bool) {
				return func(n string) (string, bool) { return text, n == name }
			}
			nothing := func(string) (string, bool) { return "", false }
			c, err := Resolve(Settings(s.Name), only(s.Name), nothing)
			if err != nil {
				if e, ok := err.(*errdefs.Error); !ok || e.Kind != errdefs.InvalidArgument || e.Field != s.Name || e.Msg == "" {
					t.Fatalf("--%s=%q: %v", s.Name, text, err)
				}
				continue
			}
			if c.DirtyLimit < 0 || c.ReadLimit < 0 || c.MetadataLimit < 0 || c.MaxWait < 0 || c.DrainTimeout < 0 {
				t.Fatalf("--%s=%q: %+v", s.Name, text, c)
			}
			if again, err := Resolve(Settings(s.Name), nothing, only(s.Env())); text != "" && (err != nil || again.DirtyLimit != c.DirtyLimit ||
				again.MaxWait != c.MaxWait || len(again.Devices) != len(c.Devices) || again.Copies != c.Copies || again.Listen != c.Listen) {
				t.Fatalf("%s=%q: %+v, %v; the flag gives %+v", s.Env(), text, again, err, c)
			}
		}
	})
}
