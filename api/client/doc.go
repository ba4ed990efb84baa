// Package client is the Go library of Shingle: it speaks to an engine over gRPC.
//
// It owns the connection, the checksums at this end, retry, and the memory that lets a
// broken Write go on. Files are read as io.Reader and written as io.WriteCloser; the other
// verbs are one call each.
//
// What it promises when the engine crashes and is started again, or the network breaks:
//
//   - A Writer keeps every byte until the engine has said that it is durable. It connects
//     again, learns where to go on, and sends the rest again, for as long as WithRetryTime
//     allows. The source may be a pipe: nothing is asked of it twice.
//   - WriteFrom, for a source that can be read again, keeps nothing and reads again what was not
//     durable. If the source has changed it fails; with Replace nothing is published then.
//   - Sync and a durable Close answer nil only when the run of the engine that received the
//     bytes has said that all of them are durable.
//   - A Reader goes on at the next byte of the same content. If the content has changed it
//     fails with FAILED_PRECONDITION; it never mixes two contents.
//   - WatchScrub goes on with the same scrub.
//   - Bytes that fail their checksum are never handed out.
//
// Errors are *Error, found with errors.As, or those of the context and of the caller's own
// readers and writers.
//
// What lies where, and how it is made durable, is left to the engine; the meaning of every
// request is in proto/shingle/v1.
package client
