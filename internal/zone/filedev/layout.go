package filedev

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// The layout of the file, docs/format.md 3.
const (
	magic   = "SHNGLDEV"
	version = 1

	headerSize = extent.BlockSize
	crcAt      = headerSize - 4

	pageSize       = extent.BlockSize
	pageHead       = 16
	entrySize      = 8
	entriesPerPage = (pageSize - pageHead) / entrySize

	// dataAlign keeps the zones on borders that file systems like to allocate at.
	dataAlign = 1 << 20
)

// layout says where things are in the file.
type layout struct {
	geo   zone.Geometry
	pages int   // table pages in one slot
	data  int64 // offset of zone 0
}

func layoutOf(g zone.Geometry) layout {
	l := layout{geo: g, pages: (g.Zones + entriesPerPage - 1) / entriesPerPage}
	end := l.pageOffset(l.pages, 1)
	l.data = (end + dataAlign - 1) / dataAlign * dataAlign
	return l
}

// pageOffset returns where a table page's slot lies: the two slots of a page are neighbours.
func (l layout) pageOffset(page, slot int) int64 {
	return headerSize + int64(2*page+slot)*pageSize
}

// zoneOffset returns where the zone's data begins.
func (l layout) zoneOffset(zone int) int64 { return l.data + int64(zone)*l.geo.ZoneSize }

// fileSize returns the size of the file, holes included.
func (l layout) fileSize() int64 { return l.data + l.geo.DeviceBytes() }

// checkGeometry refuses what this format has no room for.
func checkGeometry(g zone.Geometry) error {
	if err := g.Validate(); err != nil {
		return err
	}
	if g.ZoneCapacity/extent.BlockSize > math.MaxUint32 {
		return errdefs.Invalid("filedev.Create", "ZoneCapacity",
			"ZoneCapacity is more than 2^32-1 blocks, which a device file cannot record")
	}
	if int64(g.MaxOpen) > math.MaxUint32 || int64(g.MaxActive) > math.MaxUint32 {
		return errdefs.Invalid("filedev.Create", "MaxOpen", "limits must fit 32 bits")
	}
	return nil
}

func encodeHeader(l layout, b []byte) {
	le := binary.LittleEndian
	clear(b[:headerSize])
	copy(b, magic)
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], uint32(l.geo.Dialect))
	le.PutUint64(b[16:], uint64(l.geo.ZoneSize))
	le.PutUint64(b[24:], uint64(l.geo.ZoneCapacity))
	le.PutUint32(b[32:], uint32(l.geo.Zones))
	le.PutUint32(b[36:], uint32(l.geo.Conventional))
	le.PutUint32(b[40:], uint32(l.geo.MaxOpen))
	le.PutUint32(b[44:], uint32(l.geo.MaxActive))
	le.PutUint64(b[48:], uint64(l.geo.AppendLimit))
	le.PutUint64(b[56:], uint64(l.geo.LastZoneSize))
	le.PutUint64(b[64:], uint64(l.data))
	le.PutUint32(b[crcAt:], csum.Sum(b[:crcAt]))
}

// The ways a header can be wrong; Open turns them into a sentence about the file.
var (
	errForeign = fmt.Errorf("no magic %q", magic)
	errTorn    = fmt.Errorf("header checksum does not match")
	errVersion = fmt.Errorf("unknown format version")
)

// decodeHeader reads a header of headerSize bytes.
func decodeHeader(b []byte) (layout, error) {
	le := binary.LittleEndian
	if len(b) != headerSize || string(b[:8]) != magic {
		return layout{}, errForeign
	}
	if csum.Sum(b[:crcAt]) != le.Uint32(b[crcAt:]) {
		return layout{}, errTorn
	}
	if v := le.Uint32(b[8:]); v != version {
		return layout{}, fmt.Errorf("%w %d", errVersion, v)
	}
	if d := le.Uint32(b[12:]); d > math.MaxUint8 {
		return layout{}, fmt.Errorf("unknown dialect %d", d)
	}
	g := zone.Geometry{
		Dialect:      zone.Dialect(b[12]),
		ZoneSize:     int64(le.Uint64(b[16:])),
		ZoneCapacity: int64(le.Uint64(b[24:])),
		Zones:        int(le.Uint32(b[32:])),
		Conventional: int(le.Uint32(b[36:])),
		MaxOpen:      int(le.Uint32(b[40:])),
		MaxActive:    int(le.Uint32(b[44:])),
		AppendLimit:  int64(le.Uint64(b[48:])),
		LastZoneSize: int64(le.Uint64(b[56:])),
	}
	if err := checkGeometry(g); err != nil {
		return layout{}, err
	}
	l := layoutOf(g)
	if at := le.Uint64(b[64:]); at != uint64(l.data) {
		return layout{}, fmt.Errorf("data is recorded at %d and belongs at %d", at, l.data)
	}
	return l, nil
}

// entry is what the table keeps of a zone.
type entry struct {
	end       int64 // end of the written data, bytes from the zone's start
	cond      zone.Condition
	finished  bool
	allocated bool // the file has space for the zone's whole capacity
}

const (
	flagFinished  = 1
	flagAllocated = 2
)

func putEntry(b []byte, e entry) {
	binary.LittleEndian.PutUint32(b, uint32(e.end/extent.BlockSize))
	b[4] = byte(e.cond)
	b[5] = 0
	if e.finished {
		b[5] |= flagFinished
	}
	if e.allocated {
		b[5] |= flagAllocated
	}
	b[6], b[7] = 0, 0
}

func getEntry(b []byte) entry {
	return entry{
		end:       int64(binary.LittleEndian.Uint32(b)) * extent.BlockSize,
		cond:      zone.Condition(b[4]),
		finished:  b[5]&flagFinished != 0,
		allocated: b[5]&flagAllocated != 0,
	}
}

// sealPage completes a page whose entries are in place.
func sealPage(b []byte, page int, seq uint64) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], uint32(page))
	le.PutUint64(b[8:], seq)
	le.PutUint32(b, csum.Sum(b[4:pageSize]))
}

// openPage checks a page read from the file and returns its sequence number. A page that was
// never written or is torn is not ok.
func openPage(b []byte, page int) (seq uint64, ok bool) {
	le := binary.LittleEndian
	if le.Uint32(b) != csum.Sum(b[4:pageSize]) || le.Uint32(b[4:]) != uint32(page) {
		return 0, false
	}
	seq = le.Uint64(b[8:])
	return seq, seq > 0
}
