package lint

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

func TestImportRulesBite(t *testing.T) {
	in := func(p string) string { return module + "/" + p }
	for _, c := range []struct {
		dir, imported string
		ok            bool
	}{
		{"internal/engine", in("internal/store"), true},
		{"internal/engine", in("internal/zone/filedev"), true},
		{"internal/store", in("internal/engine"), false},
		{"internal/alloc", in("internal/delalloc"), false},
		{"internal/store", in("internal/alloc"), false},
		{"internal/scrub", in("internal/trim"), false},
		{"internal/alloc", in("internal/zone"), true},
		{"internal/zone", in("internal/alloc"), false},
		{"internal/zone", in("internal/slab"), false},
		{"internal/zone/filedev", in("internal/zone"), true},
		{"internal/zone/filedev", in("internal/zone/label"), true},
		{"internal/zone/filedev", in("internal/csum"), true},
		{"internal/zone/filedev", in("internal/compress"), false},
		{"internal/csum", in("internal/extent"), true},
		{"internal/extent", in("internal/errdefs"), false},
		{"internal/server", in("internal/engine"), true},
		{"internal/engine", in("internal/server"), false},
		{"internal/engine", in("internal/telemetry"), false},
		{"internal/engine", in("internal/lint"), false},
		{"cmd/engine", in("internal/server"), true},
		{"cmd/client", in("api/client"), true},
		{"cmd/client", in("internal/engine"), false},
		{"api/client", in("internal/wire"), true},
		{"api/client", in("internal/engine"), false},
		{"internal/engine", in("api/client"), false},
		{"internal/engine", in("api/shingle/v1"), false},
		{"internal/server", in("api/shingle/v1"), true},
		{"internal/store", "go.etcd.io/bbolt", true},
		{"internal/store", "go.etcd.io/bbolt/errors", true},
		{"internal/engine", "go.etcd.io/bbolt", false},
		{"cmd/engine", "go.etcd.io/bbolt", false},
		{"internal/server", "google.golang.org/grpc/codes", true},
		{"internal/engine", "google.golang.org/grpc/codes", false},
		{"internal/errdefs", "google.golang.org/grpc", false},
		{"internal/store", "google.golang.org/protobuf/encoding/protowire", true},
		{"internal/zone/filedev", "golang.org/x/sys/unix", true},
		{"internal/engine", "golang.org/x/sys/unix", false},
		{"internal/engine", "golang.org/x/sync/errgroup", true},
		{"internal/engine", "syscall", false},
		{"internal/alloc", "unsafe", false},
		{"internal/engine", "github.com/prometheus/client_golang/prometheus", false},
		{"internal/zonely", in("internal/extent"), true}, // checkPackage speaks up
	} {
		if got := checkImport(c.dir, c.imported); len(got) == 0 != c.ok {
			t.Errorf("%s imports %s: %q, allowed should be %v", c.dir, c.imported, got, c.ok)
		}
	}
}

func TestPackageRulesBite(t *testing.T) {
	for dir, ok := range map[string]bool{
		"internal/alloc": true, "internal/zone/filedev": true, "internal/lint": true, "cmd/engine": true, "e2e": true,
		"internal/util": false, "internal/zone/common": false, "api/helper": false, "internal/manager": false,
		"internal/novelty": false,
	} {
		if got := checkPackage(dir); len(got) == 0 != ok {
			t.Errorf("%s: %q, allowed should be %v", dir, got, ok)
		}
	}
}

func TestEveryPackageHasOneLayer(t *testing.T) {
	seen := map[string]bool{}
	for _, layer := range layers {
		for _, name := range layer {
			if seen[name] {
				t.Errorf("%s lies in two layers", name)
			}
			seen[name] = true
		}
	}
}

func TestClockRulesBite(t *testing.T) {
	for _, c := range []struct{ imports, body, want string }{
		{`"time"`, "time.Now()", "time.Now"},
		{`"time"`, "f := time.Now; f()", "time.Now"},
		{`clock "time"`, "clock.Since(x)", "time.Since"},
		{`"time"`, "time.Until(x)", "time.Until"},
		{`"time"`, "time.NewTimer(3 * time.Second)", ""},
		{`"math/rand/v2"`, "rand.IntN(4)", "rand.IntN"},
		{`"math/rand"`, "rand.Shuffle(1, nil)", "rand.Shuffle"},
		{`"math/rand/v2"`, "r := rand.New(rand.NewPCG(1, 2)); r.IntN(3)", ""},
		{`"math/rand/v2"`, "var r *rand.Rand; r.IntN(3)", ""},
		{`"crypto/rand"`, "rand.Read(nil)", ""},
		{`time "example.org/own"`, "time.Now()", ""},
	} {
		src := "package p\nimport " + c.imports + "\nfunc f() { " + c.body + " }\n"
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		got := checkClock(file)
		if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.body, got, c.want)
		}
	}
}
