package store

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// The bitmaps of conventional block groups (docs/format.md 2.12). A chunk of bits is a record.
const (
	chunkBlocks = 8192
	chunkBytes  = chunkBlocks / 8
	chunkWords  = chunkBlocks / 64
	chunkSpan   = chunkBlocks * extent.BlockSize // bytes of the zone
)

// Run is a run of blocks of a conventional block group, in bytes from the start of its zone.
type Run struct {
	Slot     uint32
	Off, Len int64
}

// chunkBits is the part of a bitmap that one record holds: bit i of word i/64 is block i.
type chunkBits [chunkWords]uint64

func chunkKey(slot, chunk uint32) []byte {
	return binary.BigEndian.AppendUint32(key32(slot), chunk)
}

func splitChunkKey(k []byte) (slot, chunk uint32, ok bool) {
	if len(k) != 8 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(k), binary.BigEndian.Uint32(k[4:]), true
}

// encode leaves out what is zero at the end; nothing is left of a chunk without a set bit.
func (b *chunkBits) encode() []byte {
	p := make([]byte, 0, chunkBytes)
	for _, w := range b {
		p = binary.LittleEndian.AppendUint64(p, w)
	}
	for len(p) > 0 && p[len(p)-1] == 0 {
		p = p[:len(p)-1]
	}
	return putBytes(nil, 1, p)
}

func (b *chunkBits) decode(p []byte) error {
	*b = chunkBits{}
	return eachField(p, func(f field) error {
		if f.num != 1 {
			return nil
		}
		v, err := f.bytes(chunkBytes)
		if err != nil {
			return err
		}
		for i, c := range v {
			b[i/8] |= uint64(c) << (i % 8 * 8)
		}
		return nil
	})
}

// mark sets or clears the bits [from, to).
func (b *chunkBits) mark(from, to int64, used bool) {
	for from < to {
		lo := from % 64
		n := min(64-lo, to-from)
		mask := ^uint64(0) >> (64 - n) << lo
		if used {
			b[from/64] |= mask
		} else {
			b[from/64] &^= mask
		}
		from += n
	}
}

func (b *chunkBits) empty() bool { return *b == chunkBits{} }

// chunk is what a transaction does to a part of a bitmap. It is written once, by finish.
type chunk struct {
	slot, index uint32
	recorded    bool // there was a record before
	old, now    chunkBits
	touched     chunkBits // became part of an extent, or stopped being so, at any time
	// Discarded, and written without an extent, as far as the transaction is told (SetTrimmedRun).
	trimmed, untrimmed chunkBits
}

// markBlocks says in the bitmap whether [addr, addr+blocks) is part of an extent, if it lies in a
// conventional block group.
func (tx *Tx) markBlocks(addr extent.Addr, blocks int64, used bool) error {
	s, off := tx.slotOf(addr)
	slot := uint32(s)
	g, err := tx.groupEntry(slot)
	if err != nil || g.Kind != KindConventional {
		return err
	}
	for at, end := off/extent.BlockSize, off/extent.BlockSize+blocks; at < end; {
		c, err := tx.chunk(slot, uint32(at/chunkBlocks))
		if err != nil {
			return err
		}
		from := at % chunkBlocks
		to := min(chunkBlocks, from+end-at)
		c.now.mark(from, to, used)
		c.touched.mark(from, to, true)
		at += to - from
	}
	return nil
}

// chunk returns the chunk as this transaction has it. A damaged record is worked out anew from the
// extents: it holds nothing that they do not say, and what lies there must stay possible to delete.
func (tx *Tx) chunk(slot, index uint32) (*chunk, error) {
	id := uint64(slot)<<32 | uint64(index)
	if c := tx.chunks[id]; c != nil {
		return c, nil
	}
	c := &chunk{slot: slot, index: index}
	key := chunkKey(slot, index)
	p, ok, err := tx.get(bBitmaps, key)
	if err == nil && ok {
		err = badRecord(bBitmaps, key, c.old.decode(p))
	}
	c.recorded = ok || err != nil
	if errdefs.Is(err, errdefs.Corruption) {
		err = tx.deriveChunk(slot, index, &c.old)
	}
	if err != nil {
		return nil, err
	}
	c.now = c.old
	if tx.chunks == nil {
		tx.chunks = map[uint64]*chunk{}
	}
	tx.chunks[id] = c
	return c, nil
}

// deriveChunk works a chunk out from the extents in its range.
func (tx *Tx) deriveChunk(slot, index uint32, b *chunkBits) error {
	*b = chunkBits{}
	base := tx.addrOf(slot, int64(index)*chunkSpan)
	return tx.eachExtentIn(base, min(base+chunkSpan, tx.addrOf(slot+1, 0)), func(x Extent) {
		from, to := max(x.Addr, base), min(x.End(), base+chunkSpan)
		b.mark(int64(from-base)/extent.BlockSize, int64(to-base)/extent.BlockSize, true)
	})
}

// eachExtentIn calls fn for every extent that has a block in [from, to).
func (tx *Tx) eachExtentIn(from, to extent.Addr, fn func(Extent)) error {
	c := tx.cursor(bExtents)
	k, p, err := c.floor(key64(uint64(from)))
	if k == nil && err == nil {
		k, p, err = c.seek(key64(uint64(from)))
	}
	for ; k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		x, err := decodeExtent(k, p)
		if err != nil {
			return badRecord(bExtents, k, err)
		}
		if x.Addr >= to {
			return nil
		}
		if x.End() > from {
			fn(x)
		}
	}
	return nil
}

// addrOf is the inverse of slotOf.
func (tx *Tx) addrOf(slot uint32, off int64) extent.Addr {
	return extent.Addr(int64(slot)*tx.super.ZoneSize + off)
}

// writeBitmaps writes the chunks that changed, and notes what the transaction freed: what was part
// of an extent at any time and is not at the end. An extent that came and went in one transaction
// is among it.
func (tx *Tx) writeBitmaps() error {
	for _, id := range slices.Sorted(maps.Keys(tx.chunks)) { // so that runs come in order and whole
		c := tx.chunks[id]
		key := chunkKey(c.slot, c.index)
		var err error
		switch {
		case c.now.empty() && c.recorded:
			err = tx.del(bBitmaps, key)
		case !c.now.empty() && (c.now != c.old || !c.recorded):
			err = tx.put(bBitmaps, key, c.now.encode())
		}
		if err != nil {
			return err
		}
		tx.noteFreed(c)
	}
	return tx.writeTrimmed()
}

func (tx *Tx) noteFreed(c *chunk) {
	base := int64(c.index) * chunkSpan
	for i := range c.touched {
		for w := c.touched[i] &^ c.now[i]; w != 0; {
			lo := bits.TrailingZeros64(w)
			n := bits.TrailingZeros64(^(w >> lo))
			w &^= ^uint64(0) >> (64 - n) << lo
			r := Run{c.slot, base + int64(i*64+lo)*extent.BlockSize, int64(n) * extent.BlockSize}
			if k := len(tx.freed); k > 0 && tx.freed[k-1].Slot == r.Slot && tx.freed[k-1].Off+tx.freed[k-1].Len == r.Off {
				tx.freed[k-1].Len += r.Len
				continue
			}
			tx.freed = append(tx.freed, r)
		}
	}
}

// Bitmap returns the bitmap of a conventional block group as it was when the transaction began: bit
// i of word i/64 is set if block i is part of an extent. Corruption if a record is damaged, marks
// blocks that the block group does not have, or the set bits do not add up to its live bytes; then
// DeriveBitmap says how it should be.
func (tx *Tx) Bitmap(g BlockGroup) ([]uint64, error) {
	blocks := g.Capacity / extent.BlockSize
	words := make([]uint64, (blocks+63)/64)
	bad := func(msg string) error {
		return corrupt("store.Bitmap", fmt.Sprintf("block group %d", g.Slot), msg)
	}
	var b chunkBits
	set := int64(0)
	c := tx.cursor(bBitmaps)
	for k, p, err := c.seek(chunkKey(g.Slot, 0)); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return nil, err
		}
		slot, index, ok := splitChunkKey(k)
		if !ok {
			return nil, badRecord(bBitmaps, k, errWire)
		}
		if slot != g.Slot {
			break
		}
		if err := b.decode(p); err != nil {
			return nil, badRecord(bBitmaps, k, err)
		}
		for i, w := range b {
			at := int64(index)*chunkWords + int64(i)
			if w != 0 && (at >= int64(len(words)) || at == blocks/64 && w>>(blocks%64) != 0) {
				return nil, bad("its bitmap marks blocks past its end")
			}
			if w != 0 {
				words[at] = w
				set += int64(bits.OnesCount64(w))
			}
		}
	}
	if set*extent.BlockSize != g.LiveBytes {
		return nil, bad(fmt.Sprintf("its bitmap marks %d bytes, %d are live", set*extent.BlockSize, g.LiveBytes))
	}
	return words, nil
}

// DeriveBitmap works out from the extents what Bitmap should say. It reads all extents of the block
// group. Corruption if they cannot be read, or do not add up to its live bytes either.
func (tx *Tx) DeriveBitmap(g BlockGroup) ([]uint64, error) {
	words := make([]uint64, 0, (g.Capacity/extent.BlockSize+63)/64)
	var b chunkBits
	set := int64(0)
	for i := uint32(0); len(words) < cap(words); i++ {
		if err := tx.deriveChunk(g.Slot, i, &b); err != nil {
			return nil, err
		}
		n := min(chunkWords, cap(words)-len(words))
		words = append(words, b[:n]...)
		for _, w := range b {
			set += int64(bits.OnesCount64(w))
		}
	}
	if set*extent.BlockSize != g.LiveBytes {
		return nil, corrupt("store.DeriveBitmap", fmt.Sprintf("block group %d", g.Slot),
			fmt.Sprintf("its extents hold %d bytes, %d are live", set*extent.BlockSize, g.LiveBytes))
	}
	return words, nil
}

// PutBitmap replaces every record of the block group's bitmap. Nothing else in the transaction may
// change extents there.
func (tx *Tx) PutBitmap(slot uint32, words []uint64) error {
	var keys [][]byte
	c := tx.cursor(bBitmaps)
	for k, _, err := c.seek(chunkKey(slot, 0)); ; k, _, err = c.next() {
		if k == nil && err != nil {
			if k = c.at; k == nil {
				return err
			}
		}
		if s, _, ok := splitChunkKey(k); !ok || s != slot {
			break
		}
		keys = append(keys, append([]byte(nil), k...))
	}
	for _, k := range keys {
		if err := tx.del(bBitmaps, k); err != nil {
			return err
		}
	}
	for i := uint32(0); len(words) > 0; i++ {
		var b chunkBits
		n := copy(b[:], words)
		words = words[n:]
		if b.empty() {
			continue
		}
		if err := tx.put(bBitmaps, chunkKey(slot, i), b.encode()); err != nil {
			return err
		}
	}
	return nil
}

// reportFreed hands over what a committed transaction freed.
func (s *Store) reportFreed(runs []Run) {
	if s.freed != nil && len(runs) > 0 {
		s.freed(runs)
	}
}
