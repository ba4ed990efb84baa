package store

import (
	"encoding/binary"
	"fmt"

	"github.com/shingle-store/shingle/internal/extent"
)

// sumsPerRecord is the most block checksums of a record: 1 MiB of data (docs/format.md 2.9).
const sumsPerRecord = 256

// sumRun is a checksum record; packed aliases the file or the caller's bytes.
type sumRun struct {
	addr   extent.Addr
	packed []byte
}

func (r *sumRun) blocks() int64    { return int64(len(r.packed) / sumSize) }
func (r *sumRun) end() extent.Addr { return r.addr + extent.Addr(r.blocks()*extent.BlockSize) }

// cut returns the part of the run in [from, to), which must lie within it.
func (r *sumRun) cut(from, to extent.Addr) sumRun {
	i, j := int64(from-r.addr)/extent.BlockSize, int64(to-r.addr)/extent.BlockSize
	return sumRun{from, r.packed[i*sumSize : j*sumSize]}
}

func decodeSums(key, p []byte) (r sumRun, err error) {
	k, ok := splitKey64(key, 1)
	if !ok || k[0]%extent.BlockSize != 0 || k[0] > max63/2 {
		return r, errWire
	}
	r.addr = extent.Addr(k[0])
	err = eachField(p, func(f field) (err error) {
		if f.num == 1 {
			r.packed, err = f.bytes(sumsPerRecord * sumSize)
		}
		return err
	})
	if err == nil && (len(r.packed) == 0 || len(r.packed)%sumSize != 0) {
		err = fmt.Errorf("%d bytes of checksums: %w", len(r.packed), errWire)
	}
	return r, err
}

func (tx *Tx) putSumRun(r sumRun) error {
	return tx.put(bChecksums, key64(uint64(r.addr)), putBytes(nil, 1, r.packed))
}

// putSums writes the checksums of the blocks from addr on.
func (tx *Tx) putSums(addr extent.Addr, sums []uint32) error {
	for len(sums) > 0 {
		n := min(len(sums), sumsPerRecord)
		packed := make([]byte, 0, n*sumSize)
		for _, s := range sums[:n] {
			packed = binary.LittleEndian.AppendUint32(packed, s)
		}
		if err := tx.putSumRun(sumRun{addr, packed}); err != nil {
			return err
		}
		addr += extent.Addr(n * extent.BlockSize)
		sums = sums[n:]
	}
	return nil
}

// sumRuns calls fn for the checksum records that overlap [from, to), which must be covered
// without a gap: Corruption else. fn must not change the bucket.
func (tx *Tx) sumRuns(from, to extent.Addr, fn func(r sumRun)) error {
	c := tx.cursor(bChecksums)
	at := from
	for k, p, err := c.floor(key64(uint64(from))); at < to; k, p, err = c.next() {
		if err != nil {
			return err
		}
		var r sumRun
		if k != nil {
			if r, err = decodeSums(k, p); err != nil {
				return badRecord(bChecksums, k, err)
			}
		}
		if k == nil || r.addr > at || r.end() <= at {
			return corrupt("store.Checksums", fmt.Sprintf("address %#x", uint64(at)), "no checksum is recorded there")
		}
		fn(r)
		at = r.end()
	}
	return nil
}

// Checksums returns the crc32c of the stored blocks [addr, addr+blocks*4096), all of which
// must be live.
func (tx *Tx) Checksums(addr extent.Addr, blocks int64) ([]uint32, error) {
	sums := make([]uint32, 0, blocks)
	end := addr + extent.Addr(blocks*extent.BlockSize)
	err := tx.sumRuns(addr, end, func(r sumRun) {
		r = r.cut(max(r.addr, addr), min(r.end(), end))
		for p := r.packed; len(p) > 0; p = p[sumSize:] {
			sums = append(sums, binary.LittleEndian.Uint32(p))
		}
	})
	return sums, err
}

// dropSums removes the checksums of [from, to) and keeps what lies around it in the records
// it touches.
func (tx *Tx) dropSums(from, to extent.Addr) error {
	var gone []extent.Addr
	var keep []sumRun
	err := tx.sumRuns(from, to, func(r sumRun) {
		if r.addr < from {
			keep = append(keep, r.cut(r.addr, from))
		} else {
			gone = append(gone, r.addr)
		}
		if r.end() > to {
			keep = append(keep, r.cut(to, r.end()))
		}
	})
	if err != nil {
		return err
	}
	for _, a := range gone {
		if err := tx.del(bChecksums, key64(uint64(a))); err != nil {
			return err
		}
	}
	for _, r := range keep {
		if err := tx.putSumRun(r); err != nil {
			return err
		}
	}
	return nil
}
