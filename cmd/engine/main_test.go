package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// invoke runs the program with an environment of its own.
func invoke(env map[string]string, args ...string) (code int, out, err string) {
	var o, e bytes.Buffer
	code = run(streams{&o, &e}, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, args)
	return code, o.String(), e.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUsage(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	for _, c := range []struct {
		args []string
		env  map[string]string
		say  string
	}{
		{[]string{"--colour"}, nil, "unknown flag: --colour"},
		{[]string{"status"}, nil, `"status" is no command; see ` + "`engine --help`"},
		{[]string{"serve", "now"}, nil, `"now": engine serve takes no arguments`},
		{[]string{"check", "--listen", "127.0.0.1:0"}, nil, "unknown flag: --listen"},
		{[]string{"check", "a", "b"}, nil, `"a b": engine check takes no arguments`},
		{[]string{"--nodelalloc=maybe"}, nil, "nodelalloc"},
		{[]string{"--max-wait", "soon"}, nil, `--max-wait: "soon" is no duration`},
		{nil, map[string]string{"SHINGLE_DIRTY_LIMIT": "1"}, "SHINGLE_DIRTY_LIMIT: 1 is too small: give at least 8MiB"},
		{[]string{"format"}, map[string]string{"SHINGLE_DEVICE": "disk"}, `SHINGLE_DEVICE: "disk" is no device`},
		{[]string{"check"}, map[string]string{"SHINGLE_DEVICE": "file:a file:a"}, `SHINGLE_DEVICE: device a is named twice`},
		{[]string{"format", "--device", "file:a", "--device", "disk"}, nil, `--device: "disk" is no device`},
		{[]string{"format", "--copies", "3"}, nil, `--copies: "3" copies cannot be kept: give 1 or 2`},
		{[]string{"check", "--copies", "2"}, nil, "unknown flag: --copies"},
	} {
		code, out, err := invoke(c.env, append(c.args, "--data", data)...)
		if code != exitUsage || out != "" || !strings.HasPrefix(err, "engine: ") || !strings.Contains(err, c.say) {
			t.Errorf("%q exits with %d and says %q, want %q", c.args, code, out+err, c.say)
		}
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a command line that makes no sense made a folder: %v", err)
	}
}

func TestHelpAndVersion(t *testing.T) {
	code, out, _ := invoke(nil, "--help")
	for _, want := range []string{
		"Without a command it serves", "--dirty-limit", "[SHINGLE_DIRTY_LIMIT]", `"127.0.0.1:7411"`, "check", "format", "version", "4  check found problems",
	} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("help exits with %d and has no %q:\n%s", code, want, out)
		}
	}
	if code, out, _ := invoke(nil, "version"); code != exitOK || !strings.HasPrefix(out, "shingle engine ") || !strings.Contains(out, "go1.") {
		t.Errorf("version exits with %d: %s", code, out)
	}
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		says string
	}{
		{nil, 0, ""},
		{errors.New("broken"), 1, "engine: broken\n"},
		{usagef("no %s", "sense"), 2, "engine: no sense\n"},
		{&problemsError{3}, 4, ""}, // check has printed them
	} {
		var out bytes.Buffer
		a := &app{streams: streams{&out, &out}}
		if code := a.explain(c.err); code != c.code || out.String() != c.says {
			t.Errorf("%v: exit status %d, %q", c.err, code, out.String())
		}
	}
}
