package main

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shingle-store/shingle/internal/server"
	"github.com/shingle-store/shingle/internal/telemetry"
)

// described returns the help text of every metric that the engine has of its own, by name.
func described(t *testing.T) map[string]string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		telemetry.New("", "").Describe(descs)
		server.NewMetrics().Describe(descs)
		limitConnections(nil, 1, slog.New(slog.DiscardHandler)).Describe(descs)
	}()
	shape := regexp.MustCompile(`fqName: "([a-z0-9_]+)", help: "(.*?)", (?:unit|constLabels)`)
	out := map[string]string{"shingle_build_info": "Always 1; the labels say which program this is."}
	for d := range descs {
		m := shape.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("a description reads %s", d)
		}
		out[m[1]] = m[2]
	}
	return out
}

// docs/operations.md lists every metric, with the words that a scrape has, and no other.
func TestOperationsListsEveryMetric(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	left := described(t)
	for _, row := range regexp.MustCompile("(?m)^\\| `((?:shingle|grpc)_[a-z0-9_]+)[^`]*` \\| (.*) \\|$").FindAllStringSubmatch(string(page), -1) {
		help, ok := left[row[1]]
		if !ok {
			t.Errorf("docs/operations.md lists %s, which is no metric (or is listed twice)", row[1])
		} else if !strings.HasPrefix(row[2], help) {
			t.Errorf("of %s the page says %q, a scrape %q", row[1], row[2], help)
		}
		delete(left, row[1])
	}
	for name, help := range left {
		t.Errorf("docs/operations.md does not list %s: %s", name, help)
	}
	for _, name := range regexp.MustCompile(`\bshingle_[a-z0-9_]+`).FindAllString(string(page), -1) {
		if _, ok := described(t)[name]; !ok {
			t.Errorf("docs/operations.md speaks of %s, which is no metric", name)
		}
	}
}
