package lint

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// conditions finds, in the source of package engine, the reasons of Conditions with their severities:
// composite literals, and calls of report, which makes one from its first two arguments.
func conditions(t *testing.T) map[string][]string {
	constants := map[string]string{}
	var engine []source
	for _, s := range sources(t) {
		switch {
		case s.isTest():
		case s.dir == "internal/engine":
			engine = append(engine, s)
		case s.dir == "internal/errdefs":
			ast.Inspect(s.file, func(n ast.Node) bool {
				if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
					constants[v.Names[0].Name] = text(v.Values[0], nil)
				}
				return true
			})
		}
	}
	out := map[string][]string{}
	add := func(where token.Pos, reason, severity ast.Expr) {
		r := text(reason, constants)
		s, ok := severity.(*ast.Ident)
		if r == "" || !ok {
			t.Errorf("a condition at %d has a reason or a severity that cannot be read off the source", where)
			return
		}
		if word := strings.ToLower(s.Name); !slices.Contains(out[r], word) {
			out[r] = append(out[r], word)
		}
	}
	for _, s := range engine {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "report" {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "report" && len(n.Args) == 4 {
						add(n.Pos(), n.Args[0], n.Args[1])
					}
				case *ast.CompositeLit:
					if id, ok := n.Type.(*ast.Ident); ok && id.Name == "Condition" && len(n.Elts) > 0 {
						add(n.Pos(), field(n, "Reason"), field(n, "Severity"))
					}
				}
				return true
			})
		}
	}
	return out
}

func field(l *ast.CompositeLit, name string) ast.Expr {
	for _, e := range l.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok && id.Name == name {
				return kv.Value
			}
		}
	}
	return nil
}

// text reads a string off "X" or string(errdefs.X); it is "" of anything else.
func text(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.CallExpr:
		if len(e.Args) == 1 {
			if sel, ok := e.Args[0].(*ast.SelectorExpr); ok {
				return constants[sel.Sel.Name]
			}
		}
	}
	return ""
}

// docs/operations.md says of every condition what it means and what to do, and of no other.
func TestOperationsListsEveryCondition(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	left := conditions(t)
	if len(left) < 10 {
		t.Fatalf("only %d conditions found in package engine", len(left))
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([a-z, ]+) \\| (.+) \\| (.+) \\|$").FindAllStringSubmatch(string(page), -1) {
		have, ok := left[row[1]]
		if !ok {
			t.Errorf("docs/operations.md lists %s, which the engine does not report (or lists it twice)", row[1])
			continue
		}
		listed := strings.Split(row[2], ", ")
		slices.Sort(have)
		slices.Sort(listed)
		if !slices.Equal(have, listed) {
			t.Errorf("docs/operations.md says that %s is of severity %v; the engine reports it as %v", row[1], listed, have)
		}
		delete(left, row[1])
	}
	for reason, severity := range left {
		t.Errorf("docs/operations.md does not list the condition %s (%v)", reason, severity)
	}
}
