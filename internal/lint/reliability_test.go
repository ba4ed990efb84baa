package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReliabilityNamesTests holds docs/reliability.md to its word: each test that it names exists.
func TestReliabilityNamesTests(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	if len(names) < 30 {
		t.Fatalf("the page names %d tests only", len(names))
	}
	sources := map[string]string{}
	for _, n := range names {
		dir := filepath.Join(root, "internal", n[1])
		if n[1] == "e2e" {
			dir = filepath.Join(root, "e2e")
		}
		if _, read := sources[dir]; !read {
			sources[dir] = testSources(t, dir)
		}
		if !strings.Contains(sources[dir], "\nfunc "+n[2]+"(") {
			t.Errorf("docs/reliability.md names %s.%s, which does not exist", n[1], n[2])
		}
	}
}

func testSources(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(src)
	}
	return all.String()
}
