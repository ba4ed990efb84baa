package reclaim

import (
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// Options say when reclaim works and how hard. The zero value of a field means its default.
type Options struct {
	// Threshold is how much of a block group must be dead, in percent, for it to be emptied while
	// there is space to spare. 1 to 100; default 75.
	Threshold int
	// LowThreshold is that bar while space is low: below it, moving costs more than it gives back
	// unless somebody waits for the space. 1 to Threshold; default 10.
	LowThreshold int
	// Low and High are bytes that can still be promised to writers. Below Low space is low, until
	// High is passed: the distance keeps reclaim from starting and stopping all the time.
	// Defaults: those of DefaultLow.
	Low, High int64
	// Busy is how much of its time reclaim works, in percent, while others use the device and space
	// is not low. 1 to 100; default 25.
	Busy int
}

// The defaults of Options.
const (
	DefaultThreshold    = 75
	DefaultLowThreshold = 10
	DefaultBusy         = 25
)

// DefaultLow returns the default Low and High for a store that can hold total bytes, in block groups
// of at most largest: a block group or 1/128, whichever is more, and half as much again.
func DefaultLow(total, largest int64) (low, high int64) {
	low = max(largest, total/128)
	return low, low + low/2
}

// SetDefaults fills in what is not set; total and largest are those of DefaultLow.
func (o *Options) SetDefaults(total, largest int64) {
	if o.Threshold == 0 {
		o.Threshold = DefaultThreshold
	}
	if o.LowThreshold == 0 {
		o.LowThreshold = min(DefaultLowThreshold, o.Threshold)
	}
	low, high := DefaultLow(total, largest)
	if o.Low == 0 {
		o.Low = low
	}
	if o.High == 0 {
		o.High = max(high, o.Low+o.Low/2)
	}
	if o.Busy == 0 {
		o.Busy = DefaultBusy
	}
}

// Validate names the first field that cannot be used; 0 is a default.
func (o *Options) Validate() error {
	const op = "reclaim.Options"
	switch {
	case o.Threshold < 0 || o.Threshold > 100:
		return errdefs.Invalid(op, "Threshold", "Threshold must be a percentage from 1 to 100")
	case o.LowThreshold < 0 || o.LowThreshold > 100 || o.Threshold > 0 && o.LowThreshold > o.Threshold:
		return errdefs.Invalid(op, "LowThreshold", "LowThreshold must be a percentage from 1 to Threshold")
	case o.Low < 0 || o.High < 0 || o.High > 0 && o.High < o.Low:
		return errdefs.Invalid(op, "High", "Low and High must not be negative, and High not below Low")
	case o.Busy < 0 || o.Busy > 100:
		return errdefs.Invalid(op, "Busy", "Busy must be a percentage from 1 to 100")
	}
	return nil
}

// Need says why something is to be moved. Greater is more urgent.
type Need uint8

// The needs.
const (
	// None: nothing is worth it.
	None Need = iota
	// Spare: there is space to spare, and the best candidate is nearly all dead.
	Spare
	// Low: what can be promised has fallen below Options.Low and not passed Options.High since.
	Low
	// Urgent: somebody waits for space.
	Urgent
)

var needNames = [...]string{"none", "spare", "low", "urgent"}

// String returns the need in lower case.
func (n Need) String() string {
	if int(n) < len(needNames) {
		return needNames[n]
	}
	return "unknown need"
}

// State is what a decision goes by.
type State struct {
	Available int64 // bytes that can still be promised to writers; below 0: a deficit
	Waiting   bool  // somebody waits for space
}

// Policy says when to move. It is for one goroutine.
type Policy struct {
	o   Options
	low bool
}

// NewPolicy returns the policy of the options, which have their defaults.
func NewPolicy(o Options) *Policy { return &Policy{o: o} }

// Decide says whether the best candidate, if there is one, is to be emptied now.
func (p *Policy) Decide(s State, best Candidate, any bool) Need {
	switch {
	case s.Available < p.o.Low:
		p.low = true
	case s.Available >= p.o.High:
		p.low = false
	}
	switch {
	case !any:
		return None
	case s.Waiting || s.Available < 0:
		return Urgent
	case p.low && best.Share() >= p.o.LowThreshold:
		return Low
	case best.Share() >= p.o.Threshold:
		return Spare
	}
	return None
}

// Pause says how long to rest after work that took the time worked. others: somebody else used the
// device meanwhile; with nobody to disturb there is no rest, nor with somebody waiting. While space
// is low the rest is as long as the work at most, and less the less is left.
func (p *Policy) Pause(n Need, s State, worked time.Duration, others bool) time.Duration {
	if !others || worked <= 0 {
		return 0
	}
	switch n {
	case Spare:
		return worked * time.Duration(100-p.o.Busy) / time.Duration(p.o.Busy)
	case Low:
		left := min(max(s.Available, 0), p.o.Low)
		return time.Duration(float64(worked) * float64(left) / float64(max(p.o.Low, 1)))
	}
	return 0
}
