package store

import (
	"math/bits"

	"github.com/shingle-store/shingle/internal/extent"
)

// bitmapCheck holds the bitmaps of conventional block groups against the extents, which come in
// address order. It keeps one chunk.
type bitmapCheck struct {
	*checker
	records *stream
	slot    uint32
	index   uint32
	held    chunkBits // by extents, of the chunk at hand
}

func (c *checker) bitmaps() (*bitmapCheck, error) {
	s, err := c.stream(bBitmaps)
	return &bitmapCheck{checker: c, records: s}, err
}

// extent notes the blocks of x.
func (c *bitmapCheck) extent(x *Extent) error {
	slot, off := c.tx.slotOf(x.Addr)
	g := c.groups[uint32(slot)]
	if g == nil || slot > max32 || g.Kind != KindConventional {
		return nil
	}
	for at, end := off/extent.BlockSize, off/extent.BlockSize+x.Blocks; at < end; {
		if err := c.to(uint32(slot), uint32(at/chunkBlocks)); err != nil {
			return err
		}
		from := at % chunkBlocks
		n := min(chunkBlocks-from, end-at)
		c.held.mark(from, from+n, true)
		at += n
	}
	return nil
}

// to makes the chunk the one at hand, when the one before is complete.
func (c *bitmapCheck) to(slot, index uint32) error {
	if slot == c.slot && index == c.index {
		return nil
	}
	err := c.flush()
	c.slot, c.index = slot, index
	return err
}

// flush compares the chunk at hand with its record, and reports records before it, which no extent
// stands behind.
func (c *bitmapCheck) flush() error {
	for ; c.records.k != nil; c.records.next() {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		slot, index, ok := splitChunkKey(c.records.k)
		if ok && (slot > c.slot || slot == c.slot && index > c.index) {
			break
		}
		var b, none chunkBits
		if err := b.decode(c.records.p); err != nil || !ok {
			c.problem(bBitmaps, c.records.k, "malformed record")
			continue
		}
		if slot == c.slot && index == c.index {
			c.compare(c.records.k, &b, &c.held)
			c.held = chunkBits{}
			continue
		}
		if g := c.groups[slot]; g == nil || g.Kind != KindConventional {
			c.problem(bBitmaps, c.records.k, "block group %d is not there or not conventional", slot)
			continue
		}
		c.compare(c.records.k, &b, &none)
	}
	if !c.held.empty() {
		c.compare(chunkKey(c.slot, c.index), &chunkBits{}, &c.held)
		c.held = chunkBits{}
	}
	return nil
}

// end compares the last chunk and reports the records that are left.
func (c *bitmapCheck) end() error {
	if err := c.flush(); err != nil {
		return err
	}
	c.slot, c.index = max32, max32
	return c.flush()
}

// compare reports how the marks differ from what extents hold: a free mark on a block that is held
// would have it written over, the other way round it is lost to the store.
func (c *bitmapCheck) compare(k []byte, marked, held *chunkBits) {
	free, lost := 0, 0
	first := -1
	for i := range held {
		free += bits.OnesCount64(held[i] &^ marked[i])
		lost += bits.OnesCount64(marked[i] &^ held[i])
		if d := held[i] ^ marked[i]; d != 0 && first < 0 {
			first = i*64 + bits.TrailingZeros64(d)
		}
	}
	if first >= 0 {
		c.problem(bBitmaps, k, "%d blocks that extents hold are marked free, %d that none holds as in use; the first is block %d of the chunk",
			free, lost, first)
	}
}
