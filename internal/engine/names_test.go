package engine

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// FuzzCheckName holds the rule of names against itself said in another way.
func FuzzCheckName(f *testing.F) {
	for _, name := range []string{
		"", "a", "a/b", "/a", "a/", "a//b", ".", "..", "a/./b", "a/..", "...", ".a", "\x00", "a\x00b", "\xff", "\u00e9",
		strings.Repeat("x", MaxComponentBytes), strings.Repeat("x", MaxComponentBytes+1), strings.Repeat("x/", MaxNameBytes/2) + "x",
		strings.Repeat("x/", MaxNameBytes/2),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		want := utf8.ValidString(name) && len(name) <= MaxNameBytes && !strings.Contains(name, "\x00")
		for _, c := range strings.Split(name, "/") {
			want = want && c != "" && c != "." && c != ".." && len(c) <= MaxComponentBytes
		}
		err := CheckName(name)
		if (err == nil) != want {
			t.Fatalf("%q: %v", name, err)
		}
		if e, ok := err.(*errdefs.Error); err != nil && (!ok || e.Kind != errdefs.InvalidArgument || e.Field != "name" || e.Msg == "") {
			t.Fatalf("%q: %v", name, err)
		}
	})
}
