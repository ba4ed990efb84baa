package trim

// State says how a trim stands.
type State uint8

// The states.
const (
	Running            State = iota
	Complete                 // all was looked at
	CompleteWithErrors       // all was looked at, and something failed
	Cancelled                // stopped before the end
)

var stateNames = [...]string{"running", "complete", "complete with errors", "cancelled"}

// String returns the state in lower-case words.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown state"
}

// Result is a whole summary of a trim. Figures are bytes unless they say otherwise. Done is
// always the sum of Trimmed, InUse, AlreadyTrimmed, TooShort, PartialZone, Busy, Unsupported, Gap,
// Quarantined and Failed.
type Result struct {
	State State
	// Trimmed: the device was told, and took it.
	Trimmed uint64
	// Extents is the number of ranges and zones in Trimmed.
	Extents uint64
	// Commands is the number of discards sent, whatever became of them.
	Commands uint64
	// Batches is the number of times that discards were sent together and waited for.
	Batches uint64
	// ZonesReset is the number of zones that were reset; others in Trimmed were empty already.
	ZonesReset  uint64
	Done, Total uint64
	// NextStart is the logical address up to which all has been dealt with.
	NextStart uint64
	// MinLength is Request.MinLength as it was used.
	MinLength      uint64
	InUse          uint64
	AlreadyTrimmed uint64 // and free ever since
	TooShort       uint64 // in free ranges shorter than MinLength
	PartialZone    uint64 // free, in a sequential zone that holds something, or lies in the range in part
	Busy           uint64 // free, and held by somebody else at this moment
	Unsupported    uint64 // the device has no discard
	Gap            uint64 // between a zone's capacity and its size
	Quarantined    uint64 // in zones that take no commands any more
	Failed         uint64 // the device refused
	FailedZones    uint32 // number of zones with something in Failed
	// Relocated is for who has moved live data out of the way before: Run leaves it 0.
	Relocated uint64
	// FirstError is what failed at the lowest address; nil: nothing.
	FirstError error
}
