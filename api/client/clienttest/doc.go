// Package clienttest is an engine in memory, for tests of programs that use package client.
//
// It owns a map of files behind the real services on a loopback port, and the means to make
// trouble: crashes that lose what is not durable, broken streams, false and late replies. It
// promises nothing beyond the process; a Crash is the only restart it knows. Space, zones and
// the checks of a real server (package server) are left out: it reports fixed figures.
package clienttest
