package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// source returns a real tree of source code: all of the Go toolchain's, or a part with -short.
func source(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	must(t, err)
	dir := filepath.Join(strings.TrimSpace(string(out)), "src")
	if testing.Short() {
		dir = filepath.Join(dir, "encoding")
	}
	if _, err := os.Stat(dir); err != nil {
		leaveOut(t, "no source code of the toolchain: %v", err)
	}
	return dir
}

// TestTreeSurvivesKill stores a real tree with the CLI, kills the engine, and gets the same tree
// back from the next one.
func TestTreeSurvivesKill(t *testing.T) {
	src := source(t)
	s := started(t)
	begin := time.Now()
	s.client("put", "-q", "-r", src, "tree")
	put := time.Since(begin)
	s.restart()
	dst := t.TempDir()
	begin = time.Now()
	s.client("get", "-q", "-r", "tree", filepath.Join(dst, "tree"))
	get := time.Since(begin)
	raw, files := sameTree(t, src, filepath.Join(dst, "tree"))

	u := s.df()
	if u.Logical != raw || u.Files != int64(files) {
		t.Errorf("df counts %d bytes in %d files, the tree has %d in %d", u.Logical, u.Files, raw, files)
	}
	ratio := float64(u.Stored+u.Inline) / float64(raw)
	figure(t, "%d files, %d bytes, are stored in %d bytes of extents and %d inline: %.3f; metadata has %d bytes; put %.1f s, get %.1f s",
		files, raw, u.Stored, u.Inline, ratio, u.Metadata, put.Seconds(), get.Seconds())
	if ratio >= 0.5 {
		t.Errorf("source code is stored in %.3f of its size", ratio)
	}
	s.stop()
	s.check()
}

// sameTree compares two folders, names and bytes, and returns the sum of sizes and how many files
// there are.
func sameTree(t *testing.T, want, got string) (raw int64, files int) {
	t.Helper()
	list := func(dir string) map[string]bool {
		names := map[string]bool{}
		must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.Type().IsRegular() {
				rel, err := filepath.Rel(dir, p)
				names[rel] = true
				return err
			}
			return nil
		}))
		return names
	}
	w, g := list(want), list(got)
	for name := range g {
		if !w[name] {
			t.Errorf("%s came out and never went in", name)
		}
	}
	for name := range w {
		if !g[name] {
			t.Errorf("%s is missing", name)
			continue
		}
		a, err := os.ReadFile(filepath.Join(want, name))
		must(t, err)
		b, err := os.ReadFile(filepath.Join(got, name))
		must(t, err)
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs", name)
		}
		raw += int64(len(a))
	}
	return raw, len(w)
}
