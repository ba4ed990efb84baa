package label

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// FormatVersion is the version of labels and headers this package writes, and the latest it
// reads.
const FormatVersion = 1

const (
	labelMagic  = "SHNGLLBL"
	headerMagic = "SHNGLZON"
	crcAt       = extent.BlockSize - 4
)

// Label says whose a device is (docs/format.md 1.2).
type Label struct {
	Store      [16]byte // uuid of the store
	Device     uint32   // number of this device in the store, from 0
	Devices    uint32   // how many devices the store has
	Generation uint64   // start counter of the engine that wrote it, at least 1
	ZoneSize   int64    // bytes
	Zones      int      // conventional ones included
	Dialect    zone.Dialect
}

// Header is the first block of every zone of a block group (docs/format.md 1.3).
type Header struct {
	Store      [16]byte // uuid of the store
	Slot       uint32   // of the block group
	Generation uint64   // of the block group
	Device     uint32   // number of the device in the store
	Zone       int      // number of the zone on the device
	Class      uint8    // 1 data, 2 relocation, 3 log
	Copy       uint8    // from 0
}

// EncodeLabel returns l as one block of extent.BlockSize bytes, in memory of its own.
func EncodeLabel(l Label) []byte {
	le := binary.LittleEndian
	b := block(labelMagic)
	le.PutUint32(b[12:], l.Device)
	copy(b[16:], l.Store[:])
	le.PutUint64(b[32:], l.Generation)
	le.PutUint64(b[40:], uint64(l.ZoneSize))
	le.PutUint32(b[48:], uint32(l.Zones))
	le.PutUint32(b[52:], uint32(l.Dialect))
	le.PutUint32(b[56:], l.Devices)
	return seal(b)
}

// DecodeLabel reads what EncodeLabel made; bytes after the first block are not looked at.
// Errors: NotFound if b does not begin with a label's magic, Corruption if it does and the
// rest is short, damaged or makes no sense, Precondition for a later format version.
func DecodeLabel(b []byte) (Label, error) {
	const op = "label.DecodeLabel"
	if err := unseal(op, "label", labelMagic, b); err != nil {
		return Label{}, err
	}
	le := binary.LittleEndian
	l := Label{
		Device:     le.Uint32(b[12:]),
		Generation: le.Uint64(b[32:]),
		ZoneSize:   int64(le.Uint64(b[40:])),
		Zones:      int(le.Uint32(b[48:])),
		Dialect:    zone.Dialect(b[52]),
		Devices:    le.Uint32(b[56:]),
	}
	copy(l.Store[:], b[16:])
	d := le.Uint32(b[52:])
	switch {
	case d > math.MaxUint8 || l.Dialect != zone.ZNS && l.Dialect != zone.SMR:
		return Label{}, damaged(op, "label", fmt.Sprintf("unknown dialect %d", d))
	case l.ZoneSize <= 0 || l.ZoneSize%extent.BlockSize != 0:
		return Label{}, damaged(op, "label", fmt.Sprintf("zone size %d", l.ZoneSize))
	case l.Zones <= 0 || l.Zones > zone.MaxZones:
		return Label{}, damaged(op, "label", fmt.Sprintf("%d zones", l.Zones))
	case l.Device >= l.Devices:
		return Label{}, damaged(op, "label", fmt.Sprintf("device %d of %d", l.Device, l.Devices))
	case l.Generation == 0:
		return Label{}, damaged(op, "label", "generation 0")
	}
	return l, nil
}

// EncodeHeader returns h as one block of extent.BlockSize bytes, in memory of its own.
func EncodeHeader(h Header) []byte {
	le := binary.LittleEndian
	b := block(headerMagic)
	le.PutUint32(b[12:], h.Slot)
	copy(b[16:], h.Store[:])
	le.PutUint64(b[32:], h.Generation)
	le.PutUint32(b[40:], h.Device)
	le.PutUint32(b[44:], uint32(h.Zone))
	b[48], b[49] = h.Class, h.Copy
	return seal(b)
}

// DecodeHeader reads what EncodeHeader made. Errors are those of DecodeLabel.
func DecodeHeader(b []byte) (Header, error) {
	const op = "label.DecodeHeader"
	if err := unseal(op, "zone header", headerMagic, b); err != nil {
		return Header{}, err
	}
	le := binary.LittleEndian
	h := Header{
		Slot:       le.Uint32(b[12:]),
		Generation: le.Uint64(b[32:]),
		Device:     le.Uint32(b[40:]),
		Zone:       int(le.Uint32(b[44:])),
		Class:      b[48],
		Copy:       b[49],
	}
	copy(h.Store[:], b[16:])
	switch {
	case h.Class < 1 || h.Class > 3:
		return Header{}, damaged(op, "zone header", fmt.Sprintf("unknown class %d", h.Class))
	case h.Zone >= zone.MaxZones:
		return Header{}, damaged(op, "zone header", fmt.Sprintf("zone %d", h.Zone))
	}
	return h, nil
}

// block returns an aligned block with the magic and the version in it.
func block(magic string) []byte {
	b := aligned()
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], FormatVersion)
	return b
}

func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[crcAt:], csum.Sum(b[:crcAt]))
	return b
}

func unseal(op, what, magic string, b []byte) error {
	switch {
	case len(b) < len(magic) || string(b[:len(magic)]) != magic:
		return errdefs.New(errdefs.NotFound, "", op, "", "holds no Shingle "+what)
	case len(b) < extent.BlockSize:
		return damaged(op, what, fmt.Sprintf("%d bytes where a block belongs", len(b)))
	case csum.Sum(b[:crcAt]) != binary.LittleEndian.Uint32(b[crcAt:]):
		return damaged(op, what, "checksum does not match")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != FormatVersion {
		return errdefs.New(errdefs.Precondition, errdefs.ReasonUnknownFeature, op, "",
			fmt.Sprintf("%s has format version %d; this program knows %d", what, v, FormatVersion))
	}
	return nil
}

func damaged(op, what, why string) error {
	return errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, op, "", "damaged Shingle "+what+": "+why)
}
