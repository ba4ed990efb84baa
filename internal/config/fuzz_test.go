package config

import (
	"strings"
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
			c, err := Sources{Flag: only(s.Name), Env: nothing}.Resolve(Settings(s.Name))
			if err != nil {
				if e, ok := err.(*errdefs.Error); !ok || e.Kind != errdefs.InvalidArgument || e.Field != s.Name || e.Msg == "" {
					t.Fatalf("--%s=%q: %v", s.Name, text, err)
				}
				continue
			}
			if c.DirtyLimit < 0 || c.ReadLimit < 0 || c.ScrubMemory < 0 || c.MetadataLimit < 0 || c.MaxWait < 0 || c.DrainTimeout < 0 {
				t.Fatalf("--%s=%q: %+v", s.Name, text, c)
			}
			again, err := Sources{Flag: nothing, Env: only(s.Env())}.Resolve(Settings(s.Name))
			if text != "" && (err != nil || again.DirtyLimit != c.DirtyLimit ||
				again.MaxWait != c.MaxWait || len(again.Devices) != len(c.Devices) || again.Copies != c.Copies || again.Listen != c.Listen) {
				t.Fatalf("%s=%q: %+v, %v; the flag gives %+v", s.Env(), text, again, err, c)
			}
		}
	})
}

// FuzzParseFile takes any bytes as a configuration file: they are one, or refused in a sentence that
// begins with its name. What Print makes of one is one, and says the same.
func FuzzParseFile(f *testing.F) {
	for _, text := range []string{
		"", "# nothing\n", "listen: 127.0.0.1:7411\n", "listen: 1\nlisten: 2\n", "colour: red\n", "data: [a]\n", "data:\n", "- a\n", "a: b: c\n",
		"data: &x a\nlisten: *x\n", "<<: {data: a}\n", "---\ndata: a\n---\ndata: b\n", "data: |\n  two\n  lines\n", "data: \"a # b\"\n",
		"nodelalloc: yes\n", "data: '\t'\n", "data: !!binary aGVsbG8=\n", "\xff\xfe", "{data: a, max-wait: 1s}", "data: \"\\u0085\"\n",
	} {
		f.Add([]byte(text))
	}
	nothing := func(string) (string, bool) { return "", false }
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := ParseFile("engine.yaml", content)
		if err != nil {
			if e, ok := err.(*errdefs.Error); !ok || e.Kind != errdefs.InvalidArgument || !strings.HasPrefix(e.Msg, "engine.yaml:") {
				t.Fatalf("%q: %v", content, err)
			}
			return
		}
		_ = file.Check()
		printed := Sources{Flag: nothing, Env: nothing, File: file}.Print(Settings())
		again, err := ParseFile("printed.yaml", []byte(printed))
		if err != nil {
			t.Fatalf("%q is printed as a file that is none: %v\n%s", content, err, printed)
		}
		for name, v := range file.values {
			if got := again.values[name].text; got != v.text {
				t.Fatalf("%s is %q, printed and read back %q", name, v.text, got)
			}
		}
	})
}
