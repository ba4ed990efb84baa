// Package trim tells the device what is free, as FITRIM does, over a range of logical addresses.
//
// It owns the walk: which bytes of a range count as what, when a zone can be given back, which
// free ranges are discarded together, and what is held meanwhile. It knows neither allocator nor
// metadata nor device: Space is all it sees of them.
//
// # Exactness
//
// Every byte of the range, once looked at, counts in exactly one figure of the Result. The range is
// rounded inward, so no byte outside it is touched. Figures are of the moment at which a byte is
// looked at; the store goes on working.
//
// # Batches (S2)
//
// The free ranges of conventional zones are held, gathered under a plug, and sent together: ranges
// that touch are merged, one command carries up to maxRanges of a zone, maxDepth commands run at a
// time. The published fault was to discard and wait for one range after another. A single command
// runs where it is, with no goroutine, so a block group with one free range costs what it did.
//
// # What is held is given back
//
// A held range is given back on every way out: its discard succeeded, or failed, or the device has
// none, or the caller cancelled before it was sent. A zone or a discard that fails does not stop the
// rest.
//
// # After a crash
//
// A trim that was cut short is not continued: what it had not been told to remember is trimmed
// again by the next one. Remembering is Space's: only for a discard that succeeded, and only after
// a flush that followed it. Left to others as well: moving live data, and which trim may run when.
package trim
