package engine

import "github.com/shingle-store/shingle/internal/extent"

// overlayFailedLocked takes [off, end) out of the ranges of the file that could not be made
// durable: rewriting or cutting ends the error. It returns the bytes whose reservation is
// the caller's to give back. The caller holds f.mu.
func (e *Engine) overlayFailedLocked(f *file, off, end int64) (freed int64) {
	return e.overlayLocked(f, nil, off, end)
}

// overlayLocked is overlayFailedLocked for one of the ranges only, unless that is nil.
func (e *Engine) overlayLocked(f *file, only *ordered, off, end int64) (freed int64) {
	if len(f.mu.failed) == 0 {
		return 0
	}
	kept := f.mu.failed[:0]
	for _, o := range f.mu.failed {
		if only != nil && o != only {
			kept = append(kept, o)
			continue
		}
		var left []extent.Range
		for _, r := range o.left {
			x := r.Intersect(extent.Range{Off: off, End: end})
			if x.Len() == 0 {
				left = append(left, r)
				continue
			}
			freed += x.Len()
			if r.Off < x.Off {
				left = append(left, extent.Range{Off: r.Off, End: x.Off})
			}
			if x.End < r.End {
				left = append(left, extent.Range{Off: x.End, End: r.End})
			}
		}
		o.left = left
		if len(left) > 0 {
			kept = append(kept, o)
			continue
		}
		f.pending.Forget(o.rng.Off, o.rng.End(), o.rng.MaxSeq)
		o.rng.Release()
	}
	clear(f.mu.failed[len(kept):])
	f.mu.failed = kept
	e.stuck.Add(-freed)
	f.refreshLocked()
	return freed
}
