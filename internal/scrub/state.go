package scrub

// State is how a scrub stands.
type State uint8

// The states, as they are kept on media.
const (
	Running     State = 1
	Paused      State = 2
	Cancelled   State = 3 // incomplete; may be resumed
	Interrupted State = 4 // the engine ended, or the device failed, while it ran
	Finished    State = 5
	Failed      State = 6
)

// Outcome is what became of a bad block.
type Outcome uint8

// The outcomes, as they are kept on media.
const (
	Repaired            Outcome = 1
	Uncorrectable       Outcome = 2
	NotRepairedReadOnly Outcome = 3
	Gone                Outcome = 4 // overwritten or deleted since
)

// Counters are those of `btrfs scrub status -R`, and what it cost.
type Counters struct {
	DataExtentsScrubbed, TreeExtentsScrubbed uint64
	DataBytesScrubbed, TreeBytesScrubbed     uint64
	ReadErrors, CsumErrors, VerifyErrors     uint64
	NoCsum                                   uint64 // blocks of 4 KiB
	CsumDiscards                             uint64 // checksums without an extent
	SuperErrors, MallocErrors                uint64
	UncorrectableErrors, UnverifiedErrors    uint64
	CorrectedErrors                          uint64
	LastPhysical                             uint64
	ExtentLookups, CsumLookups               uint64
	ReadOperations, BytesRead                uint64
}
