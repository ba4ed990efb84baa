// Package scrub reads what is stored and holds it against its checksums.
//
// It owns the walk: labels, then the records of the metadata, then the data in the order of its
// addresses (of one file: in the order of its offsets); how the reads of data are grouped, how many are
// under way, how fast; what counts as what; and how far it has come. It knows neither metadata nor
// device: Space is all it sees of them.
//
// # Grouped reads (S3)
//
// The published fault was a search of each tree and a read for every 64 KiB, one after the other. Here
// one look finds the extents and checksums of some megabytes with one search of each tree; what lies
// close together is read at once, up to 1 MiB; eight or more reads are under way, each verified by the
// goroutine that read it, so all processors verify. Buffers belong to those goroutines: there are as many,
// at most Options.Memory in all. A block that fails in a large read is read again alone: if it is good
// then, it was no error.
//
// # A group
//
// What has been read and is not recorded yet is the group: at most Options.Group bytes, and at most half
// a second's. Cursor, counters and findings are recorded together (Space.Record), so whatever ends a
// scrub, a resume reads at most one group again, and neither repeats nor drops a finding. While a part
// of it is being recorded, reading goes on.
//
// # Progress
//
// The total is fixed at the start: the bytes of the metadata, and the bytes that are live then in each
// of at most 256 spans of addresses (Plan.Marks). Only what was placed before the start is read, so what
// is scrubbed in a span never passes what was live there. What was moved, freed or written again before
// the scrub came to it counts as skipped when its span has been passed. So the part done never falls,
// never passes the total, and is the total at the end; all this over any number of resumes, for it is
// worked out from what was recorded. Records of the metadata count until their part of the total is
// full, and all of that is done when they have all been read: the total goes by pages. Labels and zone
// headers are not in the total.
//
// # Whom it gives way to
//
// While clients use the store, steps are short, one at a time, and followed by a rest three times as
// long. The limit (Limiter) is on bytes of the device; what was not used of it is lost, so there is no
// burst after a pause.
//
// # What it leaves to others
//
// Looking up, keeping what was looked up from being reset until it was read, and saying what becomes of
// a bad block (Space); which scrub may run when, and keeping its state (the engine). It promises
// nothing after a crash by itself: what was recorded is there.
package scrub
