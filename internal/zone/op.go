package zone

// OpKind names a device call in an Op.
type OpKind uint8

// The kinds of Op.
const (
	OpRead OpKind = iota
	OpWrite
	OpAppend
	OpFlush
	OpOpen
	OpCloseZone
	OpFinish
	OpReset
	OpDiscard
	OpRelease
)

var opNames = [...]string{"read", "write", "append", "flush", "open", "close", "finish", "reset",
	"discard", "release"}

// String returns the kind in one lower-case word.
func (k OpKind) String() string { return opNames[k] }

// Op is one device operation as a hook sees it.
type Op struct {
	Kind OpKind
	Zone int   // -1 for a flush
	Off  int64 // of an append: -1 before it, the place it got after it
	Len  int64 // bytes of a read, write, append or discard, the first range's offset being Off
	// After is false before the operation and true after it has taken effect and before
	// its caller hears of it.
	After bool
	// Index numbers operations from 0 in the order they began; both calls of one operation
	// carry the same.
	Index uint64
}
