package scrub

// Phase is how far a scrub is; values are on media (docs/format.md 2.14).
type Phase uint8

// The phases, in their order.
const (
	Labels   Phase = 0
	Metadata Phase = 1
	Data     Phase = 2
	Over     Phase = 3
)

// Plan is what a scrub covers, fixed at its start. Sizes are bytes.
type Plan struct {
	Labels, Metadata bool
	// MetadataTotal is the part of the total that is for metadata.
	MetadataTotal int64
	// From and To bound the data: addresses, or offsets in a file.
	From, To int64
	// Marks are the bytes that are live at the start in each Span from From on. There is one at least.
	Span  int64
	Marks []int64
}

// Progress is how far a scrub has come. Its zero value is the start.
type Progress struct {
	Phase         Phase
	Bucket        string // in the metadata: where it goes on
	Key           []byte
	At            int64 // in the data: where it goes on
	InMark        int64 // bytes scrubbed since the last mark was passed
	Done, Skipped int64 // bytes of the total; Skipped is a part of Done
	Counters      Counters
}

// Total returns the bytes of a plan: what Progress.Done is at the end.
func (p *Plan) Total() int64 {
	n := p.MetadataTotal
	for _, m := range p.Marks {
		n += m
	}
	return n
}

// mark returns the number of the span that holds at, and where that ends.
func (p *Plan) mark(at int64) (i int, end int64) {
	i = min(int((at-p.From)/p.Span), len(p.Marks)-1)
	if i == len(p.Marks)-1 {
		return i, p.To
	}
	return i, p.From + int64(i+1)*p.Span
}

// before returns what is done when span i begins.
func (p *Plan) before(i int) int64 {
	n := p.MetadataTotal
	for _, m := range p.Marks[:i] {
		n += m
	}
	return n
}

// records counts bytes of the metadata.
func (p *Plan) records(g *Progress, n int64) {
	g.Done = min(g.Done+n, p.MetadataTotal)
}

// endMetadata goes on to the data.
func (p *Plan) endMetadata(g *Progress) {
	g.Phase, g.Bucket, g.Key = Data, "", nil
	g.Done, g.At, g.InMark = p.MetadataTotal, p.From, 0
	if p.From >= p.To {
		g.Phase, g.Done = Over, p.Total()
	}
}

// advance counts n bytes scrubbed, and goes on at next, which lies in the same span as g.At or at its end.
func (p *Plan) advance(g *Progress, next, n int64) {
	i, end := p.mark(g.At)
	g.InMark += n
	g.Done = p.before(i) + min(g.InMark, p.Marks[i])
	if g.At = next; next < end {
		return
	}
	g.Skipped += p.Marks[i] - min(g.InMark, p.Marks[i])
	g.Done, g.InMark = p.before(i+1), 0
	if next >= p.To {
		g.Phase = Over
	}
}
