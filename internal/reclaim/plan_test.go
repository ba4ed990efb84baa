package reclaim

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

// TestReadsCoverEachPieceOnce holds Reads against what is asked of it.
func TestReadsCoverEachPieceOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pieces []extent.Range
		at := int64(0)
		for range rapid.IntRange(0, 30).Draw(t, "pieces") {
			at += rapid.Int64Range(0, 10).Draw(t, "hole")
			n := rapid.Int64Range(1, 20).Draw(t, "length")
			pieces = append(pieces, extent.Range{Off: at, End: at + n})
			at += n
		}
		gap, most := rapid.Int64Range(0, 8).Draw(t, "gap"), rapid.Int64Range(1, 60).Draw(t, "most")
		next := 0
		var last *Read
		for _, r := range Reads(pieces, gap, most) {
			if r.First != next || r.Last <= r.First || r.Off != pieces[r.First].Off || r.End != pieces[r.Last-1].End {
				t.Fatalf("%+v of %v", r, pieces)
			}
			if r.Last > r.First+1 && r.End-r.Off > most {
				t.Fatalf("%+v is longer than %d", r, most)
			}
			for i := r.First + 1; i < r.Last; i++ {
				if pieces[i].Off-pieces[i-1].End > gap {
					t.Fatalf("%+v reads across a gap of more than %d in %v", r, gap, pieces)
				}
			}
			if last != nil && r.Off-last.End <= gap && pieces[r.First].End-last.Off <= most {
				t.Fatalf("%+v could have been read with %+v", r, *last)
			}
			next, last = r.Last, &r
		}
		if next != len(pieces) {
			t.Fatalf("%d of %d pieces are read", next, len(pieces))
		}
	})
}

// TestFitNeverOverfills holds Fit against what is asked of it.
func TestFitNeverOverfills(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pieces []Piece
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			var p Piece
			if rapid.Bool().Draw(t, "raw") {
				p.Blocks = rapid.Int64Range(1, 40).Draw(t, "blocks")
			} else {
				for range rapid.IntRange(1, 6).Draw(t, "frames") {
					p.Units = append(p.Units, rapid.Int64Range(1, 9).Draw(t, "frame"))
					p.Blocks += p.Units[len(p.Units)-1]
				}
			}
			pieces = append(pieces, p)
		}
		room := rapid.Int64Range(0, 120).Draw(t, "room")
		take, left := Fit(pieces, room)
		taken := map[int]Take{}
		sum, before := int64(0), -1
		for _, k := range take {
			if k.Piece <= before || k.Blocks <= 0 {
				t.Fatalf("%+v after piece %d", k, before)
			}
			before = k.Piece
			p := pieces[k.Piece]
			n := k.Blocks
			if p.Units != nil {
				for _, u := range p.Units[:k.Units] {
					n -= u
				}
				if n != 0 {
					t.Fatalf("%+v splits a frame of %v", k, p.Units)
				}
			} else if n > p.Blocks || k.Units != 0 {
				t.Fatalf("%+v of %+v", k, p)
			}
			sum += k.Blocks
			taken[k.Piece] = k
		}
		if sum+left != room || left < 0 {
			t.Fatalf("%d taken and %d left of %d", sum, left, room)
		}
		for i, p := range pieces {
			k := taken[i]
			switch {
			case p.Units == nil && k.Blocks < p.Blocks && left > 0:
				t.Fatalf("%d are left, and piece %d has blocks", left, i)
			case p.Units != nil && k.Units < len(p.Units) && p.Units[k.Units] <= left:
				t.Fatalf("%d are left, and piece %d has a frame of %d", left, i, p.Units[k.Units])
			}
		}
	})
}
