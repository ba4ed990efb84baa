// Package errdefs holds the kinds of errors that Shingle's packages return.
//
// It owns one type, Error, which carries a kind, a stable reason, the operation and the
// object it was working on, and the cause. It promises that a kind survives wrapping with
// fmt.Errorf("%w") and that context cancellation is recognised. It leaves the translation
// to gRPC status codes to package server: nothing below server knows of gRPC.
package errdefs
