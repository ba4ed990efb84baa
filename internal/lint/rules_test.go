package lint

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/shingle-store/shingle"

// layers are the packages under internal from the lowest up. A package may import those of the
// layers below its own, and its own parts (zone/filedev imports zone); never one beside it.
var layers = [][]string{
	{"extent", "errdefs"},
	{"csum", "slab"},
	{"zone", "compress", "wire"},
	{"alloc", "delalloc", "ioqueue", "store", "trim", "scrub", "reclaim"},
	{"engine"},
	{"config", "telemetry", "web", "sim"},
	{"server"},
}

// narrow are packages that may import less than their layer would let them.
var narrow = map[string][]string{
	"internal/zone": {"internal/extent", "internal/csum", "internal/errdefs"},
	"api/client":    {"internal/extent", "internal/csum", "internal/errdefs", "internal/wire"},
	"api/shingle":   {},
	"cmd/client":    {}, // the CLI stands on the public client
}

// onlyIn are imports that belong to a few places, by prefix.
var onlyIn = []struct {
	imported string
	in       []string
}{
	{"go.etcd.io/bbolt", []string{"internal/store"}},
	{"google.golang.org/grpc", []string{"internal/server", "internal/wire", "api", "cmd", "e2e"}},
	{"google.golang.org/genproto", []string{"internal/server", "internal/wire", "api", "cmd", "e2e"}},
	{"github.com/grpc-ecosystem", []string{"internal/server", "cmd"}},
	{module + "/api/shingle", []string{"internal/server", "internal/wire", "api", "cmd", "e2e"}},
	{module + "/api/client", []string{"api/client", "cmd/client", "e2e"}},
	// store locks and preallocates its own file; that is no device.
	{"golang.org/x/sys", []string{"internal/zone", "internal/ioqueue", "internal/slab", "internal/store", "cmd"}},
	{"syscall", []string{"internal/zone", "internal/ioqueue", "internal/slab", "internal/store", "cmd", "e2e"}},
	{"unsafe", []string{"internal/zone", "internal/ioqueue", "internal/slab", "api/shingle"}},
	{"github.com/prometheus", []string{"internal/telemetry", "internal/server", "cmd"}},
	{"go.opentelemetry.io", []string{"internal/telemetry", "internal/server", "cmd"}},
	{"github.com/spf13", []string{"cmd"}},
}

// vague are names of packages that say nothing about what is in them.
var vague = []string{"util", "utils", "common", "helper", "helpers", "manager", "misc"}

// under reports whether the slash-separated path p is dir or below it.
func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func underAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return under(p, d) })
}

// family is the part of a package's folder that layers name: "internal/zone/filedev" is of
// "zone"; "" for what does not lie under internal.
func family(dir string) string {
	rest, ok := strings.CutPrefix(dir, "internal/")
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

func layerOf(name string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, name) })
}

// checkPackage judges a package by its folder alone.
func checkPackage(dir string) []string {
	var found []string
	for part := range strings.SplitSeq(dir, "/") {
		if slices.Contains(vague, part) {
			found = append(found, fmt.Sprintf("%s: %q says nothing: name the package after what it holds", dir, part))
		}
	}
	if f := family(dir); f != "" && f != "lint" && layerOf(f) < 0 {
		found = append(found, fmt.Sprintf("%s: internal/%s has no layer yet: give it one in rules_test.go", dir, f))
	}
	return found
}

// checkImport judges one import of a package that is not a test; both as the folder or the
// import path it has.
func checkImport(dir, imported string) []string {
	var found []string
	say := func(format string, a ...any) {
		found = append(found, fmt.Sprintf("%s imports %s: ", dir, imported)+fmt.Sprintf(format, a...))
	}
	for _, o := range onlyIn {
		if under(imported, o.imported) && !underAny(dir, o.in) {
			say("that belongs to %s", strings.Join(o.in, ", "))
		}
	}
	target, ours := strings.CutPrefix(imported, module+"/")
	if !ours || !under(target, "internal") {
		return found
	}
	from, to := family(dir), family(target)
	if from == to && from != "" {
		return found
	}
	for root, allowed := range narrow {
		if under(dir, root) && !underAny(target, allowed) {
			say("%s may import %v only", root, allowed)
		}
	}
	switch {
	case to == "lint":
		say("nothing imports the lint")
	case from != "" && layerOf(from) >= 0 && layerOf(to) >= layerOf(from):
		say("imports go down the layers, and %s does not lie below %s", to, from)
	}
	return found
}

// The parts of math/rand that hold no hidden state.
var seeded = []string{"Rand", "Source", "Source64", "PCG", "ChaCha8", "Zipf"}

// checkClock finds uses of the wall clock and of global randomness in a file under internal
// that is not a test. Timers are let through: they wait, they do not say what time it is.
func checkClock(file *ast.File) []string {
	names := map[string]string{}
	for _, spec := range file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(p)
		if p == "math/rand/v2" {
			name = "rand"
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		name := sel.Sel.Name
		switch names[pkg.Name] {
		case "time":
			if name == "Now" || name == "Since" || name == "Until" {
				found = append(found, fmt.Sprintf("time.%s: the clock comes in from outside", name))
			}
		case "math/rand", "math/rand/v2":
			if !strings.HasPrefix(name, "New") && !slices.Contains(seeded, name) {
				found = append(found, fmt.Sprintf("rand.%s: randomness comes in from outside", name))
			}
		}
		return true
	})
	return found
}
