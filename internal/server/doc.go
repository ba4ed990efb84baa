// Package server puts the engine behind gRPC: it validates requests, calls the engine, and
// turns answers and errors into messages and statuses.
//
// It owns the pacing of Write's replies, page tokens, and the one function from error kinds to
// status codes. It holds no data and decides nothing about it, so it promises nothing after a
// crash beyond passing on, in every Write reply, which run of the engine speaks and what is
// durable in it. It leaves every other promise to package engine, the payload's way through
// gRPC to package wire, and listening, TLS and the order of shutting down to the program.
package server
