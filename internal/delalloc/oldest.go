package delalloc

import (
	"container/heap"
	"time"
)

// oldest finds the least entry of an index by some order. Entries that have left the index
// are dropped when they reach the top, and all at once when they are more than half, so that
// an entry costs O(1) amortised where keys mostly grow. The zero value with less set is empty.
type oldest struct {
	less    func(a, b *Segment) bool
	entries []*entry
	live    int
}

func bySequence(a, b *Segment) bool { return a.First < b.First }
func byAge(a, b *Segment) bool      { return a.Since.Before(b.Since) }

// Len, Less, Swap, Push and Pop are for container/heap.
func (o *oldest) Len() int           { return len(o.entries) }
func (o *oldest) Less(i, j int) bool { return o.less(&o.entries[i].Segment, &o.entries[j].Segment) }
func (o *oldest) Swap(i, j int)      { o.entries[i], o.entries[j] = o.entries[j], o.entries[i] }
func (o *oldest) Push(e any)         { o.entries = append(o.entries, e.(*entry)) }
func (o *oldest) Pop() any {
	last := len(o.entries) - 1
	e := o.entries[last]
	o.entries[last] = nil
	o.entries = o.entries[:last]
	return e
}

// insert adds e, whose key must not change while it is here.
func (o *oldest) insert(e *entry) {
	o.live++
	heap.Push(o, e)
}

// forget says that an entry that is here has been marked gone.
func (o *oldest) forget() { o.live-- }

// tidy drops what is gone; it must be called before top after any forget.
func (o *oldest) tidy() {
	if len(o.entries) > 2*o.live+64 {
		kept := o.entries[:0]
		for _, e := range o.entries {
			if !e.gone {
				kept = append(kept, e)
			}
		}
		clear(o.entries[len(kept):])
		o.entries = kept
		heap.Init(o)
	}
	for len(o.entries) > 0 && o.entries[0].gone {
		heap.Pop(o)
	}
}

// top returns the least entry, or nil. It only reads.
func (o *oldest) top() *entry {
	if len(o.entries) == 0 {
		return nil
	}
	return o.entries[0]
}

// minFirst and minSince are the keys of the tops.
func (x *Index) minFirst() (uint64, bool) {
	if e := x.bySeq.top(); e != nil {
		return e.First, true
	}
	return 0, false
}

func (x *Index) minSince() (time.Time, bool) {
	if e := x.byAge.top(); e != nil {
		return e.Since, true
	}
	return time.Time{}, false
}
