// Package e2e drives the built programs from outside, as a stranger would: real processes, real
// sockets, kill -9. It has tests only; what it owns is the evidence that the promises of the
// README hold for what people run, not only for the packages.
//
// What cannot be tried on a machine, for want of a container engine, of the right to mount a file
// system or of the way to a tool, is skipped, counted and printed at the end of a run, as are the
// figures that were measured.
package e2e
