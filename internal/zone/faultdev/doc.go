// Package faultdev puts a fault plan around a zoned device, for tests and fault drills.
//
// It owns the plan, the counts of the operations that went by, and an audit: it follows every
// zone's condition by itself and checks that the device never held more zones open or active
// than its limits. It changes nothing about what survives a crash. When to arm which fault,
// and what ought to come of it, it leaves to the test.
package faultdev
