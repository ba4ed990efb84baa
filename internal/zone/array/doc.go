// Package array makes several zoned devices one: zone i of an Array is a set of places, each a
// zone of one member, that hold the same bytes at the same offsets.
//
// It owns which place is read, in which order the places of a set are written, what a member that
// fails means for the others, and which places no longer hold what their set holds (Stale). It
// promises what every zone.Device does, and besides that what was flushed can be read while one
// place of its set is left: a member is taken out only where each of its sets has another place,
// and a place that missed a write, or whose last writes its member did not make durable before it
// was taken out, is Stale before anybody hears of success.
//
// After a crash each place holds what its own device kept: a prefix of what was written, not the
// same on each; what was flushed is on every place that was not Stale. New finds sets whose write
// pointers differ (Torn); Finish makes them good. Stale and the failure of a member are not on
// media: the owner records them (Places, OnFail) and says so again to New.
//
// It leaves to the engine: which zones make a set, what their headers and labels say, which copy
// has the right bytes (checksums; ReadCopy), and giving a set its second copy back.
package array
