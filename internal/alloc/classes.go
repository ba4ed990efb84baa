package alloc

// kinds is how many kinds of block groups there are: sequential (0) and conventional (1) ones.
const kinds = 2

// part returns the class and kind that the block group counts in. An empty one is data's, whoever
// used it last: it is data's to open.
func (g *group) part() (c Class, kind int) {
	if g.runs != nil {
		return ClassData, 1
	}
	if g.state == Empty || !g.class.valid() {
		return ClassData, 0
	}
	return g.class, 0
}

// countLocked adds the figures of a block group to the sums, or takes them out.
func (a *Allocator) countLocked(g *group, sign int64) {
	f := g.figures()
	a.sum.add(f, sign)
	c, kind := g.part()
	a.parts[c][kind].add(f, sign)
}

// ClassUsage is the account of the block groups of one class and kind, in bytes: Total, which leaves
// their headers out, is the sum of the others. The relocation reserve is part of Free, and so is what
// is promised and not granted; Pending is granted and not durable yet.
type ClassUsage struct {
	Class        Class
	Conventional bool
	BlockGroups  int64

	Total, Used, Free, Unusable, Pending, Quarantined int64
}

// ByClass returns the accounts of the classes and kinds that there are, sequential ones first.
func (a *Allocator) ByClass() (out []ClassUsage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for kind := range kinds {
		for c := range classes {
			f := &a.parts[c][kind]
			if f.groups == 0 {
				continue
			}
			out = append(out, ClassUsage{
				Class: Class(c), Conventional: kind == 1, BlockGroups: f.groups,
				Total: f.live + f.free + f.unusable + f.pending + f.quarantined,
				Used:  f.live, Free: f.free, Unusable: f.unusable, Pending: f.pending, Quarantined: f.quarantined,
			})
		}
	}
	return out
}
