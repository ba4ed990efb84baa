package zone

import "github.com/shingle-store/shingle/internal/errdefs"

// Dialect selects between the two families of zoned devices where their rules differ.
type Dialect uint8

// The dialects; ids are on media (docs/format.md 1.2).
const (
	ZNS Dialect = 1 // NVMe zoned namespaces: active limit, capacity <= size, native append
	SMR Dialect = 2 // ZBC/ZAC host-managed: open limit only, capacity == size, append emulated
)

// Geometry describes a device. All sizes are bytes. The zero limit means no limit.
type Geometry struct {
	Dialect      Dialect
	ZoneSize     int64 // distance between zone starts
	ZoneCapacity int64 // usable bytes of a zone, <= ZoneSize; == ZoneSize with SMR
	Zones        int   // number of zones, conventional ones included
	Conventional int   // the first so many zones are conventional
	MaxOpen      int   // implicitly + explicitly open zones; 0: no limit
	MaxActive    int   // open + closed zones; 0: no limit; always 0 with SMR
	AppendLimit  int64 // most bytes of one append; 0: no limit
	// LastZoneSize is the size of a last zone that is shorter than the others; 0: it is not.
	// Its capacity is min(ZoneCapacity, LastZoneSize).
	LastZoneSize int64
}

// Condition is the condition of a zone.
type Condition uint8

// The conditions, as ZBC and ZNS name them.
const (
	NotWP        Condition = iota // conventional: has no write pointer
	Empty                         // write pointer at the start
	ImplicitOpen                  // opened by a write; the device may close it to open another
	ExplicitOpen                  // opened by command; never closed by the device
	Closed                        // active, not open
	Full                          // takes no writes until reset; its write pointer means nothing
	ReadOnly                      // failed: readable for good, never writable
	Offline                       // failed: neither
)

// Zone is one entry of a zone report. Offsets are bytes from the start of the zone.
type Zone struct {
	Index    int
	Size     int64
	Capacity int64
	// WP is the write pointer; Capacity when Full through writing, Size when finished or
	// conventional, where it was when ReadOnly or Offline. It covers writes under way.
	WP        int64
	Condition Condition
	// Resets counts how often the zone was emptied since the device object was opened; a
	// reset of an Empty zone is not counted.
	Resets uint64
}

// Stats are exact counts since the device object was opened, and the peaks reached.
type Stats struct {
	Reads, ReadBytes     uint64
	Writes, Appends      uint64
	WrittenBytes         uint64 // through Write and Append
	Flushes              uint64
	Opens, Closes        uint64 // commands, not implicit transitions
	Finishes, Resets     uint64
	Evictions            uint64 // implicitly open zones closed by the device to open another
	ImplicitOpens        uint64
	Discards             uint64 // commands; see Discarder
	DiscardRanges        uint64 // carried by them
	DiscardedBytes       uint64
	Releases             uint64 // commands
	PeakOpen, PeakActive int
	RefusedTooManyOpen   uint64
	RefusedTooManyActive uint64
}

// Device is a zoned block device. All offsets and lengths are bytes and multiples of
// extent.BlockSize. Every method may be called at any time from several goroutines; calls on
// one zone take effect in some order. A method returns when the device has acknowledged the
// command, which for writes, finishes and resets means nothing about durability before Flush.
//
// Errors are *errdefs.Error of kind Device wrapping one of the sentinels below, or
// InvalidArgument for a malformed call (negative, unaligned to the block, empty).
type Device interface {
	// Geometry never changes while the device is open.
	Geometry() Geometry
	// Report describes zones [first, first+n); n < 0 means all from first on.
	Report(first, n int) ([]Zone, error)
	// ReadAt fills p from off in the zone. Reading at or past the write pointer, past the
	// capacity, across zones or where a write of a sequential zone has not returned yet is
	// ErrInvalidRead, because for this engine it is always a bug. A finished zone reads as
	// zeros where it was not written. p is the caller's; with direct I/O a p that is not
	// aligned to the block costs a copy. After an error the content of p means nothing.
	ReadAt(zone int, off int64, p []byte) error
	// Write puts bufs at off, which must equal the write pointer. The buffers' total length
	// must be a multiple of the block; they are the caller's again on return.
	Write(zone int, off int64, bufs [][]byte) error
	// Append puts bufs at the write pointer and answers where that was. Concurrent appends to
	// one zone land in some order without gaps. After ErrMedia the write pointer may have
	// moved by none, part or all of the length, over bytes that mean nothing; a refusal moves
	// it not at all. Devices of the SMR dialect emulate Append. bufs are as in Write.
	Append(zone int, bufs [][]byte) (off int64, err error)
	// Flush makes everything acknowledged before the call durable. After an error nothing
	// acknowledged since the last successful Flush may be believed durable, and a later
	// successful Flush says nothing about it.
	Flush() error
	// Open opens the zone explicitly: it keeps its open slot until CloseZone, Finish, Reset or
	// Full.
	Open(zone int) error
	// Finish makes the zone Full and gives its slots back. An Empty zone needs a free active
	// and open slot for it, a Closed one a free open slot.
	Finish(zone int) error
	// CloseZone gives the open slot back and keeps the active one.
	CloseZone(zone int) error
	// Reset makes the zone Empty and destroys its data at once. It waits for reads and writes
	// of the zone that are under way.
	Reset(zone int) error
	// Stats is a snapshot of the counters.
	Stats() Stats
	// Close releases the device. It does not flush.
	Close() error
}

// The sentinels of a device's refusals and failures. Test with errors.Is.
var (
	ErrNoDiscard         = sentinel("device cannot discard")
	ErrUnalignedWrite    = sentinel("write does not start at the write pointer")
	ErrBoundary          = sentinel("request crosses the zone's capacity or border")
	ErrZoneFull          = sentinel("zone is full")
	ErrZoneReadOnly      = sentinel("zone is read-only")
	ErrZoneOffline       = sentinel("zone is offline")
	ErrTooManyActive     = sentinel("too many active zones")
	ErrTooManyOpen       = sentinel("too many open zones")
	ErrInvalidTransition = sentinel("command is not legal in the zone's condition")
	ErrInvalidRead       = sentinel("read at or past the write pointer")
	ErrConventional      = sentinel("command is not legal on a conventional zone")
	ErrAppendTooLarge    = sentinel("append is larger than the append limit")
	ErrMedia             = sentinel("medium error")
	ErrPowerLost         = sentinel("device has lost power")
	ErrClosed            = sentinel("device is closed")
)

func sentinel(msg string) error {
	return &errdefs.Error{Kind: errdefs.Device, Reason: errdefs.ReasonDeviceIO, Msg: msg}
}
