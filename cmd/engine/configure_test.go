package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	good := write("good.yaml", "# ours\nmax-wait: 7s\ndirty-limit: 1GiB\n")
	unknown := write("unknown.yaml", "max-wait: 7s\ncolour: red\n")
	wrong := write("wrong.yaml", "max-wait: 7s\n\ndirty-limit: 1\n")
	for _, c := range []struct {
		args []string
		env  map[string]string
		code int
		say  string // in what it prints
	}{
		{[]string{"config", "print"}, nil, exitOK, "max-wait: 30s # default\n"},
		{[]string{"config", "print", "--config", good}, nil, exitOK, "max-wait: 7s # " + good + ":2\n"},
		{[]string{"config", "print"}, map[string]string{"SHINGLE_CONFIG": good}, exitOK, "dirty-limit: 1GiB # " + good + ":3\n"},
		{[]string{"config", "print", "--config", good}, map[string]string{"SHINGLE_CONFIG": unknown, "SHINGLE_MAX_WAIT": "8s"}, exitOK, "max-wait: 8s # SHINGLE_MAX_WAIT\n"},
		{[]string{"config", "print", "--config", good, "--max-wait", "9s"}, map[string]string{"SHINGLE_MAX_WAIT": "8s"}, exitOK, "max-wait: 9s # --max-wait\n"},
		{[]string{"config", "print", "--config", wrong}, nil, exitUsage, wrong + `:3: dirty-limit: 1 is too small: give at least 8MiB`},
		{[]string{"config", "check", "--config", good}, nil, exitOK, "the settings can be used\n"},
		{[]string{"config", "check"}, nil, exitOK, "the settings can be used\n"},
		{[]string{"config", "check", "--config", unknown}, nil, exitUsage, unknown + `:2: "colour" is no setting`},
		{[]string{"config", "check", "--config", wrong, "--dirty-limit", "9MiB"}, nil, exitUsage, wrong + ":3: dirty-limit: 1 is too small"},
		{[]string{"config", "check", "--max-wait", "soon"}, nil, exitUsage, `--max-wait: "soon" is no duration`},
		{[]string{"config", "check", "--config", filepath.Join(dir, "none")}, nil, exitUsage, "--config: open " + filepath.Join(dir, "none") + ": no such file"},
		{[]string{"config", "check"}, map[string]string{"SHINGLE_CONFIG": dir}, exitUsage, "SHINGLE_CONFIG: read " + dir + ": is a directory"},
		{[]string{"config", "stir"}, nil, exitUsage, `"stir" is no command; see ` + "`engine config --help`"},
		// Every command reads the file, and refuses what is unknown in it, whether it makes use of it or not.
		{[]string{"check", "--config", unknown}, nil, exitUsage, unknown + `:2: "colour" is no setting`},
		{[]string{"serve", "--config", wrong}, nil, exitUsage, wrong + ":3: dirty-limit"},
		{[]string{"check", "--config", wrong, "--data", filepath.Join(dir, "data")}, nil, exitError, "there is no data folder"},
	} {
		code, out, err := invoke(c.env, c.args...)
		if code != c.code || !strings.Contains(out+err, c.say) {
			t.Errorf("%q with %v exits with %d and says %q, want %d and %q", c.args, c.env, code, out+err, c.code, c.say)
		}
	}
}

// What `config print` prints is what the engine does with the same file.
func TestConfigPrintIsAFile(t *testing.T) {
	_, first, _ := invoke(map[string]string{"SHINGLE_DATA": "/srv/a b", "SHINGLE_NODELALLOC": "true"}, "config", "print")
	path := filepath.Join(t.TempDir(), "printed.yaml")
	must(t, os.WriteFile(path, []byte(first), 0o600))
	code, again, err := invoke(nil, "config", "print", "--config", path)
	if code != exitOK {
		t.Fatalf("exit status %d: %s", code, err)
	}
	values := func(s string) (out []string) {
		for line := range strings.Lines(s) {
			value, _, _ := strings.Cut(line, " # ")
			out = append(out, strings.TrimSpace(value))
		}
		return out
	}
	if a, b := strings.Join(values(first), "\n"), strings.Join(values(again), "\n"); a != b || !strings.Contains(a, "data: /srv/a b") {
		t.Errorf("printed\n%s\nand printed again from that\n%s", a, b)
	}
}
