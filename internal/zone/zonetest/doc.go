// Package zonetest checks that a zone.Device keeps the rules of zoned devices.
//
// It owns the suite that every implementation runs: Run for the rules, RunCrash for what is
// left after a crash. It promises that a device that passes behaves as the engine expects,
// in both dialects and at every limit. Faults and performance it leaves to others.
package zonetest
