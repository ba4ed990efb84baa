package engine

import (
	"fmt"
	"strconv"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// corruption names a stored block that fails its checksum, or (want == got) a frame that does
// not decode although its blocks are good.
func (e *Engine) corruption(f *file, x store.Piece, block int64, want, got uint32) error {
	d := e.locate(f, x, block)
	d.Expected, d.Actual = want, got
	msg := fmt.Sprintf("block at address %d (zone %d offset %d) has crc32c %08x, want %08x", d.Address, d.Zone, d.ZoneOff, got, want)
	if want == got {
		msg = fmt.Sprintf("frame at address %d (zone %d offset %d) does not decode", d.Address, d.Zone, d.ZoneOff)
	}
	return e.dataLoss(d, errdefs.ReasonCorruption, msg, nil)
}

// readFailed names a stored block that cannot be read in any copy.
func (e *Engine) readFailed(f *file, x store.Piece, block int64, cause error) error {
	d := e.locate(f, x, block)
	msg := fmt.Sprintf("block at address %d (zone %d offset %d) cannot be read", d.Address, d.Zone, d.ZoneOff)
	return e.dataLoss(d, errdefs.ReasonDeviceIO, msg, cause)
}

func (e *Engine) dataLoss(d *CorruptionDetail, reason errdefs.Reason, msg string, cause error) error {
	e.o.Logger.Error("stored data is bad", "file", d.Name, "file_id", d.FileID, "offset", d.Offset, "length", d.Length, "detail", msg)
	msg = fmt.Sprintf("range [%d, +%d): %s", d.Offset, d.Length, msg)
	e.cond.set(Condition{
		Reason: "CORRUPTION", Severity: Error, Object: "files/" + d.Name, Since: e.o.Now(),
		Message: d.Name + ": " + msg,
		Advice:  "restore the range from another source: reads fail until it is rewritten or deleted; this stays listed until the engine is started again",
	})
	return &errdefs.Error{
		Kind: errdefs.Corruption, Reason: reason, Op: "engine.Read", Object: "file " + strconv.Quote(d.Name),
		Msg: msg, Detail: d, Err: cause,
		Meta: map[string]string{
			"file": d.Name, "offset": fmt.Sprint(d.Offset), "length": fmt.Sprint(d.Length),
			"address": fmt.Sprint(d.Address), "zone": fmt.Sprint(d.Zone),
		},
	}
}

// locate says where the piece's block lies and which bytes of the file hang on it: those of the
// block, or of its whole frame.
func (e *Engine) locate(f *file, x store.Piece, block int64) *CorruptionDetail {
	slot, zoneOff := e.split(x.Addr)
	d := &CorruptionDetail{
		Name: e.nameOf(f.id), FileID: f.id, Device: uint32(e.firstPlace(slot).Device), Zone: e.zoneOf(slot),
		Address: x.Addr + extent.Addr(block*extent.BlockSize), ZoneOff: zoneOff + block*extent.BlockSize,
	}
	bytes := pieceBytes(x, block)
	d.Offset, d.Length = bytes.Off, bytes.Len()
	return d
}

// pieceBytes returns the bytes of the file that hang on a stored block of the piece, counted from
// its first: those in the block, or in its whole frame.
func pieceBytes(x store.Piece, block int64) extent.Range {
	start, n := x.FileOff-x.Skip, int64(extent.BlockSize)
	if x.Codec == extent.CodecNone {
		start += block * extent.BlockSize
	} else {
		first := int64(0)
		for _, fr := range x.Frames {
			n = int64(fr.Raw)
			if first += fr.Blocks(); block < first {
				break
			}
			start += n
		}
	}
	return extent.Range{Off: start, End: start + n}.Intersect(extent.Range{Off: x.FileOff, End: x.FileOff + x.Len})
}
