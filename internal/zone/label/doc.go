// Package label knows the two blocks that Shingle keeps on a zoned device for itself: the
// label, which says whose device it is, and the header of a block group's zone.
//
// It owns their codecs (docs/format.md 1.2, 1.3) and the protocol by which the label is
// replaced. It promises that a crash at any step of Write leaves a valid label, the old one
// or the new one. What a label or header should say, and what to do about one that says
// something else, it leaves to the engine.
package label
