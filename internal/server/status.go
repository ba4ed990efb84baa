package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

const (
	// errorDomain is ErrorInfo.domain.
	errorDomain = "shingle"
	// maxStatusBytes bounds an encoded status: it travels in a trailer, where proxies and
	// clients allow little.
	maxStatusBytes = 4 << 10
	// maxErrorText bounds each string in a status, in bytes. Names can be as long as all
	// details together may be.
	maxErrorText = 512
	// retryDelay is the RetryInfo for waits that this server can put no number on: about a
	// commit or a zone reset.
	retryDelay = time.Second
)

// kindCodes is the table of proto/shingle/v1/errors.proto.
var kindCodes = [...]codes.Code{
	errdefs.Internal:         codes.Internal,
	errdefs.InvalidArgument:  codes.InvalidArgument,
	errdefs.OutOfRange:       codes.OutOfRange,
	errdefs.NotFound:         codes.NotFound,
	errdefs.AlreadyExists:    codes.AlreadyExists,
	errdefs.Precondition:     codes.FailedPrecondition,
	errdefs.Aborted:          codes.Aborted,
	errdefs.NoSpace:          codes.ResourceExhausted,
	errdefs.Unavailable:      codes.Unavailable,
	errdefs.Corruption:       codes.DataLoss,
	errdefs.Device:           codes.Internal,
	errdefs.ReadOnly:         codes.FailedPrecondition,
	errdefs.Canceled:         codes.Canceled,
	errdefs.DeadlineExceeded: codes.DeadlineExceeded,
}

// codeNames spells the codes as the proto does; it is the reason of an error without one.
var codeNames = map[codes.Code]string{
	codes.Internal: "INTERNAL", codes.InvalidArgument: "INVALID_ARGUMENT", codes.OutOfRange: "OUT_OF_RANGE",
	codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS", codes.FailedPrecondition: "FAILED_PRECONDITION",
	codes.Aborted: "ABORTED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.Unavailable: "UNAVAILABLE",
	codes.DataLoss: "DATA_LOSS", codes.Canceled: "CANCELLED", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
}

// status turns err into a gRPC status error; nil stays nil. Internal errors are logged under
// an id that the caller is told. extra details come right after ErrorInfo.
func (s *Server) status(ctx context.Context, err error, extra ...proto.Message) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err // of the stream itself: nobody is left to hear more
	}
	id := ""
	switch errdefs.KindOf(err) {
	case errdefs.Internal:
		id = s.errorID()
		logFor(ctx, s.o.Logger).ErrorContext(ctx, "internal error", "error_id", id, "error", err)
	case errdefs.Corruption, errdefs.Device:
		logFor(ctx, s.o.Logger).ErrorContext(ctx, "storage error", "error", err)
	}
	return toStatus(err, id, extra...).Err()
}

// errorID names an error of this run of the server.
func (s *Server) errorID() string {
	boot := uint64(0)
	if e := s.engine.Load(); e != nil {
		boot = e.Info().BootID
	}
	return fmt.Sprintf("%016x-%d", boot, s.errors.Add(1))
}

// toStatus is the one function from error kinds to status codes and details.
func toStatus(err error, id string, extra ...proto.Message) *status.Status {
	f := flatten(err)
	code := kindCodes[errdefs.Internal]
	if int(f.Kind) < len(kindCodes) {
		code = kindCodes[f.Kind]
	}
	if f.Reason == "" {
		f.Reason = errdefs.Reason(codeNames[code])
	}
	info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: clip(string(f.Reason)), Metadata: map[string]string{}}
	for k, v := range f.Meta {
		info.Metadata[clip(k)] = clip(v)
	}
	if id != "" {
		info.Metadata["error_id"] = id
	}
	message := clip(errdefs.Sentence(err))
	details := append([]proto.Message{info}, extra...)
	details = append(details, typedDetails(f, message)...)
	if c := corruptionDetail(f.Detail); c != nil {
		details = append(details, c)
	}
	return pack(code, message, details)
}

// typedDetails are the google.rpc details of a kind.
func typedDetails(f errdefs.Error, message string) []proto.Message {
	object := clip(f.Object)
	kind, name, found := strings.Cut(object, " ")
	if !found {
		kind, name = "", object
	}
	retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)}
	switch f.Kind {
	case errdefs.InvalidArgument:
		return []proto.Message{&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: clip(f.Field), Description: message},
		}}}
	case errdefs.NotFound, errdefs.AlreadyExists:
		return []proto.Message{&errdetails.ResourceInfo{ResourceType: kind, ResourceName: name, Description: message}}
	case errdefs.Precondition, errdefs.ReadOnly:
		return []proto.Message{&errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
			{Type: string(f.Reason), Subject: object, Description: message},
		}}}
	case errdefs.NoSpace:
		out := []proto.Message{&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{
			{Subject: "store", Description: message},
		}}}
		if u, ok := f.Detail.(engine.Usage); ok {
			out = append(out, &shinglev1.SpaceDetail{Usage: usageProto(u)})
		}
		switch f.Reason {
		case errdefs.ReasonReclaimPending, errdefs.ReasonActiveZones, errdefs.ReasonWriteback:
			out = append(out, retry)
		}
		return out
	case errdefs.Unavailable:
		return []proto.Message{retry}
	}
	return nil
}

func corruptionDetail(detail any) *shinglev1.Corruption {
	c, ok := detail.(*engine.CorruptionDetail)
	if !ok || c == nil {
		return nil
	}
	return &shinglev1.Corruption{
		Name: clip(c.Name), FileId: c.FileID, Offset: c.Offset, Length: c.Length, Address: uint64(c.Address),
		Zone:           &shinglev1.ZoneRef{Device: fmt.Sprint(c.Device), Zone: uint32(c.Zone), Offset: uint64(c.ZoneOff)},
		ExpectedCrc32C: c.Expected, ActualCrc32C: c.Actual,
	}
}

// flatten takes the kind of the outermost error in err's chain, and of everything else the
// outermost that is not empty.
func flatten(err error) errdefs.Error {
	out := errdefs.Error{Kind: errdefs.KindOf(err), Reason: errdefs.ReasonOf(err)}
	for {
		var e *errdefs.Error
		if !errors.As(err, &e) {
			return out
		}
		if out.Object == "" {
			out.Object = e.Object
		}
		if out.Field == "" {
			out.Field = e.Field
		}
		if out.Meta == nil {
			out.Meta = e.Meta
		}
		if out.Detail == nil {
			out.Detail = e.Detail
		}
		err = e.Err
	}
}

// pack makes the status. What does not fit into maxStatusBytes is left out, the last first,
// ErrorInfo's metadata before ErrorInfo itself.
func pack(code codes.Code, message string, details []proto.Message) *status.Status {
	p := &spb.Status{Code: int32(code), Message: message}
	for i, d := range details {
		a, err := anypb.New(d)
		if err != nil {
			continue
		}
		p.Details = append(p.Details, a)
		if proto.Size(p) <= maxStatusBytes {
			continue
		}
		p.Details = p.Details[:len(p.Details)-1]
		if info, ok := d.(*errdetails.ErrorInfo); ok && i == 0 {
			bare, err := anypb.New(&errdetails.ErrorInfo{Domain: info.Domain, Reason: info.Reason})
			if err == nil {
				p.Details = append(p.Details, bare)
			}
		}
	}
	return status.FromProto(p)
}

// clip makes text valid UTF-8 of at most maxErrorText bytes.
func clip(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxErrorText {
		return text
	}
	const more = "…"
	n := maxErrorText - len(more)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + more
}
