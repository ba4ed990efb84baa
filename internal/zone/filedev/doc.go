// Package filedev emulates a zoned device in one plain file.
//
// It owns the file: a header, a zone table in two slots, and the zones' data
// (docs/format.md 3). The rules of zones are package zone's. It promises that what was
// acknowledged before a successful Flush survives a crash of the process and a loss of
// power; a Flush costs one fdatasync. After a crash a zone's write pointer is the last one
// flushed or, if the power failed during a Flush, possibly the one being flushed, with data
// below it that never arrived: readers have checksums. A zone that was reset and written
// again without a Flush in between holds, after a crash, the old write pointer over some of
// the new data; a reset says that nobody wants the old. Discard and Release punch holes in the
// file, which the host's disk gets back. It leaves checksums of the data,
// labels and everything else inside zones to others.
package filedev
