package delalloc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shingle-store/shingle/internal/slab"
)

// TestDecisions shows in testdata/ what an index decides. Offsets and lengths are in blocks.
//
//	mode range=N                       a new mode and index that collect N blocks
//	insert off=N n=N seq=N [age=N]     age: second of arrival, else seq
//	take [from=N] [max=N] [seq=N] [before=N] [complete]
//	release                            the range taken last
//	drop|dirty|forget off=N end=N [seq=N]
//	next off=N
//	show                               the segments and what is known of them
func TestDecisions(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		a := slab.New(64 << 20)
		defer a.Close()
		x := NewIndex(NewMode(0))
		var taken []Range
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			num := func(key string) int64 {
				var n int64
				d.MaybeScanArgs(t, key, &n)
				return n
			}
			switch d.Cmd {
			case "mode":
				x.Drop(0, 1<<40)
				x = NewIndex(NewMode(num("range") * block))
				return ""
			case "insert":
				age := num("seq")
				d.MaybeScanArgs(t, "age", &age)
				s := segment(a, num("off")*block, num("n"), byte(num("seq")), uint64(num("seq")), second(int(age)))
				return fmt.Sprintf("overlaid %d", x.Insert(s)/block)
			case "take":
				sel := Selection{From: num("from") * block, Max: num("max") * block, MaxSeq: uint64(num("seq")), CompleteOnly: d.HasArg("complete")}
				if d.HasArg("before") {
					sel.Before = second(int(num("before")))
				}
				r, ok := x.Take(sel)
				if !ok {
					return "none"
				}
				taken = append(taken, r)
				return fmt.Sprintf("[%d, %d) in %d segments and %d pieces, seq %d to %d",
					r.Off/block, r.End()/block, len(r.Segments), len(r.Bufs()), r.MinSeq, r.MaxSeq)
			case "release":
				if len(taken) == 0 {
					return "nothing taken"
				}
				last := len(taken) - 1
				taken[last].Release()
				taken = taken[:last]
				return ""
			case "drop":
				return fmt.Sprintf("dropped %d", x.Drop(num("off")*block, num("end")*block)/block)
			case "forget":
				x.Forget(num("off")*block, num("end")*block, uint64(num("seq")))
				return ""
			case "dirty":
				return fmt.Sprint(x.Dirty(num("off")*block, num("end")*block) / block)
			case "next":
				start, end, ok := x.Next(num("off") * block)
				if !ok {
					return "none"
				}
				return fmt.Sprintf("[%d, %d)", start/block, end/block)
			case "show":
				return show(x)
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
		for _, r := range taken {
			r.Release()
		}
		x.Drop(0, 1<<40)
		if a.InUse() != 0 || x.mode.Dirty() != 0 {
			t.Errorf("%d bytes of memory and %d of the count leaked", a.InUse(), x.mode.Dirty())
		}
	})
}

func show(x *Index) string {
	var b strings.Builder
	x.segments.Scan(func(_ int64, e *entry) bool {
		fmt.Fprintf(&b, "[%d, %d) seq %d", e.Off/block, e.End()/block, e.Seq)
		if e.First != e.Seq {
			fmt.Fprintf(&b, " first %d", e.First)
		}
		if age := e.Since.Sub(epoch).Seconds(); age != float64(e.Seq) {
			fmt.Fprintf(&b, " age %v", age)
		}
		b.WriteByte('\n')
		return true
	})
	fmt.Fprintf(&b, "bytes %d", x.Bytes()/block)
	if seq, ok := x.MinSeq(); ok {
		fmt.Fprintf(&b, ", min seq %d", seq)
	}
	if since, ok := x.Oldest(); ok {
		fmt.Fprintf(&b, ", oldest %v", since.Sub(epoch).Seconds())
	}
	if x.Complete() {
		b.WriteString(", complete")
	}
	return b.String()
}
