package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// NewExtent is an extent to be published: appended and flushed already.
type NewExtent struct {
	Addr   extent.Addr
	Blocks int64
	Codec  extent.Codec   // CodecNone: raw
	Frames []extent.Frame // nil when raw
	Sums   []uint32       // crc32c of each stored block
	// Length is how many file bytes it maps, from where the one before it ended. It ends
	// inside the last block (raw) or frame, or at its end.
	Length int64
}

// Delta is what a change of mappings did to byte counts.
type Delta struct {
	Allocated  int64            // logical bytes mapped, + or -
	Stored     int64            // stored bytes that the file refers to, + or - (Node.StoredBytes)
	Freed      map[uint32]int64 // slot -> stored bytes that died
	Added      map[uint32]int64 // slot -> stored bytes that came to life
	FreedBytes int64            // sum of Freed
	Cuts       int              // file extents that DropRange cut, or CloneRange cloned
}

// Merge adds o to d.
func (d *Delta) Merge(o Delta) {
	d.Allocated += o.Allocated
	d.Stored += o.Stored
	d.Cuts += o.Cuts
	for slot, n := range o.Freed {
		d.freed(slot, n)
	}
	for slot, n := range o.Added {
		d.added(slot, n)
	}
}

func (d *Delta) freed(slot uint32, n int64) {
	if d.Freed == nil {
		d.Freed = map[uint32]int64{}
	}
	d.Freed[slot] += n
	d.FreedBytes += n
}

func (d *Delta) added(slot uint32, n int64) {
	if d.Added == nil {
		d.Added = map[uint32]int64{}
	}
	d.Added[slot] += n
}

// InsertExtents publishes exts as the content of file from fileOff on: extents, mapping,
// back-references, checksums, and the block groups' live bytes and alloc_offset. The caller
// dropped the range before and puts the node (Node.Add) in the same transaction. Everything
// is checked before the first change: InvalidArgument for an extent that does not add up,
// Internal if the range or the address is still in use.
func (tx *Tx) InsertExtents(file uint64, fileOff int64, exts []NewExtent) (Delta, error) {
	var d Delta
	if err := tx.checkInsert(file, fileOff, exts); err != nil {
		return d, err
	}
	for i := range exts {
		n := &exts[i]
		u := newUnits(Extent{
			Addr: n.Addr, Blocks: n.Blocks, Codec: n.Codec, Frames: n.Frames,
			Birth: tx.CommitSequence(), Placement: tx.CommitSequence(),
		})
		if err := tx.addExtent(&u.Extent); err != nil {
			return d, err
		}
		if err := tx.putSums(n.Addr, n.Sums); err != nil {
			return d, err
		}
		s := span{0, n.Length}
		if err := tx.putMapping(u, u.fileExtent(file, fileOff, s), s); err != nil {
			return d, err
		}
		stored := n.Blocks * extent.BlockSize
		slot, off := tx.slotOf(n.Addr)
		if err := tx.addLive(uint32(slot), stored, off+stored); err != nil {
			return d, err
		}
		d.Allocated += n.Length
		d.Stored += stored
		d.added(uint32(slot), stored)
		fileOff += n.Length
	}
	return d, nil
}

func (tx *Tx) checkInsert(file uint64, fileOff int64, exts []NewExtent) error {
	const op = "store.InsertExtents"
	end := fileOff
	for i := range exts {
		n := &exts[i]
		if err := tx.checkNewExtent(n); err != nil {
			return err
		}
		end += n.Length
	}
	byAddr := slices.Clone(exts)
	slices.SortFunc(byAddr, func(a, b NewExtent) int { return cmp.Compare(a.Addr, b.Addr) })
	for i := 1; i < len(byAddr); i++ {
		if below := &byAddr[i-1]; below.Addr+extent.Addr(below.Blocks*extent.BlockSize) > byAddr[i].Addr {
			return errdefs.Invalid(op, "extents", "overlap each other")
		}
	}
	if fileOff < 0 || end > extent.MaxFileSize {
		return errdefs.Invalid(op, "offset", "is out of range")
	}
	var taken *FileExtent
	if err := tx.FileExtents(file, fileOff, end, func(e FileExtent) bool { taken = &e; return false }); err != nil {
		return err
	}
	if taken != nil {
		return internal(op, taken.object(), "is still mapped where new extents are to go")
	}
	return nil
}

func (tx *Tx) checkNewExtent(n *NewExtent) error {
	const op = "store.InsertExtents"
	x := Extent{Addr: n.Addr, Blocks: n.Blocks, Codec: n.Codec, Frames: n.Frames}
	if err := x.sane(); err != nil {
		return &errdefs.Error{Kind: errdefs.InvalidArgument, Op: op, Field: "extents", Err: err}
	}
	u := newUnits(x)
	if n.Length <= u.decodedAt(u.count()-1) || n.Length > u.decodedAt(u.count()) {
		return errdefs.Invalid(op, "length", fmt.Sprintf("%d bytes do not end inside the last block or frame", n.Length))
	}
	if int64(len(n.Sums)) != n.Blocks {
		return errdefs.Invalid(op, "sums", fmt.Sprintf("%d checksums for %d blocks", len(n.Sums), n.Blocks))
	}
	slot, off := tx.slotOf(n.Addr)
	if slot > max32 {
		return errdefs.Invalid(op, "address", "is out of range")
	}
	g, err := tx.BlockGroup(uint32(slot))
	if err != nil {
		return err
	}
	if off+n.Blocks*extent.BlockSize > g.Capacity {
		return errdefs.Invalid(op, "address", "the extent passes the end of its block group")
	}
	k, p, err := tx.cursor(bExtents).floor(key64(uint64(x.End() - 1)))
	if err != nil || k == nil {
		return err
	}
	below, err := decodeExtent(k, p)
	if err != nil {
		return badRecord(bExtents, k, err)
	}
	if below.End() > x.Addr {
		return internal(op, fmt.Sprintf("address %#x", uint64(x.Addr)), "the place is still in use")
	}
	return nil
}
