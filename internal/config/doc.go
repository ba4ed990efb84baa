// Package config turns what the engine's command line, environment and configuration file say into
// values that the engine takes: sizes, durations, device URLs, and which of a flag, a variable, a line
// of the file and a default counts.
//
// It is pure: it reads no files, no environment and no flags by itself, and keeps nothing that a
// crash could lose. What a value means for a store is left to package engine, and what to do with
// a device to the program.
package config
