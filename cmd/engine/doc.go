// Command engine serves a Shingle store over gRPC, and formats and checks one.
//
// It owns the way from flags and environment to an open engine, the making of a data folder
// on first start, and the order of stopping: no new work, calls under way end, everything
// received becomes durable, the device is closed. A first start that fails half-way can be
// started again; a device that may hold somebody's data is formatted only when told to by
// force. All else is left to packages engine, server and config.
//
// Exit status: 0 ok, 1 error, 2 usage, 4 check found problems.
package main
