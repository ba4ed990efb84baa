package engine

import "github.com/shingle-store/shingle/internal/extent"

// intervals are disjoint, non-empty, ascending ranges of a file that have not been read yet.
type intervals []extent.Range

// without returns the intervals less [start, end).
func (v intervals) without(start, end int64) intervals {
	var out intervals
	for _, r := range v {
		if r.Off < min(r.End, start) {
			out = append(out, extent.Range{Off: r.Off, End: min(r.End, start)})
		}
		if max(r.Off, end) < r.End {
			out = append(out, extent.Range{Off: max(r.Off, end), End: r.End})
		}
	}
	return out
}

// touches reports whether any byte of [start, end) is in the intervals.
func (v intervals) touches(start, end int64) bool {
	for _, r := range v {
		if r.Off < end && start < r.End {
			return true
		}
	}
	return false
}

// contains reports whether all of [start, end) is in one interval.
func (v intervals) contains(start, end int64) bool {
	for _, r := range v {
		if r.Off <= start && end <= r.End {
			return true
		}
	}
	return false
}

// fill copies what is missing of data, which lies at file offset at, to p, which begins at file
// offset off, and returns what is missing still.
func (v intervals) fill(at int64, data []byte, off int64, p []byte) intervals {
	end := at + int64(len(data))
	for _, r := range v {
		x := r.Intersect(extent.Range{Off: at, End: end})
		if x.Len() > 0 {
			copy(p[x.Off-off:x.End-off], data[x.Off-at:x.End-at])
		}
	}
	return v.without(at, end)
}
