// Package compress turns file data into stored frames and back: one frame at a time, a chunk
// of 512 KiB into aligned memory ready for a device, and small files for the node record.
//
// It owns the codecs, their state and a pool of workers with scratch memory. It promises that
// decoding never writes or allocates beyond the frame's raw length, whatever the input, and
// that a frame is stored compressed only where that saves a block. It does no I/O and keeps
// nothing after a crash; checksums, space and where frames lie are left to its callers.
package compress
