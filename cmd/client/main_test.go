package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/api/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result is what a run left behind.
type result struct {
	code     int
	out, err string
}

// cli runs the program against addr.
func cli(t testing.TB, addr, stdin string, args ...string) result {
	t.Helper()
	return cliContext(t, context.Background(), addr, stdin, args...)
}

func cliContext(t testing.TB, ctx context.Context, addr, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	env := func(k string) string {
		if k == addrEnv {
			return addr
		}
		return ""
	}
	code := run(ctx, streams{in: strings.NewReader(stdin), out: &out, err: &errs}, env, args)
	return result{code, out.String(), errs.String()}
}

// ok fails the test unless the run went well, and returns its output.
func (r result) ok(t testing.TB) string {
	t.Helper()
	if r.code != exitOK || r.err != "" {
		t.Fatalf("exit %d, %q", r.code, r.err)
	}
	return r.out
}

// failed fails the test unless the run ended with code and a message that matches.
func (r result) failed(t testing.TB, code int, message string) {
	t.Helper()
	if r.code != code || !regexp.MustCompile(message).MatchString(r.err) {
		t.Fatalf("exit %d, want %d; said %q, want %q", r.code, code, r.err, message)
	}
}

// unmarshal fails the test unless out is one JSON document.
func unmarshal(t testing.TB, out string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folder makes files and, for names that end in a slash, folders, and returns where.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(p, 0o777))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(p), 0o777))
		must(t, os.WriteFile(p, []byte(content), 0o666))
	}
	return dir
}

// stored fails the test unless the store holds exactly these files and directories.
func stored(t testing.TB, s *clienttest.Server, want map[string]string) {
	t.Helper()
	var list struct{ Files []fileJSON }
	unmarshal(t, cli(t, s.Addr, "", "ls", "-r", "--output", "json").ok(t), &list)
	got := map[string]bool{}
	for _, f := range list.Files {
		name := f.Name
		if f.Kind == "directory" {
			name += "/"
		} else if data, _, _ := s.Data(name); string(data) != want[name] {
			t.Errorf("%s holds %q, want %q", name, data, want[name])
		}
		got[name] = true
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there", name)
		}
	}
	for name := range want {
		if !got[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// found fails the test unless the folder holds exactly these files and folders.
func found(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	got := map[string]bool{}
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if d.IsDir() {
			rel += "/"
		} else if data, err := os.ReadFile(p); err != nil || string(data) != want[rel] {
			t.Errorf("%s holds %q (%v), want %q", rel, data, err, want[rel])
		}
		got[rel] = true
		if _, ok := want[rel]; !ok {
			t.Errorf("%s is there", rel)
		}
		return nil
	}))
	for name := range want {
		if !got[name] {
			t.Errorf("%s is missing", name)
		}
	}
}
