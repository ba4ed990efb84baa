package engine

import (
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
)

// File is what the engine knows of a file or directory at one moment.
type File struct {
	Name        string // path from the root, without a leading slash
	Directory   bool
	ID          uint64 // given once, never reused
	Generation  int64  // grows with every change, never repeats
	Size        int64  // bytes, received but not yet durable ones included
	Allocated   int64  // logical bytes not in holes, durable state
	Stored      int64  // bytes on the device or inline, durable state
	Dirty       int64  // bytes received, not durable yet
	Created     time.Time
	Updated     time.Time
	Mtime       time.Time // set by clients; zero: not set
	Mode        *uint32
	Attributes  map[string]string // shared: read only
	Compression extent.Codec      // in effect for new data
	ContentCRC  *uint32           // crc32c of the whole content, only after an unchanged replace
	RequestID   string
	SyncFailed  bool // some range could not be made durable
}

// Preconditions are checked before anything changes; nil fields are not. A miss is a
// Precondition error with reason PRECONDITION and the actual values in Meta.
type Preconditions struct {
	Generation *int64 // 0: the name must not exist
	FileID     *uint64
	Size       *int64
}

// Ref names a file by path or, if ID is not 0, by id.
type Ref struct {
	Name string
	ID   uint64
}

// Freed says what a change gave back. Freed bytes are free now or after a zone reset that
// is under way; pending ones come back by reclaim or when the last reader has gone.
type Freed struct {
	FreedBytes   int64
	PendingBytes int64
}

// CreateRequest makes a file or directory; missing parents are made too.
type CreateRequest struct {
	Name        string
	Directory   bool
	Attributes  map[string]string
	Mtime       time.Time
	Mode        *uint32
	Compression *extent.Codec // nil: the store's default
	// RequestID makes a retry safe: an existing file made by the same id is the answer.
	RequestID string
	// Exclusive refuses an existing file (AlreadyExists); else it is the answer.
	Exclusive bool
}

// ListRequest asks for entries under a directory path in byte order of whole paths, where a
// directory sorts as its name with a slash at the end.
type ListRequest struct {
	Directory  string // "" is the root
	Recursive  bool
	StartAfter string // path (directories with a slash at the end); need not exist; "" from the beginning
	Limit      int    // at most so many; 0: 1000
}

// DeleteRequest removes a name. A directory must be empty.
type DeleteRequest struct {
	Name         string
	If           Preconditions
	AllowMissing bool
}

// RenameRequest gives a node another name.
type RenameRequest struct {
	Name, NewName string
	Replace       bool
	If, IfTarget  Preconditions
}

// SyncResult says which run of the engine answered, and the commit that made all durable.
type SyncResult struct {
	BootID         uint64
	CommitSequence uint64
}

// WriteMode is how a Writer's bytes reach the file.
type WriteMode uint8

// The write modes.
const (
	InPlace WriteMode = iota // bytes are visible in the named file as they are acknowledged
	Replace                  // bytes gather in an unnamed file that takes the name at Finish
)

// WriterOptions opens a Writer.
type WriterOptions struct {
	Name string
	Mode WriteMode
	If   Preconditions
	// MustExist refuses a missing file instead of making it (InPlace).
	MustExist bool
	// WriteID names this write: a newer Writer with the same id fences the older one (its
	// calls answer Aborted / FENCED) and goes on where that one stood. "": not resumable.
	WriteID string
	// MaxWait bounds a wait for writeback or space without progress; 0: Options.MaxWait.
	MaxWait      time.Duration
	ExpectedSize *int64 // checked by Finish
	Compression  *extent.Codec
	NoDelalloc   bool
	Attributes   map[string]string
	Mtime        time.Time
	FileMode     *uint32 // POSIX mode bits
}

// WriteState says why bytes are not being taken.
type WriteState uint8

// The write states.
const (
	Accepting WriteState = iota
	WaitingWriteback
	WaitingSpace
	Finished
)

// ReadRequest opens a Reader.
type ReadRequest struct {
	Ref
	Offset      int64
	Length      *int64 // nil: to the end of the file
	If          Preconditions
	ReportHoles bool
}

// Piece is a part of a file as read: data, or a hole (Data nil, Hole > 0).
type Piece struct {
	Offset int64
	Data   []byte // at most 1 MiB; valid until the next call of Next or Close
	CRC    uint32 // crc32c of Data
	Hole   int64  // bytes
}

// CorruptionDetail names stored bytes that fail their checksum; it is the Detail of
// Corruption errors from Read and from writes that cover a bad block in part.
type CorruptionDetail struct {
	Name     string
	FileID   uint64
	Offset   int64 // in the file, bytes
	Length   int64
	Address  extent.Addr
	Device   uint32
	Zone     int
	ZoneOff  int64
	Expected uint32
	Actual   uint32
}

// Usage is the state of space; at every moment
// Total = Used + Free + Unusable + Reserved + Quarantined.
type Usage struct {
	Total, Used, Free, Unusable, Reserved, Quarantined int64

	Reclaimable   int64 // part of Unusable that zone resets give back with no relocation
	Relocatable   int64 // part of Unusable that comes back when live data in the same zones is moved
	Stuck         int64 // part of Unusable that does not, while its zones hold bad blocks
	Tails         int64 // part of Unusable that was never written: its zones were finished early
	Failed        int64 // part of Unusable that was lost in failed writes, or copied for nothing
	Lent          int64 // part of Unusable that is taken by copies of live data that is being moved
	Pending       int64 // part of Reserved that is placed and not durable yet
	Writable      int64 // estimate of what can still be written, reclaim included
	Reclaiming    bool  // live data is being moved, or zones are being reset, now
	Dirty         int64 // bytes received, not durable yet
	Raw           int64 // what the devices that are there say
	Active        int   // active zones as the device counts them
	MaxActive     int   // 0: no limit
	Open, MaxOpen int
	Metadata      int64 // bytes in use in the metadata file
	MetadataMax   int64
	// What is on record, from Totals only. Files are those with a name; extents are all, those of
	// unfinished replaces and of deleted files whose space is not freed yet too.
	Files   int64
	Logical int64 // sum of the files' sizes in bytes, at most math.MaxInt64
	Stored  int64 // stored bytes of extents
	Inline  int64 // stored bytes kept in the files' records
	Extents int64
}

// ZoneInfo is a zone as the device and the allocator see it.
type ZoneInfo struct {
	zone.Zone
	Device      uint32
	Position    int   // among the zones of all devices that are there, by device number
	Start       int64 // device offset in bytes
	BlockGroup  int64 // slot, -1: none
	Live        int64
	Unusable    int64
	Quarantined bool
	// Use is "data" with a block group on it, "label", "conventional" for one that is left unused.
	Use string
}

// BlockGroupInfo is a block group as the allocator sees it, and where it lies.
type BlockGroupInfo struct {
	alloc.BlockGroup
	Places []array.Place // one a copy
}

// Condition is something that is wrong now.
type Condition struct {
	Reason   string // stable UPPER_SNAKE
	Severity Severity
	Object   string // "devices/0/zones/17"
	Message  string
	Advice   string
	Since    time.Time
}

// Severity ranks conditions.
type Severity uint8

// The severities.
const (
	Info Severity = iota + 1
	Warning
	Error
)

// ServerInfo describes this run of the engine.
type ServerInfo struct {
	StoreUUID     [16]byte
	BootID        uint64
	StartTime     time.Time
	FormatVersion uint32
	Copies        int // of data: 1 or 2
	Compression   extent.Codec
	NoDelalloc    bool
	ReadOnly      bool
	DirtyLimit    int64
	MaxExtentSize int64
	MaxWait       time.Duration
	StagedTTL     time.Duration
	AckInterval   int64
}
