package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shingle-store/shingle/internal/extent"
)

// never is when something ended that has not, or of which nobody will be told.
const never = math.MaxInt64

// change is one change of shared files as a client made it: it gave the blocks that it covers a
// value at some moment between its beginning and its end.
type change struct {
	tag        uint64 // of the blocks it writes; 0: it makes them zero or takes them away
	begun, end int64  // by the run's clock of events
	durable    bool
	refused    bool // changed nothing
}

// registers is the model of the files that all clients share: each block of each file is a register
// with the value of one change, whoever else is at work. The size is not held against anything; what
// lies past it reads as zero.
type registers struct {
	blocks map[string][]([]*change) // name -> block -> changes that cover it
	byTag  map[uint64]*change
	now    int64
	tags   uint64
	all    []*change // since the last crash
}

// sharedBlocks is how long a shared file gets, in blocks.
const sharedBlocks = 48

func newRegisters(names []string) *registers {
	g := &registers{blocks: map[string][][]*change{}, byTag: map[uint64]*change{}}
	for _, n := range names {
		g.blocks[n] = make([][]*change, sharedBlocks)
	}
	return g
}

func (g *registers) tick() int64 {
	g.now++
	return g.now
}

// begin notes a change of blocks [from, to) of a file.
func (g *registers) begin(name string, from, to int, writes bool) *change {
	c := &change{begun: g.tick(), end: never}
	if writes {
		g.tags++
		c.tag = g.tags
		g.byTag[c.tag] = c
	}
	g.cover(c, name, from, to)
	g.all = append(g.all, c)
	return c
}

// cover adds blocks to what a change covers.
func (g *registers) cover(c *change, name string, from, to int) {
	for b := from; b < to; b++ {
		g.blocks[name][b] = append(g.blocks[name][b], c)
	}
}

// refuse takes a change back that took no effect.
func (g *registers) refuse(c *change) { c.refused = true }

// synced notes that everything that had ended by then is durable.
func (g *registers) synced(then int64, covers func(*change) bool) {
	for _, c := range g.all {
		if c.end <= then && covers(c) {
			c.durable = true
		}
	}
}

// check says why a read of a block, begun at some moment and ending now, cannot have found data; crashed
// if what was not durable may be gone. Short data is followed by zeros.
func (g *registers) check(name string, block int, data []byte, begun int64, crashed bool) error {
	full := make([]byte, extent.BlockSize)
	copy(full, data)
	var from *change
	tag := binary.LittleEndian.Uint64(full)
	if !bytes.Equal(full, make([]byte, extent.BlockSize)) {
		from = g.byTag[tag]
		if from == nil || !bytes.Equal(full, tagged(tag)) {
			return fmt.Errorf("block %d of %s holds what nobody wrote: it begins % x", block, name, full[:16])
		}
		if from.refused {
			return fmt.Errorf("block %d of %s holds write %d, which was refused", block, name, tag)
		}
	}
	// It must be the value of a change that nothing came after for sure.
	candidates := g.blocks[name][block]
	if from == nil {
		// Any of the changes that make zeros will do, or there having been none.
		if g.latest(candidates, nil, begun, crashed) {
			return nil
		}
		for _, c := range candidates {
			if c.tag == 0 && !c.refused && g.latest(candidates, c, begun, crashed) {
				return nil
			}
		}
		return fmt.Errorf("block %d of %s is zero, and something was written to it", block, name)
	}
	for _, c := range candidates {
		if c == from {
			if g.latest(candidates, c, begun, crashed) {
				return nil
			}
			return fmt.Errorf("block %d of %s holds write %d, and something newer was there before the read began", block, name, tag)
		}
	}
	return fmt.Errorf("block %d of %s holds write %d, which went elsewhere", block, name, tag)
}

// latest reports whether no change began after c had ended and had ended before begun; nil stands
// for before everything.
func (g *registers) latest(all []*change, c *change, begun int64, crashed bool) bool {
	end := int64(0)
	if c != nil {
		end = c.end
	}
	for _, o := range all {
		if o != c && !o.refused && o.begun > end && o.end < begun && (!crashed || o.durable) {
			return false
		}
	}
	return true
}

// adopt makes what was found after a crash, or by a quiet read, all there is.
func (g *registers) adopt(name string, block int, data []byte) {
	full := make([]byte, extent.BlockSize)
	copy(full, data)
	c := &change{begun: g.now, end: g.now, durable: true}
	if !bytes.Equal(full, make([]byte, extent.BlockSize)) {
		c = g.byTag[binary.LittleEndian.Uint64(full)]
		c.end, c.durable = min(c.end, g.now), true
	}
	g.blocks[name][block] = []*change{c}
}

// adopted forgets every change that no block holds any more.
func (g *registers) adopted() {
	g.all = nil
	g.byTag = map[uint64]*change{}
	for _, blocks := range g.blocks {
		for _, cs := range blocks {
			for _, c := range cs {
				if c.tag != 0 {
					g.byTag[c.tag] = c
				}
			}
		}
	}
}
