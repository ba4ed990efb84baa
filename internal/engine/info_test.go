package engine

import "testing"

func TestTotalsCountFilesAndExtents(t *testing.T) {
	b := newBench(t, smallZNS, Options{}) // no compression
	e := b.open()
	put(t, e, "inline", noise(1, 1000))
	put(t, e, "dir/two extents", noise(2, 1<<20)) // a zone holds 768 KiB
	writeAt(t, e, "sparse", 1<<20, noise(3, 4096))
	syncAll(t, e)
	want := Usage{Files: 3, Logical: 1000 + 1<<20 + (1<<20 + 4096), Stored: 1<<20 + 4096, Inline: 1000, Extents: 3}
	for range 2 {
		u, err := e.Totals()
		if err != nil {
			t.Fatal(err)
		}
		got := Usage{Files: u.Files, Logical: u.Logical, Stored: u.Stored, Inline: u.Inline, Extents: u.Extents}
		if got != want {
			t.Fatalf("totals %+v, want %+v", got, want)
		}
		if u.Used < u.Stored || u.Total == 0 {
			t.Fatalf("used %d of %d with %d stored", u.Used, u.Total, u.Stored)
		}
		e = b.reopen()
	}
}
