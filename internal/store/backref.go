package store

import "github.com/shingle-store/shingle/internal/extent"

// BackRef says that the file extent of File at Off uses the stored bytes [Addr, Addr+Stored)
// (docs/format.md 2.8).
type BackRef struct {
	Addr   extent.Addr
	File   uint64
	Off    int64
	Stored int64
}

func decodeBackRef(key, p []byte) (r BackRef, err error) {
	k, ok := splitKey64(key, 3)
	if !ok || k[0] > max63/2 || k[2] > maxPos {
		return r, errWire
	}
	r = BackRef{Addr: extent.Addr(k[0]), File: k[1], Off: int64(k[2])}
	err = eachField(p, func(f field) error {
		if f.num == 1 {
			return number(f, &r.Stored, extent.MaxRangeSize)
		}
		return nil
	})
	if err == nil && r.Stored == 0 {
		err = errWire
	}
	return r, err
}

// RefsTo returns file extents that use the stored block at a, at most n of them; none if nothing
// live lies there.
func (tx *Tx) RefsTo(a extent.Addr, n int) (es []FileExtent, err error) {
	x, ok, err := tx.LastExtent(0, a+1)
	if err != nil || !ok || a >= x.End() {
		return nil, err
	}
	var refs []BackRef
	err = tx.BackRefs(x.Addr, a+1, func(b BackRef) bool {
		if b.Addr+extent.Addr(b.Stored) > a {
			refs = append(refs, b)
		}
		return len(refs) < n
	})
	for _, ref := range refs {
		e, ok, ferr := tx.fileExtentAt(ref.File, ref.Off)
		if ferr != nil {
			return es, ferr
		}
		if ok {
			es = append(es, e)
		}
	}
	return es, err
}

// BackRefs calls fn for the back-references with addresses in [from, to), in the order
// address, file, offset, until it returns false.
func (tx *Tx) BackRefs(from, to extent.Addr, fn func(BackRef) bool) error {
	c := tx.cursor(bBackRefs)
	for k, p, err := c.seek(key64(uint64(from))); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		r, err := decodeBackRef(k, p)
		if err != nil {
			return badRecord(bBackRefs, k, err)
		}
		if r.Addr >= to || !fn(r) {
			return nil
		}
	}
	return nil
}
