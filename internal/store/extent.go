package store

import (
	"encoding/binary"
	"fmt"
	"sort"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shingle-store/shingle/internal/extent"
)

// FileExtent maps the bytes [Off, Off+Len) of a file to part of an extent (docs/format.md
// 2.6). Off and Len have any alignment.
type FileExtent struct {
	File uint64
	Off  int64
	Len  int64
	Addr extent.Addr // of the first block (raw) or frame (compressed) it uses
	Skip int64       // decoded bytes of that unit before the range begins
}

// End returns Off + Len.
func (e *FileExtent) End() int64 { return e.Off + e.Len }

func (e *FileExtent) key() []byte { return key64(e.File, uint64(e.Off)) }

func (e *FileExtent) backRefKey() []byte { return key64(uint64(e.Addr), e.File, uint64(e.Off)) }

func (e *FileExtent) encode() []byte {
	b := putUint(nil, 1, uint64(e.Len))
	b = putUint(b, 2, uint64(e.Addr))
	return putUint(b, 3, uint64(e.Skip))
}

func decodeFileExtent(key, p []byte) (e FileExtent, err error) {
	k, ok := splitKey64(key, 2)
	if !ok || k[1] > maxPos {
		return e, errWire
	}
	e.File, e.Off = k[0], int64(k[1])
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &e.Len, maxPos)
		case 2:
			return number(f, &e.Addr, max63)
		case 3:
			return number(f, &e.Skip, extent.MaxFrameSize-1)
		}
		return nil
	})
	if err == nil && (e.Len == 0 || e.End() > maxPos || e.Addr%extent.BlockSize != 0) {
		err = fmt.Errorf("length or address is out of range: %w", errWire)
	}
	return e, err
}

// maxExtentBlocks is the most blocks of an extent, compressed ones included: a frame that
// does not shrink is kept raw.
const maxExtentBlocks = extent.MaxRangeSize / extent.BlockSize

// Extent is a run of stored blocks, all of them live (docs/format.md 2.7).
type Extent struct {
	Addr      extent.Addr
	Blocks    int64
	Codec     extent.Codec // CodecNone: raw, its units are blocks; else its units are Frames
	Frames    []extent.Frame
	Birth     uint64 // commit sequence at which its data was written
	Placement uint64 // commit sequence at which it was put here
	// Shared is set once more than the file and mapping it was written for refers to it.
	// While it is not, a part is dead as soon as that one mapping lets go, which is known
	// without looking at back-references.
	Shared bool
}

// End returns the address after the last block.
func (x *Extent) End() extent.Addr { return x.Addr + extent.Addr(x.Blocks*extent.BlockSize) }

func (x *Extent) encode() []byte {
	b := putUint(nil, 1, uint64(x.Blocks))
	b = putUint(b, 2, uint64(x.Codec))
	if len(x.Frames) > 0 {
		m := make([]byte, 0, 7*len(x.Frames))
		for _, f := range x.Frames {
			m = protowire.AppendVarint(m, uint64(f.Raw))
			m = protowire.AppendVarint(m, uint64(f.Stored))
			m = protowire.AppendVarint(m, uint64(f.Codec))
		}
		b = putBytes(b, 3, m)
	}
	b = putUint(b, 4, x.Birth)
	b = putUint(b, 5, x.Placement)
	if x.Shared {
		b = putUint(b, 6, 1)
	}
	return b
}

func decodeExtent(key, p []byte) (x Extent, err error) {
	k, ok := splitKey64(key, 1)
	if !ok || k[0]%extent.BlockSize != 0 || k[0] > max63/2 {
		return x, errWire
	}
	x.Addr = extent.Addr(k[0])
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &x.Blocks, maxExtentBlocks)
		case 2:
			return number(f, &x.Codec, max8)
		case 3:
			b, err := f.bytes(len(f.b))
			if err != nil {
				return err
			}
			x.Frames, err = decodeFrames(b)
			return err
		case 4:
			return number(f, &x.Birth, max64)
		case 5:
			return number(f, &x.Placement, max64)
		case 6:
			var shared uint8
			err := number(f, &shared, 1)
			x.Shared = shared == 1
			return err
		}
		return nil
	})
	if err != nil {
		return x, err
	}
	return x, x.sane()
}

// decodeFrames returns nil for a table without frames: that an extent has any says that it is compressed.
func decodeFrames(b []byte) ([]extent.Frame, error) {
	if len(b) == 0 {
		return nil, nil
	}
	frames := make([]extent.Frame, 0, len(b)/6+1)
	for len(b) > 0 {
		var v [3]uint64
		for i := range v {
			var n int
			if v[i], n = protowire.ConsumeVarint(b); n < 0 {
				return nil, fmt.Errorf("frame table is cut short: %w", errWire)
			}
			b = b[n:]
		}
		if v[0] == 0 || v[0] > extent.MaxFrameSize || v[1] == 0 || v[1] > extent.MaxFrameSize || v[2] > max8 {
			return nil, fmt.Errorf("frame is out of range: %w", errWire)
		}
		frames = append(frames, extent.Frame{Raw: uint32(v[0]), Stored: uint32(v[1]), Codec: extent.Codec(v[2])})
	}
	return frames, nil
}

// sane checks that the units add up to the blocks.
func (x *Extent) sane() error {
	if x.Blocks <= 0 || x.Blocks > maxExtentBlocks || x.Addr%extent.BlockSize != 0 {
		return fmt.Errorf("an extent of %d blocks: %w", x.Blocks, errWire)
	}
	if x.Codec == extent.CodecNone {
		if len(x.Frames) > 0 {
			return fmt.Errorf("a raw extent has frames: %w", errWire)
		}
		return nil
	}
	var blocks int64
	for _, f := range x.Frames {
		if f.Raw == 0 || f.Raw > extent.MaxFrameSize || f.Stored == 0 || f.Stored > extent.MaxFrameSize {
			return fmt.Errorf("frame is out of range: %w", errWire)
		}
		blocks += f.Blocks()
	}
	if blocks != x.Blocks {
		return fmt.Errorf("frames take %d blocks of an extent of %d: %w", blocks, x.Blocks, errWire)
	}
	return nil
}

// units gives the places of an extent's units: blocks of a raw extent, frames of another.
// Offsets are bytes from the start of the extent, stored (on the device) or decoded.
type units struct {
	Extent
	stored  []int64 // of frame i; one more at the end
	decoded []int64
}

func newUnits(x Extent) *units {
	u := &units{Extent: x}
	if x.Codec == extent.CodecNone {
		return u
	}
	n := len(x.Frames)
	at := make([]int64, 2*(n+1))
	u.stored, u.decoded = at[:n+1], at[n+1:]
	for i, f := range x.Frames {
		u.stored[i+1] = u.stored[i] + f.Blocks()*extent.BlockSize
		u.decoded[i+1] = u.decoded[i] + int64(f.Raw)
	}
	return u
}

func (u *units) raw() bool { return u.Codec == extent.CodecNone }

func (u *units) count() int {
	if u.raw() {
		return int(u.Blocks)
	}
	return len(u.Frames)
}

// storedAt and decodedAt return where unit i begins; i may be count().
func (u *units) storedAt(i int) int64 {
	if u.raw() {
		return int64(i) * extent.BlockSize
	}
	return u.stored[i]
}

func (u *units) decodedAt(i int) int64 {
	if u.raw() {
		return int64(i) * extent.BlockSize
	}
	return u.decoded[i]
}

// holding returns the unit that holds decoded byte d.
func (u *units) holding(d int64) int {
	if u.raw() {
		return int(d / extent.BlockSize)
	}
	return sort.Search(len(u.Frames), func(i int) bool { return u.decoded[i+1] > d })
}

// beginning returns the unit that begins at stored offset s.
func (u *units) beginning(s int64) (int, bool) {
	if u.raw() {
		return int(s / extent.BlockSize), s%extent.BlockSize == 0 && s >= 0 && s < u.Blocks*extent.BlockSize
	}
	i := sort.Search(len(u.Frames), func(i int) bool { return u.stored[i] >= s })
	return i, i < len(u.Frames) && u.stored[i] == s
}

// span is a file extent placed in its extent: decoded bytes [from, to).
type span struct{ from, to int64 }

// place checks that e lies within u, with skip inside its first unit.
func (u *units) place(e *FileExtent) (span, error) {
	if e.Addr >= u.Addr {
		if i, ok := u.beginning(int64(e.Addr - u.Addr)); ok {
			from := u.decodedAt(i) + e.Skip
			if from < u.decodedAt(i+1) && from+e.Len <= u.decodedAt(u.count()) {
				return span{from, from + e.Len}, nil
			}
		}
	}
	return span{}, corrupt("store.FileExtents", e.object(), fmt.Sprintf("does not lie within the extent at %#x", uint64(u.Addr)))
}

func (e *FileExtent) object() string { return fmt.Sprintf("file %d offset %d", e.File, e.Off) }

// touched returns the units [first, last] that s uses; s is not empty.
func (u *units) touched(s span) (first, last int) { return u.holding(s.from), u.holding(s.to - 1) }

// fileExtent makes the file extent that maps decoded bytes s at off.
func (u *units) fileExtent(file uint64, off int64, s span) FileExtent {
	i := u.holding(s.from)
	return FileExtent{
		File: file, Off: off, Len: s.to - s.from,
		Addr: u.Addr + extent.Addr(u.storedAt(i)), Skip: s.from - u.decodedAt(i),
	}
}

// storedLen returns the stored bytes of the units that s uses.
func (u *units) storedLen(s span) int64 {
	first, last := u.touched(s)
	return u.storedAt(last+1) - u.storedAt(first)
}

// extentAt returns the extent that holds address a; Corruption if there is none.
func (tx *Tx) extentAt(a extent.Addr) (*units, error) {
	k, p, err := tx.cursor(bExtents).floor(key64(uint64(a)))
	if err != nil {
		return nil, err
	}
	if k != nil {
		x, err := decodeExtent(k, p)
		if err != nil {
			return nil, badRecord(bExtents, k, err)
		}
		if a < x.End() {
			return newUnits(x), nil
		}
	}
	return nil, corrupt("store.extentAt", fmt.Sprintf("address %#x", uint64(a)), "no extent is recorded there")
}

func (tx *Tx) putExtent(x *Extent) error { return tx.put(bExtents, key64(uint64(x.Addr)), x.encode()) }

// addExtent writes the record of an extent where there was none.
func (tx *Tx) addExtent(x *Extent) error {
	if err := tx.putExtent(x); err != nil {
		return err
	}
	tx.super.Totals.replace(Totals{}, x.totals())
	return tx.markBlocks(x.Addr, x.Blocks, true)
}

// removeExtent removes the record of x, which is there.
func (tx *Tx) removeExtent(x *Extent) error {
	if err := tx.del(bExtents, key64(uint64(x.Addr))); err != nil {
		return err
	}
	tx.super.Totals.replace(x.totals(), Totals{})
	return tx.markBlocks(x.Addr, x.Blocks, false)
}

// putMapping writes e, which lies at s in u, with its back-reference.
func (tx *Tx) putMapping(u *units, e FileExtent, s span) error {
	if err := tx.put(bFileExtents, e.key(), e.encode()); err != nil {
		return err
	}
	return tx.put(bBackRefs, e.backRefKey(), putUint(nil, 1, uint64(u.storedLen(s))))
}

func (tx *Tx) delMapping(e FileExtent) error {
	if err := tx.del(bFileExtents, e.key()); err != nil {
		return err
	}
	return tx.del(bBackRefs, e.backRefKey())
}

// FileExtents calls fn for the file extents of file that overlap [off, end), in order, until
// it returns false. They are not clipped. fn must not change the file's mapping.
func (tx *Tx) FileExtents(file uint64, off, end int64, fn func(FileExtent) bool) error {
	if off < 0 || off >= end {
		return nil
	}
	c := tx.cursor(bFileExtents)
	k, p, err := c.floor(key64(file, uint64(off)))
	if err == nil && (k == nil || binary.BigEndian.Uint64(k) != file) {
		k, p, err = c.seek(key64(file, uint64(off)))
	}
	for ; k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		e, err := decodeFileExtent(k, p)
		if err != nil {
			return badRecord(bFileExtents, k, err)
		}
		if e.File != file || e.Off >= end {
			return nil
		}
		if e.End() > off && !fn(e) {
			return nil
		}
	}
	return nil
}

// Extents calls fn for the extents with addresses >= from in address order until it returns
// false.
func (tx *Tx) Extents(from extent.Addr, fn func(Extent) bool) error {
	c := tx.cursor(bExtents)
	for k, p, err := c.seek(key64(uint64(from))); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		x, err := decodeExtent(k, p)
		if err != nil {
			return badRecord(bExtents, k, err)
		}
		if !fn(x) {
			return nil
		}
	}
	return nil
}

// ExtentsIn calls fn for the extents that overlap [from, to) in address order until it returns false.
// They are not clipped. fn must not change extents.
func (tx *Tx) ExtentsIn(from, to extent.Addr, fn func(Extent) bool) error {
	below, ok, err := tx.LastExtent(0, from)
	if err != nil || ok && below.End() > from && !fn(below) {
		return err
	}
	return tx.Extents(from, func(x Extent) bool { return x.Addr < to && fn(x) })
}
