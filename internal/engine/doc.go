// Package engine composes Shingle: it turns writes of files into appends to zones and
// transactions of metadata, and back.
//
// It owns the order of things. A written byte is copied once into a slab of memory and
// becomes a dirty range (delalloc); a range is collected, cut in chunks, compressed, placed
// (alloc) and appended (zone); what has been appended is flushed and then published in one
// transaction (store). Only then does it leave memory. It also owns what follows from that
// order: read-your-writes, the dirty limit, group commit, zone resets after the commit that
// freed the last live part, recovery at open.
//
// After a crash it promises: everything a Sync, Finish or change of names answered is there,
// byte for byte; of what came later each extent is there or not, never mixed; a file's
// size never passes data that is not committed. Write pointers are held against the block groups at
// open, and what does not agree is mended or named (recover.go).
//
// On conventional zones the order is the same with writes in place of appends (conventional.go): data
// goes only to blocks that nothing on record refers to, and a block becomes such a one when the commit
// that freed it is durable and the reads that began before it have ended.
//
// Space comes back by moving live data together (reclaim*.go; docs/format.md 2.11). The order: what
// is live in a block group is looked up, read and verified, with the block group pinned, so that no
// address in it can come to mean other data; it is appended as it is stored to a block group of
// relocation's; the device is flushed; one transaction, in a group commit like any other, looks again at
// what still lives at the old addresses and points that, and only that, to the copies; when nothing lives
// there any more the pin ends and the zone is reset as any other: after the commit, and after the last
// reader that may have looked an old address up. Nobody is locked out meanwhile. Relocation cannot run
// out of space: half of the reserve is granted to nobody else, and that is more than the live part of
// any block group worth emptying.
//
// What Trim gave back to the device is remembered in the first commit whose device flush began after
// it (trimmed.go); what is stored there later goes into the same commit or a later one, and clears it.
//
// Scrub (scrub*.go; docs/format.md 2.14) runs beside everything: an epoch holds what it has looked up from
// being reset until it was read, as for a read, and a block that fails is looked up again before it counts,
// so what moved or died meanwhile is no error. What it has found, how far it is and how it stands change in
// one commit. A read of the device that does not return is left to the goroutine that made it, which Close
// waits for.
//
// The devices are one to all of that: zone s of the array (zone/array) is what lies under slot s, one zone or,
// with two copies, two. Which zones those are changes only while nothing lives there (places.go), in the
// commit that stores something there or an earlier one. A copy that misses something is stale, and on
// record as that before anybody hears of success. What is bad in one copy is answered from the other and
// moved to where both are good (copies.go, mend.go), and what lacks a copy, or lies on a device that is
// leaving, is emptied like a victim of reclaim (rebuild*.go).
//
// It leaves to others: decisions about space (alloc), what to trim and in which batches (trim), the walk
// and the pace of a scrub (scrub), the index of dirty ranges (delalloc), the record formats (store), the
// rules of devices (zone), what a device that fails means for the others (zone/array), and the wire (server).
//
// Locks, outermost first: a file's write token (one writer, truncate, punch or clone at a time; held
// over device I/O), its cut lock (readers share it for one window, truncate and punch take
// it alone), its mutex (short, never held over I/O), the file table's mutex. The group
// commit's goroutine takes only the last two.
package engine
