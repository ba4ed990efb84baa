// Package zone models zoned block devices: the zone state machine in its two dialects (ZNS
// and SMR), the Device interface, and a memory device that can lose power.
//
// It owns the rules (which command is legal in which zone condition, what moves the write
// pointer, which limits hold) and promises that every Device keeps them; zone/zonetest
// checks each implementation. After a crash a sequential zone holds what was flushed plus a
// prefix of what was written since, possibly torn inside a block run; a reset or finish that was
// not flushed may or may not have happened. It leaves what the data means to the engine.
package zone
