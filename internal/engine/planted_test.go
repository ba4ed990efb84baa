package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var planted = flag.Bool("planted", false, "build the package once for each bug in testdata/planted, and see the tests find it")

// plantedBug is a bug kept as a change of one file, and the tests that must find it.
type plantedBug struct {
	name, file, tests string
	old, with         string
}

// readPlanted reads a file of testdata/planted: comments, "file PATH", "found by REGEXP", then
// the text to replace and its replacement.
func readPlanted(t *testing.T, path string) plantedBug {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b := plantedBug{name: strings.TrimSuffix(filepath.Base(path), ".txt")}
	head, change, ok := strings.Cut(string(src), "--- old\n")
	if ok {
		b.old, b.with, ok = strings.Cut(change, "--- new\n")
	}
	for line := range strings.Lines(head) {
		line = strings.TrimSpace(line)
		if v, is := strings.CutPrefix(line, "file "); is {
			b.file = v
		} else if v, is := strings.CutPrefix(line, "found by "); is {
			b.tests = v
		}
	}
	if !ok || b.file == "" || b.tests == "" {
		t.Fatalf("%s is no planted bug", path)
	}
	return b
}

// apply returns the path of the changed file and its text with the bug.
func (b plantedBug) apply(t *testing.T) (path string, text []byte) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../..", b.file))
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(src, []byte(b.old)); n != 1 {
		t.Fatalf("the text to change stands %d times in %s: bring the planted bug up to date", n, b.file)
	}
	return path, bytes.Replace(src, []byte(b.old), []byte(b.with), 1)
}

// TestPlantedBugs shows that the tests can fail: each bug of testdata/planted is found by the
// tests that it names, within a minute. Without -planted it only checks that each still applies.
func TestPlantedBugs(t *testing.T) {
	files, err := filepath.Glob("testdata/planted/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d planted bugs, %v", len(files), err)
	}
	for _, path := range files {
		b := readPlanted(t, path)
		t.Run(b.name, func(t *testing.T) {
			file, text := b.apply(t)
			if *planted {
				findPlanted(t, b, file, text)
			}
		})
	}
}

func findPlanted(t *testing.T, b plantedBug, file string, text []byte) {
	dir := t.TempDir()
	changed := filepath.Join(dir, "changed.go")
	overlay := filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err == nil {
		err = os.WriteFile(changed, text, 0o600)
	}
	if err == nil {
		err = os.WriteFile(overlay, list, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "planted.test")
	if out, err := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("the bug does not build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// The walks go on until they find something; any other test that does not end has found a hang.
	walks := strings.Contains(b.tests, "Walk")
	limit := "25s"
	if walks {
		limit = "58s"
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, binary, "-test.run", fmt.Sprintf("^(%s)$", b.tests), "-test.failfast", "-test.timeout", limit)
	out, err := cmd.CombinedOutput()
	if err == nil || walks && bytes.Contains(out, []byte("test timed out")) {
		t.Fatalf("%s passes with the bug:\n%s", b.tests, out)
	}
	t.Logf("found in %.1f s", time.Since(start).Seconds())
}
