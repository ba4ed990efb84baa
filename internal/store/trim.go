package store

import (
	"maps"
	"math/bits"
	"slices"

	"github.com/shingle-store/shingle/internal/extent"
)

// SetTrimmed notes that the zone of a sequential block group is empty and was given back to the
// device, by a flush that is over. It changes nothing if the record is of another generation, or
// says that something was stored since.
func (tx *Tx) SetTrimmed(slot uint32, generation uint64) error {
	g, err := tx.BlockGroup(slot)
	if err != nil {
		return err
	}
	if g.Generation != generation || g.AllocOffset != 0 || g.LiveBytes != 0 || g.Flags&BGTrimmed != 0 {
		return nil
	}
	g.Flags |= BGTrimmed
	return tx.PutBlockGroup(g)
}

// SetTrimmedRun notes that the blocks of a conventional block group are free, and whether they were
// discarded, by a flush that is over, and not written since. Blocks that are part of an extent, or
// become so in this transaction, are not trimmed whatever is said of them.
func (tx *Tx) SetTrimmedRun(r Run, trimmed bool) error {
	for at, end := r.Off/extent.BlockSize, (r.Off+r.Len)/extent.BlockSize; at < end; {
		c, err := tx.chunk(r.Slot, uint32(at/chunkBlocks))
		if err != nil {
			return err
		}
		from := at % chunkBlocks
		to := min(chunkBlocks, from+end-at)
		c.trimmed.mark(from, to, trimmed)
		c.untrimmed.mark(from, to, !trimmed)
		at += to - from
		tx.mutations++
	}
	return nil
}

// trimmedBits are the blocks of one record of trim_state. All of a chunk has a short form.
type trimmedBits struct{ chunkBits }

var allBits = func() (b chunkBits) {
	b.mark(0, chunkBlocks, true)
	return b
}()

func (b *trimmedBits) encode() []byte {
	if b.chunkBits == allBits {
		return putUint(nil, 2, 1)
	}
	return b.chunkBits.encode()
}

func (b *trimmedBits) decode(p []byte) error {
	if err := b.chunkBits.decode(p); err != nil {
		return err
	}
	return eachField(p, func(f field) error {
		if f.num != 2 {
			return nil
		}
		var all uint64
		err := number(f, &all, max64)
		if all == 1 {
			b.chunkBits = allBits
		}
		return err
	})
}

// writeTrimmed brings trim_state up to date with what the transaction did to the chunks it touched.
func (tx *Tx) writeTrimmed() error {
	for _, id := range slices.Sorted(maps.Keys(tx.chunks)) {
		c := tx.chunks[id]
		key := chunkKey(c.slot, c.index)
		var b trimmedBits
		p, ok, err := tx.get(bTrimState, key)
		if err == nil && ok {
			err = b.decode(p)
		}
		if err != nil {
			if tx.broken != nil {
				return tx.broken
			}
			// What is not known to be trimmed is trimmed again.
			b, ok = trimmedBits{}, true
		}
		now := b
		for i := range now.chunkBits {
			now.chunkBits[i] = (b.chunkBits[i] | c.trimmed[i]) &^ (c.untrimmed[i] | c.touched[i] | c.now[i])
		}
		switch {
		case now.empty() && ok:
			err = tx.del(bTrimState, key)
		case !now.empty() && (now != b || err != nil):
			err = tx.put(bTrimState, key, now.encode())
		default:
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TrimmedRuns returns the runs of a conventional block group that are remembered as trimmed, in
// order, none next to another. A damaged record is passed over: that costs a discard.
func (tx *Tx) TrimmedRuns(slot uint32) (runs []Run, err error) {
	var b trimmedBits
	c := tx.cursor(bTrimState)
	for k, p, err := c.seek(chunkKey(slot, 0)); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			if c.at == nil {
				return nil, err
			}
			continue
		}
		s, index, ok := splitChunkKey(k)
		if !ok || s != slot {
			break
		}
		if b.decode(p) != nil {
			continue
		}
		runs = b.appendRuns(runs, slot, index)
	}
	return runs, nil
}

// appendRuns adds the set bits of a chunk to runs, joined with the last one where they touch.
func (b *chunkBits) appendRuns(runs []Run, slot, index uint32) []Run {
	base := int64(index) * chunkSpan
	for i, w := range b {
		for w != 0 {
			lo := bits.TrailingZeros64(w)
			n := bits.TrailingZeros64(^(w >> lo))
			w &^= ^uint64(0) >> (64 - n) << lo
			r := Run{slot, base + int64(i*64+lo)*extent.BlockSize, int64(n) * extent.BlockSize}
			if k := len(runs); k > 0 && runs[k-1].Slot == slot && runs[k-1].Off+runs[k-1].Len == r.Off {
				runs[k-1].Len += r.Len
				continue
			}
			runs = append(runs, r)
		}
	}
	return runs
}

// trimmed checks trim_state: every record belongs to a conventional block group, and marks no
// block that an extent holds.
func (c *checker) trimmed() error {
	s, err := c.stream(bTrimState)
	for ; err == nil && s.k != nil; err = s.next() {
		slot, index, ok := splitChunkKey(s.k)
		var b trimmedBits
		if !ok || b.decode(s.p) != nil {
			c.problem(bTrimState, s.k, "malformed record")
			continue
		}
		if g := c.groups[slot]; g == nil || g.Kind != KindConventional {
			c.problem(bTrimState, s.k, "block group %d is not there or not conventional", slot)
			continue
		}
		var used chunkBits
		p, ok, err := c.tx.get(bBitmaps, chunkKey(slot, index))
		if err != nil || ok && used.decode(p) != nil {
			continue // reported by the check of the bitmaps
		}
		n := 0
		for i := range used {
			n += bits.OnesCount64(used[i] & b.chunkBits[i])
		}
		if n > 0 {
			c.problem(bTrimState, s.k, "%d blocks that extents hold are marked as trimmed", n)
		}
	}
	return err
}
