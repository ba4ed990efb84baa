package delalloc

// Return puts back what Take took, because it could not be made durable: for another try, or,
// with failed, for good. It takes over the references of r, which must have come from x and not
// have been released. Where a newer write has been inserted since, or returned before, that
// stays, inheriting the age, and the older data is dropped; the bytes dropped are returned, and
// their reservation is surplus. It must not be used on a range of which a newer version has
// been published meanwhile, which would be hidden by it.
func (x *Index) Return(r Range, failed bool) (dropped int64) {
	if r.index != x {
		panic("delalloc: a range returned to an index it did not come from")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range r.Segments {
		dropped += x.returnLocked(r.Segments[i], failed)
	}
	x.mode.sub(dropped)
	x.tidyLocked()
	return dropped
}

// returnLocked merges s with what is in the index and returns how many bytes lay double.
func (x *Index) returnLocked(s Segment, failed bool) (double int64) {
	s.Failed = failed
	var there []Segment
	if double = x.live.overlap(s.Off, s.End()) + x.failed.overlap(s.Off, s.End()); double > 0 {
		there = x.cutLocked(s.Off, s.End())
	}
	if len(there) == 0 {
		x.putLocked(s)
		return 0
	}
	pos := s.Off
	for _, t := range there {
		if pos < t.Off {
			x.putLocked(s.part(pos, t.Off))
		}
		pos = t.End()
		winner := t
		if t.Seq < s.Seq {
			winner = s.part(t.Off, t.End())
			t.Buf.Free()
		}
		winner.inherit(&t)
		winner.inherit(&s)
		x.putLocked(winner)
	}
	if pos < s.End() {
		x.putLocked(s.part(pos, s.End()))
	}
	s.Buf.Free()
	return double
}
