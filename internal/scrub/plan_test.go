package scrub

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

// TestProgressAgainstModel scrubs stores of which parts move or die at any moment: what is done never
// falls, never passes the total, is it at the end, and what was scrubbed and skipped adds up to it.
func TestProgressAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.IntRange(1, 60).Draw(t, "blocks")
		span := rapid.Int64Range(1, 20).Draw(t, "span")
		from := rapid.Int64Range(0, 50).Draw(t, "from")
		live := make([]bool, blocks)
		p := Plan{MetadataTotal: rapid.Int64Range(0, 30).Draw(t, "metadata"), From: from, To: from + int64(blocks), Span: span}
		p.Marks = make([]int64, (int64(blocks)+span-1)/span)
		for i := range live {
			if live[i] = rapid.Bool().Draw(t, "live"); live[i] {
				p.Marks[int64(i)/span]++
			}
		}
		g, last, scrubbed := Progress{}, int64(0), int64(0)
		look := func() {
			if g.Done < last || g.Done > p.Total() || g.Skipped > g.Done {
				t.Fatalf("%+v after %d of %d", g, last, p.Total())
			}
			last = g.Done
		}
		for range rapid.IntRange(0, 5).Draw(t, "scans") {
			p.records(&g, rapid.Int64Range(0, 20).Draw(t, "bytes"))
			look()
		}
		p.endMetadata(&g)
		look()
		if g.Done != p.MetadataTotal {
			t.Fatalf("the metadata is done: %+v", g)
		}
		for g.Phase == Data {
			if at := rapid.IntRange(-20, blocks-1).Draw(t, "dies"); at >= 0 {
				live[at] = false
			}
			_, end := p.mark(g.At)
			next := min(end, g.At+rapid.Int64Range(1, 15).Draw(t, "step"))
			n := int64(0)
			for _, l := range live[g.At-from : next-from] {
				if l {
					n++
				}
			}
			scrubbed += n
			p.advance(&g, next, n)
			look()
		}
		if g.Phase != Over || g.Done != p.Total() || p.MetadataTotal+scrubbed+g.Skipped != p.Total() {
			t.Fatalf("at the end, with %d scrubbed of %d: %+v", scrubbed, p.Total(), g)
		}
	})
}

// TestEmptyPlan is over at once, with nothing to do and nothing divided by it.
func TestEmptyPlan(t *testing.T) {
	p := Plan{Span: 1, Marks: []int64{0}}
	g := Progress{Phase: Metadata}
	p.endMetadata(&g)
	if g.Phase != Over || g.Done != 0 || p.Total() != 0 {
		t.Errorf("%+v", g)
	}
}

// TestScrubbedTwice: what is counted twice, which only a file that changes meanwhile can bring about,
// does not make more than all.
func TestScrubbedTwice(t *testing.T) {
	p := Plan{To: 100, Span: 50, Marks: []int64{10, 20}}
	g := Progress{Phase: Data}
	p.advance(&g, 20, 9)
	p.advance(&g, 30, 9)
	if g.Done != 10 {
		t.Errorf("%+v", g)
	}
	p.advance(&g, 50, 0)
	p.advance(&g, 100, 5)
	if g.Done != 30 || g.Skipped != 15 || g.Phase != Over {
		t.Errorf("%+v", g)
	}
}

// TestReads runs testdata/reads: pieces as FROM-END in blocks, "h" for a zone header, in zones of so
// many blocks.
func TestReads(t *testing.T) {
	datadriven.RunTest(t, "testdata/reads", func(t *testing.T, d *datadriven.TestData) string {
		var zone int64
		d.ScanArgs(t, "zone", &zone)
		var ps []Piece
		for _, line := range strings.Fields(d.Input) {
			var a, b int64
			if n, _ := fmt.Sscanf(line, "h%d", &a); n == 1 {
				ps = append(ps, Piece{At: a * extent.BlockSize, Header: true})
				continue
			}
			if _, err := fmt.Sscanf(line, "%d-%d", &a, &b); err != nil {
				t.Fatal(err)
			}
			ps = append(ps, Piece{At: a * extent.BlockSize, Sums: make([]uint32, b-a)})
		}
		var out strings.Builder
		for _, r := range group(ps, zone*extent.BlockSize, d.HasArg("apart")) {
			fmt.Fprintf(&out, "slot %d: %d-%d:", r.slot, r.off/extent.BlockSize, (r.off+r.n)/extent.BlockSize)
			for _, p := range r.parts {
				fmt.Fprintf(&out, " %d", p.off/extent.BlockSize)
				if p.header {
					out.WriteString("h")
				} else {
					fmt.Fprintf(&out, "+%d", len(p.sums))
				}
			}
			out.WriteString("\n")
		}
		return out.String()
	})
}

// TestReadsCoverEachBlockOnce is seeds S3's trap: nothing is submitted or counted twice.
func TestReadsCoverEachBlockOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.Int64Range(1, 600).Draw(t, "zone")
		want, at := map[int64]uint32{}, int64(0)
		var ps []Piece
		for range rapid.IntRange(0, 30).Draw(t, "pieces") {
			at += rapid.Int64Range(0, 20).Draw(t, "gap")
			p := Piece{At: at * extent.BlockSize}
			for range rapid.IntRange(1, 400).Draw(t, "blocks") {
				want[at] = uint32(at) * 7
				p.Sums = append(p.Sums, want[at])
				at++
			}
			ps = append(ps, p)
		}
		live, all := int64(len(want)), int64(0)
		for _, r := range group(ps, zone*extent.BlockSize, false) {
			if r.n > readMost || r.off+r.n > zone*extent.BlockSize || r.n <= 0 {
				t.Fatalf("read of %d at %d", r.n, r.off)
			}
			all += r.n / extent.BlockSize
			for _, p := range r.parts {
				if p.off+p.bytes() > r.n || (int64(r.slot)*zone*extent.BlockSize+r.off+p.off) != p.at {
					t.Fatalf("part %+v of read %+v", p, r)
				}
				for i, sum := range p.sums {
					a := p.at/extent.BlockSize + int64(i)
					if w, ok := want[a]; !ok || w != sum {
						t.Fatalf("block %d is not wanted, or twice, or another's", a)
					}
					delete(want, a)
				}
			}
		}
		if len(want) > 0 || all > 2*live {
			t.Fatalf("%d blocks are not read, %d are for %d live ones", len(want), all, live)
		}
	})
}
