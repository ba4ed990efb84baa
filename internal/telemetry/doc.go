// Package telemetry shows what the engine counts to Prometheus.
//
// It owns the names, units and meanings of the metrics of the store, which docs/operations.md
// lists and a test holds against the code. Everything is read from the engine when somebody asks:
// nothing is added to the path of a byte, and what nobody scrapes costs nothing. Counts begin
// with the run of the engine, so a restart is a counter reset, as Prometheus expects it; nothing
// here outlives a crash or has to.
//
// The metrics of RPCs and connections belong to package server, the listener to the program.
package telemetry
