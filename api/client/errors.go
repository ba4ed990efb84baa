package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// errorDomain is ErrorInfo.domain of every error that an engine itself sends.
const errorDomain = "shingle"

// Reasons that this package acts on, as ErrorInfo.reason spells them.
const (
	reasonRestarted       = "RESTARTED"
	reasonPayloadChecksum = "PAYLOAD_CHECKSUM"
	reasonCorruption      = "CORRUPTION"
	reasonScrubRunning    = "SCRUB_RUNNING"
)

// errBroken marks a stream that cannot be gone on with although no engine refused anything.
var errBroken = errors.New("the stream broke")

// errLost marks a write of which the engine lost bytes that were let go of here.
var errLost = errors.New("durable bytes are gone")

// Error is what an engine, or the way to it, answers instead of a result. It is also made by
// this package when an answer cannot be believed.
type Error struct {
	Code codes.Code
	// Reason is stable and UPPER_SNAKE (enum ErrorReason); "" if no engine sent the error.
	Reason  string
	Message string
	// Meta holds key figures as strings.
	Meta map[string]string
	// Details are the typed details, ErrorInfo included: *errdetails.BadRequest,
	// *shinglev1.Corruption and so on.
	Details []any

	err error // what it was made from
}

// Error prints the message and, if an engine gave one, the reason.
func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s: %s", word(e.Code), e.Message)
	}
	return fmt.Sprintf("%s: %s (%s)", word(e.Code), e.Message, e.Reason)
}

// word returns the code in lower-case words.
func word(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if r >= 'A' && r <= 'Z' && i > 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Is lets errors.Is find context.Canceled and context.DeadlineExceeded.
func (e *Error) Is(target error) bool {
	return target == context.Canceled && e.Code == codes.Canceled ||
		target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded
}

// Corruption returns the stored bytes that a DATA_LOSS is about, or nil.
func (e *Error) Corruption() *shinglev1.Corruption { return detail[*shinglev1.Corruption](e) }

// Usage returns the state of space that a RESOURCE_EXHAUSTED carries, or nil.
func (e *Error) Usage() *shinglev1.Usage { return detail[*shinglev1.SpaceDetail](e).GetUsage() }

// Fields returns the fields of the request that an INVALID_ARGUMENT is about and what is
// wrong with each, or nil.
func (e *Error) Fields() map[string]string {
	br := detail[*errdetails.BadRequest](e)
	if br == nil {
		return nil
	}
	out := make(map[string]string, len(br.GetFieldViolations()))
	for _, v := range br.GetFieldViolations() {
		out[v.GetField()] = v.GetDescription()
	}
	return out
}

// detail returns the first detail of type T, or its zero value.
func detail[T any](e *Error) T {
	for _, d := range e.Details {
		if t, ok := d.(T); ok {
			return t
		}
	}
	var none T
	return none
}

// asError turns what gRPC returns into an *Error; nil, and what is one already, stay.
func asError(err error) error {
	if err == nil {
		return nil
	}
	if e := new(Error); errors.As(err, &e) {
		return err
	}
	st := status.Convert(err)
	if _, ok := status.FromError(err); !ok {
		st = status.FromContextError(err)
	}
	e := &Error{Code: st.Code(), Message: st.Message(), Details: st.Details(), err: err}
	if info := detail[*errdetails.ErrorInfo](e); info.GetDomain() == errorDomain {
		e.Reason, e.Meta = info.GetReason(), info.GetMetadata()
	}
	return e
}

// failure returns an Error of this package's own making.
func failure(code codes.Code, reason string, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...), err: cause}
}

// CodeOf returns the code of err: OK for nil, Unknown for an error that is not an *Error.
func CodeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if e := new(Error); errors.As(err, &e) {
		return e.Code
	}
	return status.FromContextError(err).Code()
}

// ReasonOf returns the reason of err, or "".
func ReasonOf(err error) string {
	if e := new(Error); errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// IsNotFound reports whether the file is missing.
func IsNotFound(err error) bool { return CodeOf(err) == codes.NotFound }

// IsExists reports whether the name is taken.
func IsExists(err error) bool { return CodeOf(err) == codes.AlreadyExists }

// IsInvalid reports whether the request can never succeed as it stands.
func IsInvalid(err error) bool { return CodeOf(err) == codes.InvalidArgument }

// IsPrecondition reports whether the state of the file or the store forbids the call.
func IsPrecondition(err error) bool { return CodeOf(err) == codes.FailedPrecondition }

// IsNoSpace reports whether a bound on space was met.
func IsNoSpace(err error) bool { return CodeOf(err) == codes.ResourceExhausted }

// IsUnavailable reports whether no engine answers, or none that serves.
func IsUnavailable(err error) bool { return CodeOf(err) == codes.Unavailable }

// IsDataLoss reports whether stored bytes fail their checksum.
func IsDataLoss(err error) bool { return CodeOf(err) == codes.DataLoss }

// IsRestarted reports whether the run of the engine that was named is gone.
func IsRestarted(err error) bool { return ReasonOf(err) == reasonRestarted }

// IsScrubRunning reports whether another scrub runs or is paused.
func IsScrubRunning(err error) bool { return ReasonOf(err) == reasonScrubRunning }
