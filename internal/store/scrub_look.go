package store

import (
	"encoding/binary"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// LiveRun is blocks that follow each other, of one extent or several, with their checksums.
type LiveRun struct {
	Addr extent.Addr
	Sums []uint32 // one a block
}

// LiveLook is what a look for live blocks found.
type LiveLook struct {
	Runs    []LiveRun
	Blocks  int64 // live ones that were asked for: those of Runs, and NoSums
	Extents int64 // that begin in what was looked at
	// Next is where the next look goes on: the bound that was given when there is nothing left below it.
	Next int64
	// NoSums are live blocks without a checksum, LooseSums checksums without an extent. A damaged
	// record takes what it spoke of with it.
	NoSums, LooseSums int64
	Damaged           []DamagedRecord
	// What the look cost: searches from the root of a tree.
	ExtentLookups, SumLookups uint64
}

// mostLooked bounds the records of extents that one look reads.
const mostLooked = 8192

// LookLive looks up the live blocks of [from, to) that were placed by commit placement or before, at
// most room of them, and their checksums. Everything in [from, Next) is in the answer.
func (tx *Tx) LookLive(from, to extent.Addr, room int64, placement uint64) (look LiveLook, err error) {
	look.Next = int64(to)
	w := &sumWalk{tx: tx, look: &look, sums: make([]uint32, 0, room)}
	c := tx.cursor(bExtents)
	look.ExtentLookups++
	k, p, err := c.floor(key64(uint64(from)))
	if err == nil && k == nil {
		k, p, err = c.seek(key64(uint64(from)))
	}
	at, sound := from, true // all below at has been dealt with; no extent is missing between at and here
	for read := 0; k != nil || err != nil; k, p, err = c.next() {
		x, bad := extentOf(c, k, p, err)
		if bad != nil {
			if bad.at == nil {
				return look, bad.err
			}
			look.damagedFrom(bad, from)
			sound = false
			continue
		}
		if x.End() <= from {
			continue
		}
		if x.Addr >= to {
			break
		}
		if read++; read > mostLooked {
			look.Next = int64(x.Addr)
			break
		}
		lo, hi := max(x.Addr, from), min(x.End(), to)
		if err := w.loose(at, lo, sound); err != nil {
			return look, err
		}
		at, sound = hi, true
		if x.Placement > placement {
			continue
		}
		n := min(int64(hi-lo)/extent.BlockSize, room)
		if n == 0 {
			look.Next = int64(lo)
			return look, nil
		}
		if err := w.take(lo, n); err != nil {
			return look, err
		}
		if room -= n; x.Addr >= from {
			look.Extents++
		}
		if end := lo + extent.Addr(n*extent.BlockSize); end < hi {
			look.Next = int64(end)
			return look, nil
		}
	}
	return look, w.loose(at, extent.Addr(look.Next), sound)
}

// badRead is a record that cannot be read; at is nil when bbolt failed.
type badRead struct {
	b   bucketID
	at  []byte
	err error
}

func extentOf(c *cursor, k, p []byte, err error) (x Extent, bad *badRead) {
	if err != nil {
		return x, &badRead{bExtents, c.at, err}
	}
	if x, err = decodeExtent(k, p); err != nil {
		return x, &badRead{bExtents, append([]byte(nil), k...), err}
	}
	return x, nil
}

// damagedFrom notes a damaged record with an address in its key, unless that lies below from: then an
// earlier look has noted it.
func (l *LiveLook) damagedFrom(bad *badRead, from extent.Addr) {
	if len(bad.at) >= 8 && extent.Addr(binary.BigEndian.Uint64(bad.at)) < from {
		return
	}
	for _, d := range l.Damaged {
		if d.Bucket == bad.b.String() && string(d.Key) == string(bad.at) {
			return
		}
	}
	l.Damaged = append(l.Damaged, DamagedRecord{Bucket: bad.b.String(), Key: bad.at})
}

// sumWalk keeps its place in the checksums from one run of blocks to the next.
type sumWalk struct {
	tx   *Tx
	look *LiveLook
	c    *cursor
	cur  sumRun // of which packed is nil: past the end, or not begun
	from extent.Addr
	sums []uint32 // has room for all that is taken
}

// place goes to the record that holds a, or the first one after it.
func (w *sumWalk) place(a extent.Addr) error {
	switch {
	case w.cur.packed != nil && w.cur.addr <= a && a < w.cur.end():
		return nil
	case w.cur.packed != nil && w.cur.end() == a:
		return w.next()
	}
	if w.c == nil {
		w.c, w.from = w.tx.cursor(bChecksums), a
	}
	w.look.SumLookups++
	k, p, err := w.c.floor(key64(uint64(a)))
	if err == nil && k == nil {
		k, p, err = w.c.seek(key64(uint64(a)))
	}
	if err := w.settle(k, p, err); err != nil || w.cur.packed == nil || w.cur.end() > a {
		return err
	}
	return w.next()
}

func (w *sumWalk) next() error { return w.settle(w.c.next()) }

// settle passes over damaged records.
func (w *sumWalk) settle(k, p []byte, err error) error {
	for ; ; k, p, err = w.c.next() {
		var bad *badRead
		if err != nil {
			bad = &badRead{bChecksums, w.c.at, err}
		} else if k == nil {
			w.cur = sumRun{}
			return nil
		} else if w.cur, err = decodeSums(k, p); err != nil {
			bad = &badRead{bChecksums, append([]byte(nil), k...), err}
		} else {
			return nil
		}
		if bad.at == nil {
			return bad.err
		}
		w.look.damagedFrom(bad, w.from)
	}
}

// loose counts the checksums in [from, to), where no extent lies, unless count is false.
func (w *sumWalk) loose(from, to extent.Addr, count bool) error {
	if from >= to {
		return nil
	}
	err := w.place(from)
	for err == nil && w.cur.packed != nil && w.cur.addr < to {
		if count {
			w.look.LooseSums += int64(min(w.cur.end(), to)-max(w.cur.addr, from)) / extent.BlockSize
		}
		if w.cur.end() > to {
			break
		}
		err = w.next()
	}
	return err
}

// take adds n live blocks from a on, with their checksums.
func (w *sumWalk) take(a extent.Addr, n int64) error {
	w.look.Blocks += n
	end := a + extent.Addr(n*extent.BlockSize)
	err := w.place(a)
	for ; err == nil && a < end; err = w.place(a) {
		if w.cur.packed == nil || w.cur.addr >= end {
			w.look.NoSums += int64(end-a) / extent.BlockSize
			return nil
		}
		if w.cur.addr > a {
			w.look.NoSums += int64(w.cur.addr-a) / extent.BlockSize
			a = w.cur.addr
		}
		part := w.cur.cut(a, min(w.cur.end(), end))
		first := len(w.sums)
		for p := part.packed; len(p) > 0; p = p[sumSize:] {
			w.sums = append(w.sums, binary.LittleEndian.Uint32(p))
		}
		if runs := w.look.Runs; len(runs) > 0 && runs[len(runs)-1].end() == a {
			last := &runs[len(runs)-1]
			last.Sums = w.sums[first-len(last.Sums) : len(w.sums) : len(w.sums)]
		} else {
			w.look.Runs = append(runs, LiveRun{a, w.sums[first:len(w.sums):len(w.sums)]})
		}
		if a = part.end(); a == end {
			return nil
		}
	}
	return err
}

func (r *LiveRun) end() extent.Addr { return r.Addr + extent.Addr(len(r.Sums)*extent.BlockSize) }

// LiveBlock returns the checksum on record of the block at a; ok is false unless it is live and was
// placed by commit placement or before.
func (tx *Tx) LiveBlock(a extent.Addr, placement uint64) (sum uint32, ok bool, err error) {
	x, ok, err := tx.LastExtent(0, a+1)
	if err != nil || !ok || a >= x.End() || x.Placement > placement {
		return 0, false, err
	}
	sums, err := tx.Checksums(a, 1)
	if errdefs.Is(err, errdefs.Corruption) || len(sums) != 1 {
		return 0, false, err
	}
	return sums[0], true, err
}
