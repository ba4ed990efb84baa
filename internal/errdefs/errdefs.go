package errdefs

import (
	"context"
	"errors"
	"strings"
)

// Kind says what sort of thing went wrong, and so what a caller can do about it.
type Kind uint8

// The kinds. Their order means nothing; the zero value is Internal, so that an error that
// nobody classified is never mistaken for a caller's fault.
const (
	Internal         Kind = iota // a bug, or a failure without a better name
	InvalidArgument              // the request can never succeed as it stands
	OutOfRange                   // an offset or a token lies outside what exists
	NotFound                     // the named object does not exist
	AlreadyExists                // the object to be made is there already
	Precondition                 // the state of the object forbids the operation
	Aborted                      // overtaken by another actor; start again from a known position
	NoSpace                      // a bound on space, zones or metadata was met
	Unavailable                  // not now: starting, draining, or transient
	Corruption                   // stored data or metadata fails its checksum or its structure
	Device                       // the device refused or failed an operation
	ReadOnly                     // the store takes no changes until it is opened again
	Canceled                     // the caller went away
	DeadlineExceeded             // the caller's deadline passed
)

var kindNames = [...]string{
	"internal", "invalid argument", "out of range", "not found", "already exists",
	"precondition", "aborted", "no space", "unavailable", "corruption", "device",
	"read-only", "canceled", "deadline exceeded",
}

// String returns the kind in lower-case words.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown kind"
}

// Reason is a stable UPPER_SNAKE word that programs can match on; it becomes
// google.rpc.ErrorInfo.reason. The empty reason means the kind says it all.
type Reason string

// The reasons. They are part of the API (enum ErrorReason in proto/shingle/v1/errors.proto).
const (
	ReasonNoSpace          Reason = "NO_SPACE"
	ReasonReclaimPending   Reason = "RECLAIM_PENDING"
	ReasonMetadataSpace    Reason = "METADATA_SPACE"
	ReasonActiveZones      Reason = "ACTIVE_ZONES"
	ReasonWriteback        Reason = "WRITEBACK_PENDING"
	ReasonPayloadChecksum  Reason = "PAYLOAD_CHECKSUM"
	ReasonCorruption       Reason = "CORRUPTION"
	ReasonDeviceIO         Reason = "DEVICE_IO"
	ReasonSyncFailed       Reason = "SYNC_FAILED"
	ReasonRestarted        Reason = "RESTARTED"
	ReasonFenced           Reason = "FENCED"
	ReasonPrecondition     Reason = "PRECONDITION"
	ReasonSizeMismatch     Reason = "SIZE_MISMATCH"
	ReasonReadOnly         Reason = "READ_ONLY"
	ReasonDraining         Reason = "DRAINING"
	ReasonNotAFile         Reason = "NOT_A_FILE"
	ReasonNotADirectory    Reason = "NOT_A_DIRECTORY"
	ReasonDirNotEmpty      Reason = "DIRECTORY_NOT_EMPTY"
	ReasonDeviceMismatch   Reason = "DEVICE_MISMATCH"
	ReasonInUse            Reason = "IN_USE"
	ReasonUnknownFeature   Reason = "UNKNOWN_FEATURE"
	ReasonDeviceTooSmall   Reason = "DEVICE_TOO_SMALL"
	ReasonConventionalOnly Reason = "CONVENTIONAL_ONLY"
	ReasonScrubRunning     Reason = "SCRUB_RUNNING"
)

// Error is a classified error. Fields may be empty; the zero Error is an Internal error
// without words and should not be returned.
type Error struct {
	Kind   Kind
	Reason Reason
	Op     string // what was being done: "zone.Append"
	Object string // to what: "zone 17", "file docs/a"
	Field  string // with InvalidArgument: the field of the request at fault
	// Meta holds key figures as strings: {"free": "4096"}. Callers must not change it after
	// the error is returned.
	Meta map[string]string
	// Detail is a typed detail that the server turns into a message; nil for most errors.
	Detail any
	Msg    string
	Err    error // the cause, reachable through errors.Is and errors.As
}

// Error prints "op object: message: cause", leaving out what is empty.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Object != "" {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(e.Object)
	}
	part := func(s string) {
		if s == "" {
			return
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(s)
	}
	part(e.Msg)
	if e.Err != nil {
		part(e.Err.Error())
	}
	if e.Msg == "" && e.Err == nil {
		part(e.Kind.String())
	}
	return b.String()
}

// Sentence says what went wrong, and to what, without the names of functions in err's chain: what
// people outside are told. Where an Error has a message of its own, its cause is left out, and so
// is an object that the message names. err is not nil.
func Sentence(err error) string {
	e, ok := err.(*Error)
	if !ok {
		// What was put before an Error, "a: ", stays there.
		text := err.Error()
		if errors.As(err, &e) {
			if before, ok := strings.CutSuffix(text, e.Error()); ok {
				return before + Sentence(e)
			}
		}
		return text
	}
	var parts []string
	if e.Object != "" && !strings.Contains(e.Msg, e.Object) {
		parts = append(parts, e.Object)
	}
	switch {
	case e.Msg != "":
		parts = append(parts, e.Msg)
	case e.Err != nil:
		parts = append(parts, Sentence(e.Err))
	default:
		parts = append(parts, e.Kind.String())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error of the given kind and reason about op on object.
func New(kind Kind, reason Reason, op, object, msg string) *Error {
	return &Error{Kind: kind, Reason: reason, Op: op, Object: object, Msg: msg}
}

// Wrap returns err classified as kind about op on object; nil stays nil.
func Wrap(kind Kind, reason Reason, op, object string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: kind, Reason: reason, Op: op, Object: object, Err: err}
}

// Invalid returns an InvalidArgument error that names the request's field.
func Invalid(op, field, msg string) *Error {
	return &Error{Kind: InvalidArgument, Op: op, Field: field, Msg: msg}
}

// KindOf returns the kind of the outermost Error in err's chain. Context errors without an
// Error around them are Canceled and DeadlineExceeded; anything else, nil included, is
// Internal.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceeded
	}
	return Internal
}

// ReasonOf returns the outermost non-empty reason in err's chain, or "".
func ReasonOf(err error) Reason {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Reason != "" {
			return e.Reason
		}
		err = e.Err
	}
	return ""
}

// Is reports whether err is not nil and of the given kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }
