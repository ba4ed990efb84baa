package delalloc

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRunsAgainstBitmap(t *testing.T) {
	const n = 64
	rapid.Check(t, func(t *rapid.T) {
		var r runs
		r.whole = rapid.Int64Range(0, 10).Draw(t, "whole")
		var bits [n + 1]bool
		draw := func(t *rapid.T) (start, end int64) {
			start = rapid.Int64Range(0, n-1).Draw(t, "start")
			return start, rapid.Int64Range(start+1, n).Draw(t, "end")
		}
		count := func(start, end int64, set func(bool) bool) (had int64) {
			for i := start; i < end; i++ {
				if bits[i] {
					had++
				}
				bits[i] = set(bits[i])
			}
			return had
		}
		keep := func(b bool) bool { return b }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				start, end := draw(t)
				r.add(start, end)
				count(start, end, func(bool) bool { return true })
			},
			"remove": func(t *rapid.T) {
				start, end := draw(t)
				if got, want := r.remove(start, end), count(start, end, func(bool) bool { return false }); got != want {
					t.Fatalf("removed %d, want %d", got, want)
				}
			},
			"overlap": func(t *rapid.T) {
				start, end := draw(t)
				if got, want := r.overlap(start, end), count(start, end, keep); got != want {
					t.Fatalf("overlap %d, want %d", got, want)
				}
			},
			"find": func(t *rapid.T) {
				off := rapid.Int64Range(0, n).Draw(t, "off")
				at := off
				for at < n && !bits[at] {
					at++
				}
				start, end, ok := r.find(off)
				if ok != (at < n) || ok && (max(start, off) != at || end <= off || !bits[start] || bits[end]) {
					t.Fatalf("find(%d) = [%d, %d) %v", off, start, end, ok)
				}
			},
			"find full": func(t *rapid.T) {
				if r.whole == 0 {
					t.Skip("not asked for")
				}
				off := rapid.Int64Range(0, n).Draw(t, "off")
				want, ok := int64(0), false
				for at := off; at < n && !ok; at++ {
					length := int64(0)
					for bits[at+length] {
						length++
					}
					// From off itself any full rest counts; later only where a run begins.
					if length >= r.whole && (at == off || !bits[at-1]) {
						want, ok = at, true
					}
				}
				start, _, found := r.findFull(off)
				if found != ok || ok && max(start, off) != want {
					t.Fatalf("findFull(%d) = %d %v, want %d %v", off, start, found, want, ok)
				}
			},
			"": func(t *rapid.T) {
				var starts, ends, full []int64
				for i := range int64(n) {
					if !bits[i] {
						continue
					}
					if i == 0 || !bits[i-1] {
						starts = append(starts, i)
					}
					if !bits[i+1] {
						ends = append(ends, i+1)
						if s := starts[len(starts)-1]; r.whole > 0 && i+1-s >= r.whole {
							full = append(full, s)
						}
					}
				}
				if !slices.Equal(r.ends.Keys(), starts) || !slices.Equal(r.ends.Values(), ends) ||
					!slices.Equal(r.full.Keys(), full) || r.size != count(0, n, keep) {
					t.Fatalf("runs %v-%v full %v size %d", r.ends.Keys(), r.ends.Values(), r.full.Keys(), r.size)
				}
			},
		})
	})
}

// One old entry that stays must not let the heap grow with those that come and go above it.
func TestOldestStaysSmall(t *testing.T) {
	x := NewIndex(NewMode(0))
	x.Insert(bare(0, 1, 1))
	for seq := range uint64(20000) {
		x.Insert(bare(2*block, 1, 1000000-seq)) // overlaid each time
		x.Drop(2*block, 3*block)
	}
	if n := len(x.bySeq.entries); n > 200 {
		t.Errorf("the heap holds %d entries for one segment", n)
	}
	if seq, ok := x.MinSeq(); !ok || seq != 1 {
		t.Errorf("MinSeq %d %v", seq, ok)
	}
	if x.bySeq.live != 1 || x.byAge.live != 1 {
		t.Errorf("%d and %d live entries counted", x.bySeq.live, x.byAge.live)
	}
}
