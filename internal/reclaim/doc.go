// Package reclaim decides what a zoned store does to get space back: which block group to empty of
// its live data, when, how fast, and how what is moved is read and packed.
//
// It owns an index of the block groups that live data can be moved out of (Index), ordered by what
// emptying them costs and kept up to date as their figures change, so that a choice costs the same
// with 100 block groups as with 75,000; the rule that says whether to move anything at all and how
// long to rest in between (Policy); and two small plans: which reads cover a run of live pieces
// (Reads), and which pieces fill the room that was granted (Fit).
//
// # When
//
// With space to spare only block groups that are nearly all dead are emptied (Options.Threshold):
// that costs little and keeps reclaim ahead. When what can still be promised falls below Options.Low
// the bar is lower, until it passes Options.High. When somebody waits for space, anything that gives
// back more than nothing is done, without rest. The victim is always the one with the least live
// data for its size: for writes that are spread evenly this greedy choice writes least (Desnoyers,
// "Analytic Models of SSD Write Performance", ACM Trans. Storage 10(2), 2014).
//
// It does no I/O, reads no clock and promises nothing after a crash: the index is built again from
// the block groups as they are recovered.
//
// Left to others: reading, verifying, appending and remapping (engine, store), keeping a block group
// from being reset while it is emptied (alloc), resetting it.
package reclaim
