package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
)

func TestCheckName(t *testing.T) {
	for _, c := range []struct {
		name string
		ok   bool
	}{
		{"a", true}, {"...", true}, {".a", true}, {"ä b", true}, {strings.Repeat("x", 255), true},
		{"", false}, {".", false}, {"..", false}, {"a/b", false}, {"a\x00", false}, {"\xff", false},
		{strings.Repeat("x", 256), false},
	} {
		err := CheckName(c.name)
		if (err == nil) != c.ok {
			t.Errorf("%q: %v", c.name, err)
		}
		var e *errdefs.Error
		if err != nil && (!errors.As(err, &e) || e.Kind != errdefs.InvalidArgument || e.Field != "name") {
			t.Errorf("%q: %v does not name the field", c.name, err)
		}
	}
	if _, err := SplitPath(strings.Repeat("a/", MaxDepth) + "a"); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("a path that is too deep: %v", err)
	}
}

func TestNameRules(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "a/b/c") })
	id := func(path string) uint64 {
		var n Node
		view(t, s, func(tx *Tx) (err error) { n, err = tx.Resolve(path); return err })
		return n.ID
	}
	a, b := id("a"), id("a/b")
	for _, c := range []struct {
		name   string
		fn     func(tx *Tx) error
		kind   errdefs.Kind
		reason errdefs.Reason
	}{
		{"missing", func(tx *Tx) error { _, err := tx.Resolve("a/x"); return err }, errdefs.NotFound, ""},
		{"through a file", func(tx *Tx) error { _, err := tx.Resolve("a/b/c/d"); return err }, errdefs.Precondition, errdefs.ReasonNotADirectory},
		{"bad path", func(tx *Tx) error { _, err := tx.Resolve("a//b"); return err }, errdefs.InvalidArgument, ""},
		{"name taken by a file", func(tx *Tx) error { return tx.Link(b, "c", Node{ID: 20, Kind: Directory}) }, errdefs.AlreadyExists, ""},
		{"name taken by a directory", func(tx *Tx) error { return tx.Link(a, "b", Node{ID: 20, Kind: File}) }, errdefs.AlreadyExists, ""},
		{"parent is a file", func(tx *Tx) error { return tx.Link(10, "x", Node{ID: 20, Kind: File}) }, errdefs.Precondition, errdefs.ReasonNotADirectory},
		{"parent is missing", func(tx *Tx) error { return tx.Link(77, "x", Node{ID: 20, Kind: File}) }, errdefs.NotFound, ""},
		{"below itself", func(tx *Tx) error {
			n, err := tx.Node(a)
			if err != nil {
				return err
			}
			return tx.Link(b, "x", n)
		}, errdefs.InvalidArgument, ""},
		{"parents through a file", func(tx *Tx) error {
			_, _, err := tx.MakeParents("a/b/c/d/e", func() (Node, error) { return Node{ID: 30}, nil })
			return err
		}, errdefs.Precondition, errdefs.ReasonNotADirectory},
		{"parents of the root", func(tx *Tx) error { _, _, err := tx.MakeParents("", nil); return err }, errdefs.InvalidArgument, ""},
		{"delete with a name", func(tx *Tx) error { return tx.DeleteNode(10) }, errdefs.Precondition, errdefs.ReasonPrecondition},
		{"delete the root", func(tx *Tx) error { return tx.DeleteNode(RootID) }, errdefs.Precondition, errdefs.ReasonPrecondition},
		{"list a file", func(tx *Tx) error { _, err := tx.List("a/b/c", "", false, 0, nil); return err }, errdefs.Precondition, errdefs.ReasonNotADirectory},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := s.Update(func(tx *Tx) error {
				err := c.fn(tx)
				if tx.Mutated() {
					return errors.New("changed something before it refused")
				}
				return err
			})
			wantKind(t, err, c.kind, c.reason)
		})
	}
	err := s.Update(func(tx *Tx) error {
		n, err := tx.Node(b)
		if err != nil {
			return err
		}
		if err := tx.Unlink(n); err != nil {
			return err
		}
		return tx.DeleteNode(b)
	})
	wantKind(t, err, errdefs.Precondition, errdefs.ReasonDirNotEmpty)
	wantSound(t, s)
}

// TestRenameOfADirectoryIsOneStep moves a directory with all below it.
func TestRenameOfADirectoryIsOneStep(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "a/b/c") })
	update(t, s, func(tx *Tx) error {
		n, err := tx.Resolve("a/b")
		if err != nil {
			return err
		}
		if err := tx.Unlink(n); err != nil {
			return err
		}
		return tx.Link(RootID, "z", n)
	})
	view(t, s, func(tx *Tx) error {
		p, err := tx.Path(10)
		if p != "z/c" {
			t.Errorf("path is %q", p)
		}
		return err
	})
	wantSound(t, s)
}

// TestListAgainstSortedPaths holds List and Children against a sorted list of key forms.
func TestListAgainstSortedPaths(t *testing.T) {
	dir, run := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		s := newStoreAt(t, filepath.Join(dir, fmt.Sprint("meta", run)), testOptions)
		defer s.Close()
		comp := rapid.SampledFrom([]string{"a", "a-", "a0", "a!", "b", "aa", "~", "\u00e4"})
		path := rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(comp, 1, 4).Draw(t, "path"), "/")
		})
		model := map[string]bool{} // key forms
		update(t, s, func(tx *Tx) error {
			for i, p := range rapid.SliceOfN(path, 0, 25).Draw(t, "paths") {
				err := addFile(tx, uint64(100+i), p)
				if errdefs.Is(err, errdefs.AlreadyExists) || errdefs.ReasonOf(err) == errdefs.ReasonNotADirectory {
					continue
				}
				if err != nil {
					return err
				}
				model[p] = true
				for j := range p {
					if p[j] == '/' {
						model[p[:j+1]] = true
					}
				}
			}
			return nil
		})
		wantSound(t, s)
		prefix := ""
		if rapid.Bool().Draw(t, "below") {
			prefix = path.Draw(t, "prefix")
			if !model[prefix+"/"] {
				prefix = ""
			}
		}
		base := ""
		if prefix != "" {
			base = prefix + "/"
		}
		recursive := rapid.Bool().Draw(t, "recursive")
		after := ""
		if rapid.Bool().Draw(t, "start after") {
			after = path.Draw(t, "after") + rapid.SampledFrom([]string{"", "/"}).Draw(t, "slash")
		}
		var want []string
		for k := range model {
			rest, ok := strings.CutPrefix(k, base)
			if ok && rest != "" && k > after && (recursive || !strings.Contains(strings.TrimSuffix(rest, "/"), "/")) {
				want = append(want, k)
			}
		}
		slices.Sort(want)
		var got []string
		limit := rapid.IntRange(0, 4).Draw(t, "limit")
		view(t, s, func(tx *Tx) error {
			for pages := 0; ; pages++ {
				n := 0
				next, err := tx.List(prefix, after, recursive, limit, func(p string, nd Node) error {
					n++
					got = append(got, KeyForm(p, nd.Kind == Directory))
					if full, err := tx.Path(nd.ID); err != nil || full != p {
						return fmt.Errorf("node %d has path %q (%v), listed as %q", nd.ID, full, err, p)
					}
					if r, err := tx.Resolve(p); err != nil || r.ID != nd.ID {
						return fmt.Errorf("%q does not resolve to what was listed: %v", p, err)
					}
					return nil
				})
				if err != nil || next == "" {
					return err
				}
				if limit == 0 || n != limit {
					return fmt.Errorf("a page of %d entries with limit %d says there is more", n, limit)
				}
				after = next
			}
		})
		if !slices.Equal(got, want) {
			t.Fatalf("listed %q, want %q", got, want)
		}
	})
}
