// Package extent holds the value types that every layer speaks: sizes, logical addresses,
// byte ranges, frames, compression ids.
//
// It owns no state and does no I/O; it promises nothing after a crash. The numbers in it
// are part of what is on media (docs/format.md).
package extent
