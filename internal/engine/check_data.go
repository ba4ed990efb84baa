package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
)

// checkWindow is the most bytes of data read at once.
const checkWindow = 1 << 20

// maxNamed is how many file ranges the report of a bad run of blocks names.
const maxNamed = 8

// dataCheck reads stored blocks in address order, neighbouring extents in one request.
type dataCheck struct {
	*check
	tx  *store.Tx
	buf []byte
	// The window: blocks that follow each other in one zone, of one extent or several.
	group checkedGroup
	addr  extent.Addr // in the group's slot
	sums  []uint32
	xs    []store.Extent // that the window touches
}

// data holds every stored block that can be reached against its checksum. What cannot be, for
// want of a sound record or a zone, was reported before.
func (c *check) data(ctx context.Context, tx *store.Tx) error {
	d := &dataCheck{check: c, tx: tx, buf: slab.Aligned(checkWindow)}
	var stop error
	err := tx.Extents(0, func(x store.Extent) bool {
		slot := int64(x.Addr) / c.super.ZoneSize
		off := int64(x.Addr) % c.super.ZoneSize
		g, ok := c.groups[uint32(slot)]
		if !ok || slot>>32 != 0 {
			return true
		}
		end := min(off+x.Blocks*extent.BlockSize, g.readable())
		for at := off; at < end; {
			if stop = ctx.Err(); stop != nil {
				return false
			}
			at += d.add(g, x, at-off, end-at)
		}
		return true
	})
	d.verify()
	if stop != nil {
		return stop
	}
	return c.cutShort("data", err)
}

// add takes up to n bytes of x from at into the window, which is read when it is full or when what
// comes does not follow it. Answers the bytes taken.
func (d *dataCheck) add(g checkedGroup, x store.Extent, at, n int64) int64 {
	addr := x.Addr + extent.Addr(at)
	have := int64(len(d.sums)) * extent.BlockSize
	if have == checkWindow || have > 0 && (addr != d.addr+extent.Addr(have) || int64(addr)%d.super.ZoneSize == 0) {
		d.verify()
		have = 0
	}
	n = min(n, checkWindow-have)
	sums, err := d.tx.Checksums(addr, n/extent.BlockSize)
	if err != nil {
		return n // reported by the check of the metadata
	}
	if have == 0 {
		d.group, d.addr = g, addr
	}
	d.sums = append(d.sums, sums...)
	if len(d.xs) == 0 || d.xs[len(d.xs)-1].Addr != x.Addr {
		d.xs = append(d.xs, x)
	}
	return n
}

// verify reads the window from each copy, reports what is bad in it and empties it.
func (d *dataCheck) verify() {
	if len(d.sums) == 0 {
		return
	}
	off := int64(d.addr) % d.super.ZoneSize
	for _, c := range d.group.copies {
		if n := (c.readable - off) / extent.BlockSize; n > 0 {
			d.verifyCopy(c, off, d.sums[:min(n, int64(len(d.sums)))])
		}
	}
	d.sums, d.xs = d.sums[:0], d.xs[:0]
}

func (d *dataCheck) verifyCopy(c checkedCopy, off int64, sums []uint32) {
	p := d.buf[:len(sums)*extent.BlockSize]
	err := c.on.dev.ReadAt(c.zone, off, p)
	bad := func(i int) string {
		b := p[i*extent.BlockSize:][:extent.BlockSize]
		if err != nil { // which block is it?
			if berr := c.on.dev.ReadAt(c.zone, off+int64(i)*extent.BlockSize, b); berr != nil {
				return fmt.Sprintf("cannot be read (%v)", berr)
			}
		}
		if got := csum.Sum(b); got != sums[i] {
			return fmt.Sprintf("does not match its checksum (%08x, want %08x)", got, sums[i])
		}
		return ""
	}
	for i := 0; i < len(sums); {
		why := bad(i)
		first := i
		for i++; why != "" && i < len(sums) && bad(i) != ""; i++ {
		}
		if why != "" {
			d.spoiled(c, d.addr+extent.Addr(first*extent.BlockSize), int64(i-first), why)
		}
	}
}

// spoiled reports a run of bad blocks and the file ranges that hang on them.
func (d *dataCheck) spoiled(c checkedCopy, addr extent.Addr, blocks int64, why string) {
	end := addr + extent.Addr(blocks*extent.BlockSize)
	var files []string
	more := 0
	for _, x := range d.xs {
		if x.Addr >= end || x.End() <= addr {
			continue
		}
		_ = d.tx.BackRefs(x.Addr, min(end, x.End()), func(r store.BackRef) bool {
			from, to := max(addr, r.Addr), min(end, r.Addr+extent.Addr(r.Stored))
			switch {
			case from >= to:
			case len(files) == maxNamed:
				more++ // thousands of clones may share a block
			default:
				files = append(files, d.fileRange(r, from, to))
			}
			return true
		})
	}
	msg := fmt.Sprintf("block %s", why)
	if blocks > 1 {
		msg = fmt.Sprintf("%d blocks are bad; the first %s", blocks, why)
	}
	if more > 0 {
		files = append(files, fmt.Sprintf("and %d more", more))
	}
	object := fmt.Sprintf("%s offset %d", c.on.zoneName(c.zone), int64(addr)%d.super.ZoneSize)
	d.problem(object, "%s: %s", msg, strings.Join(files, ", "))
}

// fileRange names the bytes of a file that hang on the blocks [from, to) of a back-reference.
func (d *dataCheck) fileRange(r store.BackRef, from, to extent.Addr) string {
	name := fmt.Sprintf("file id %d", r.File)
	if path, err := d.tx.Path(r.File); err == nil {
		name = fmt.Sprintf("file %q", path)
	}
	length := int64(0)
	_ = d.tx.FileExtents(r.File, r.Off, r.Off+1, func(e store.FileExtent) bool {
		length = e.Len
		return false
	})
	pieces, err := d.tx.Map(r.File, r.Off, r.Off+length)
	if err != nil || len(pieces) != 1 {
		return name
	}
	x := pieces[0]
	first := pieceBytes(x, int64(from-x.Addr)/extent.BlockSize)
	last := pieceBytes(x, int64(to-x.Addr)/extent.BlockSize-1)
	return fmt.Sprintf("%s bytes [%d, %d)", name, first.Off, last.End)
}
