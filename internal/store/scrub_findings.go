package store

import "github.com/shingle-store/shingle/internal/extent"

// Finding is a bad block that a scrub has met (docs/format.md 2.15). Sizes are bytes, Time is ns
// since 1970.
type Finding struct {
	Scrub, Seq       uint64
	FileID           uint64 // 0: no file's
	File             string
	Off, Len         int64 // in the file
	Addr             extent.Addr
	Device, Zone     uint32
	ZoneOff          int64
	Expected, Actual uint32
	Unreadable       bool
	Outcome          uint8
	Time             int64
	OtherRefs        uint32
	Object           string // where it is no file's block
}

func (x *Finding) encode() []byte {
	b := putUint(nil, 1, x.FileID)
	b = putString(b, 2, x.File)
	b = putUint(b, 3, uint64(x.Off))
	b = putUint(b, 4, uint64(x.Len))
	b = putUint(b, 5, uint64(x.Addr))
	b = putUint(b, 6, uint64(x.Zone))
	b = putUint(b, 7, uint64(x.ZoneOff))
	b = putUint(b, 8, uint64(x.Expected))
	b = putUint(b, 9, uint64(x.Actual))
	if x.Unreadable {
		b = putUint(b, 10, 1)
	}
	b = putUint(b, 11, uint64(x.Outcome))
	b = putUint(b, 12, uint64(x.Time))
	b = putUint(b, 13, uint64(x.OtherRefs))
	b = putString(b, 14, x.Object)
	return putUint(b, 15, uint64(x.Device))
}

func decodeFinding(key, p []byte) (x Finding, err error) {
	k, ok := splitKey64(key, 2)
	if !ok || k[0] == 0 || k[1] == 0 {
		return x, errWire
	}
	x.Scrub, x.Seq = k[0], k[1]
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &x.FileID, max64)
		case 2:
			return text(f, &x.File, maxText)
		case 3:
			return number(f, &x.Off, maxPos)
		case 4:
			return number(f, &x.Len, maxPos)
		case 5:
			return number(f, &x.Addr, max64)
		case 6:
			return number(f, &x.Zone, max32)
		case 7:
			return number(f, &x.ZoneOff, max63)
		case 8:
			return number(f, &x.Expected, max32)
		case 9:
			return number(f, &x.Actual, max32)
		case 10:
			return oneBit(f, &x.Unreadable)
		case 11:
			return number(f, &x.Outcome, max8)
		case 12:
			return number(f, &x.Time, max63)
		case 13:
			return number(f, &x.OtherRefs, max32)
		case 14:
			return text(f, &x.Object, maxText)
		case 15:
			return number(f, &x.Device, max32)
		}
		return nil
	})
	return x, err
}

// AddFindings writes findings of s, numbered on from s.Findings, and raises that. s is for the
// PutScrub that is to follow in the same transaction.
func (tx *Tx) AddFindings(s *Scrub, found []Finding) error {
	for _, x := range found {
		s.Findings++
		x.Scrub, x.Seq = s.ID, s.Findings
		if err := tx.put(bScrubFindings, key64(x.Scrub, x.Seq), x.encode()); err != nil {
			return err
		}
	}
	return nil
}

// Findings calls fn for the findings of a scrub with a sequence > after, in order, until it returns
// false. A damaged record is passed over; bad says how many were.
func (tx *Tx) Findings(id, after uint64, fn func(Finding) bool) (bad int, err error) {
	if after == max64 {
		return 0, nil
	}
	c := tx.cursor(bScrubFindings)
	for k, p, err := c.seek(key64(id, after+1)); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			if c.at == nil {
				return bad, err
			}
			if at, ok := splitKey64(c.at, 2); ok && at[0] != id {
				break
			}
			bad++
			continue
		}
		if at, ok := splitKey64(k, 2); !ok || at[0] != id {
			break
		}
		x, err := decodeFinding(k, p)
		if err != nil {
			bad++
			continue
		}
		if !fn(x) {
			break
		}
	}
	return bad, nil
}

// scrubs checks that every record of a scrub can be read, and that every finding belongs to one and
// has no higher number than it counts.
func (c *checker) scrubs() error {
	kept := map[uint64]uint64{} // id -> findings
	err := c.each(bScrubState, func(k, p []byte) {
		s, err := decodeScrub(k, p)
		if err != nil {
			c.problem(bScrubState, k, "malformed record")
			return
		}
		kept[s.ID] = s.Findings
	})
	if err != nil {
		return err
	}
	return c.each(bScrubFindings, func(k, p []byte) {
		x, err := decodeFinding(k, p)
		if err != nil {
			c.problem(bScrubFindings, k, "malformed record")
			return
		}
		if n, ok := kept[x.Scrub]; !ok {
			c.problem(bScrubFindings, k, "there is no scrub %d", x.Scrub)
		} else if x.Seq > n {
			c.problem(bScrubFindings, k, "scrub %d counts %d findings", x.Scrub, n)
		}
	})
}
