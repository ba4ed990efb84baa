package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// root returns the top of the repository.
func root(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

// source is a parsed Go file, whatever its build tags.
type source struct {
	dir, name string
	file      *ast.File
}

// sources parses every Go file of the repository.
func sources(t *testing.T) []source {
	top := root(t)
	var out []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(top, filepath.Dir(p))
		if err != nil {
			return err
		}
		out = append(out, source{filepath.ToSlash(dir), d.Name(), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("only %d files found under %s", len(out), top)
	}
	return out
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

func TestImportsRunOneWay(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if !seen[s.dir] {
			seen[s.dir] = true
			for _, msg := range checkPackage(s.dir) {
				t.Error(msg)
			}
		}
		if s.isTest() {
			continue // a test may stand on whatever helps it
		}
		for _, spec := range s.file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, msg := range checkImport(s.dir, imported) {
				t.Errorf("%s (%s)", msg, s.name)
			}
		}
	}
}

func TestClockAndRandomnessComeFromOutside(t *testing.T) {
	for _, s := range sources(t) {
		// The simulator runs where the clock is virtual: that is what it is for.
		if s.isTest() || !under(s.dir, "internal") || s.dir == "internal/sim" {
			continue
		}
		for _, msg := range checkClock(s.file) {
			t.Errorf("%s/%s: %s", s.dir, s.name, msg)
		}
	}
}

// TestPackagesAreDescribed wants a package comment in doc.go, or, of a command, in any file.
// Generated packages are described by what they were generated from.
func TestPackagesAreDescribed(t *testing.T) {
	described, command := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || ast.IsGenerated(s.file) {
			continue
		}
		command[s.dir] = s.file.Name.Name == "main"
		if s.file.Doc != nil && (s.name == "doc.go" || command[s.dir]) {
			described[s.dir] = true
		}
	}
	for dir, main := range command {
		if described[dir] {
			continue
		}
		if main {
			t.Errorf("%s: the command has no comment on package main", dir)
		} else {
			t.Errorf("%s: no package comment in doc.go", dir)
		}
	}
}
