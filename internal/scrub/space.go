package scrub

import (
	"context"
	"time"
)

// Piece is blocks that lie one after the other in one copy, with the crc32c that each must have.
type Piece struct {
	At   int64 // logical address of the first
	Copy int   // which copy
	Sums []uint32
	// Header: it is one block, the header of a zone, which Space.Header knows.
	Header bool
}

// Look is what was found to be scrubbed from some point on.
type Look struct {
	Pieces []Piece
	// Blocks and Extents are what counts as scrubbed when Pieces have been, once however many copies
	// there are; NoSums of the blocks have no checksum and are not in Pieces.
	Blocks, Extents, NoSums int64
	LooseSums               int64 // checksums without an extent
	Damaged                 []Finding
	Next                    int64
	Apart                   bool   // what lies between pieces must not be read
	LastPhysical            uint64 // device offset of the end of the last piece
	ExtentLookups           uint64
	SumLookups              uint64
	// Release is called once, when nothing that was looked up is read any more. Until then its zones are
	// not reset.
	Release func()
}

// Scan is what a step through the metadata found.
type Scan struct {
	Records, Bytes uint64
	Damaged        []Finding
	Bucket         string // where it goes on; "": nothing is left
	Key            []byte
}

// Finding is something bad that was met. Which of the counters it is in follows from Object,
// Unreadable and Super.
type Finding struct {
	File             string // "": no file's
	FileID           uint64
	Offset, Length   int64 // in the file, bytes
	Address          uint64
	Device, Zone     uint32
	ZoneOffset       int64
	Expected, Actual uint32
	Unreadable       bool
	Super            bool // a label or a zone header
	Outcome          Outcome
	Time             time.Time
	OtherReferences  int
	Object           string // of what is no file's block; also of blocks that no file refers to any more ""
	// Mend: another copy is good, so Space.Mend is to be asked.
	Mend bool
}

// Verdict is what became of a block that failed.
type Verdict uint8

// The verdicts.
const (
	Bad   Verdict = iota // it is bad, and a finding
	Known                // it is bad, and a finding already
	Moved                // it is not what was looked up any more: no error
)

// Batch is what is recorded together.
type Batch struct {
	Progress Progress
	Findings []Finding
}

// Space is the store as a scrub sees it. Its methods are called from several goroutines.
type Space interface {
	// Labels reads the labels of the device, and answers what is wrong with them.
	Labels() (bad []Finding, reads int)
	// Scan steps through the metadata from the key on in the bucket; "" is the first one. It takes some
	// milliseconds.
	Scan(bucket string, key []byte) (Scan, error)
	// Look finds at most room blocks to be scrubbed from at on, below end. Look.Next is behind at, and end
	// at most.
	Look(at, end, room int64) (Look, error)
	// Read reads bytes of the zone of a slot's copy. It may take for ever.
	Read(slot uint32, copy int, off int64, p []byte) error
	// Header reports whether p is what the header of that zone must be.
	Header(slot uint32, copy int, p []byte) bool
	// JudgeHeader is Judge for a zone header.
	JudgeHeader(slot uint32, copy int, p []byte, err error) (Finding, Verdict)
	// Judge decides what becomes of a block of a copy that has failed twice: the checksum that it has, or
	// the error of reading it.
	Judge(at int64, copy int, want, got uint32, err error) (Finding, Verdict)
	// Mend puts right what the findings with Mend say, from other copies, and their Outcome with it. It
	// waits for commits, with nothing looked up held, and ends with ctx: then it answers its error, and
	// the outcomes mean nothing.
	Mend(ctx context.Context, fs []Finding) error
	// Alive answers an error if a device does not read at all.
	Alive() error
	// Met returns what others have met since the last call.
	Met() []Finding
	// Others is a figure that grows whenever clients use the store.
	Others() uint64
	// Record makes b durable. What it answers an error for will be read again.
	Record(ctx context.Context, b Batch) error
}

// count adds a finding to the counters.
func (c *Counters) count(f *Finding) {
	switch {
	case f.Super:
		c.SuperErrors++
	case f.Object != "":
		c.VerifyErrors++
	case f.Unreadable:
		c.ReadErrors++
	default:
		c.CsumErrors++
	}
	switch f.Outcome {
	case Repaired:
		c.CorrectedErrors++
	case Uncorrectable, NotRepairedReadOnly: // as btrfs has it: there is no good copy
		c.UncorrectableErrors++
	}
}

// Errors are all that was found to be bad.
func (c *Counters) Errors() uint64 {
	return c.ReadErrors + c.CsumErrors + c.VerifyErrors + c.SuperErrors
}
