package engine

import (
	"time"

	"github.com/shingle-store/shingle/internal/scrub"
)

// ScrubScope says what a scrub covers: at most one of the fields is set; none is the store, its
// metadata and labels with it.
type ScrubScope struct {
	File       string  // a file's name; the zones that its extents lie in are read only where they hold it
	BlockGroup *uint32 // a slot
	Device     string  // "0"
}

// ScrubRequest begins a scrub.
type ScrubRequest struct {
	Scope     ScrubScope
	ReadOnly  bool   // find and name, mend nothing
	Limit     int64  // bytes of the device read a second; 0: none
	RequestID string // a second StartScrub with the id of the scrub that runs answers that one; at most 64 bytes
}

// Scrub is how a scrub stands.
type Scrub struct {
	ID             string
	State          scrub.State
	Scope          ScrubScope
	ReadOnly       bool
	Limit          int64
	Started, Ended time.Time     // Ended is zero while it is not over
	Active         time.Duration // time spent running, over restarts
	Total          int64         // bytes, fixed at the start; data and metadata
	Done           int64         // of them; never falls, never passes Total
	Skipped        int64         // of Done: moved, freed, or written again since the start
	Rate           int64         // bytes a second of active time
	ETA            time.Duration // 0: not known, or over
	Counters       scrub.Counters
	Findings       uint64
	Error          string // why it failed or was interrupted
}

// ScrubFinding is a bad block that a scrub, or a read or reclaim during it, has met.
type ScrubFinding struct {
	File             string // "" : no file refers to it any more, or it is metadata
	FileID           uint64
	Offset, Length   int64  // in the file
	Address          uint64 // logical
	Device, Zone     uint32
	ZoneOffset       int64
	Expected, Actual uint32 // crc32c; Actual 0 with Unreadable
	Unreadable       bool
	Outcome          scrub.Outcome
	Time             time.Time
	OtherReferences  int    // clones that share the block
	Object           string // for what is no file's block: "devices/0/label", "metadata/extents"
}

// ScrubFindingsQuery asks for findings.
type ScrubFindingsQuery struct {
	ID              string // "": the latest scrub
	After           uint64 // those with a higher sequence
	Limit           int    // at most so many; 1 to 1000
	UncorrectedOnly bool
}
