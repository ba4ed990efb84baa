package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// detail returns the first detail of type T, or nil.
func detail[T proto.Message](st *status.Status) (out T) {
	for _, d := range st.Details() {
		if m, ok := d.(T); ok {
			return m
		}
	}
	return out
}

func TestEveryKindAndReason(t *testing.T) {
	usage := engine.Usage{Total: 100, Free: 7, Reserved: 3}
	corrupt := &engine.CorruptionDetail{
		Name: "a", FileID: 9, Offset: 4096, Length: 8192, Address: 1 << 30, Device: 0, Zone: 17, ZoneOff: 12288, Expected: 1, Actual: 2,
	}
	const (
		bad = 1 << iota
		resource
		precondition
		quota
		space
		retry
		corruption
	)
	covered := map[errdefs.Reason]bool{}
	kinds := map[errdefs.Kind]bool{}
	for _, c := range []struct {
		kind   errdefs.Kind
		reason errdefs.Reason
		detail any
		code   codes.Code
		want   string // ErrorInfo.reason
		with   int
	}{
		{errdefs.Internal, "", nil, codes.Internal, "INTERNAL", 0},
		{errdefs.InvalidArgument, "", nil, codes.InvalidArgument, "INVALID_ARGUMENT", bad},
		{errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum, nil, codes.InvalidArgument, "PAYLOAD_CHECKSUM", bad},
		{errdefs.InvalidArgument, errdefs.ReasonDeviceTooSmall, nil, codes.InvalidArgument, "DEVICE_TOO_SMALL", bad},
		{errdefs.InvalidArgument, errdefs.ReasonConventionalOnly, nil, codes.InvalidArgument, "CONVENTIONAL_ONLY", bad},
		{errdefs.OutOfRange, "", nil, codes.OutOfRange, "OUT_OF_RANGE", 0},
		{errdefs.NotFound, "", nil, codes.NotFound, "NOT_FOUND", resource},
		{errdefs.AlreadyExists, "", nil, codes.AlreadyExists, "ALREADY_EXISTS", resource},
		{errdefs.AlreadyExists, errdefs.ReasonScrubRunning, nil, codes.AlreadyExists, "SCRUB_RUNNING", resource},
		{errdefs.Precondition, errdefs.ReasonPrecondition, nil, codes.FailedPrecondition, "PRECONDITION", precondition},
		{errdefs.Precondition, errdefs.ReasonSizeMismatch, nil, codes.FailedPrecondition, "SIZE_MISMATCH", precondition},
		{errdefs.Precondition, errdefs.ReasonNotAFile, nil, codes.FailedPrecondition, "NOT_A_FILE", precondition},
		{errdefs.Precondition, errdefs.ReasonNotADirectory, nil, codes.FailedPrecondition, "NOT_A_DIRECTORY", precondition},
		{errdefs.Precondition, errdefs.ReasonDirNotEmpty, nil, codes.FailedPrecondition, "DIRECTORY_NOT_EMPTY", precondition},
		{errdefs.Precondition, errdefs.ReasonDeviceMismatch, nil, codes.FailedPrecondition, "DEVICE_MISMATCH", precondition},
		{errdefs.Precondition, errdefs.ReasonInUse, nil, codes.FailedPrecondition, "IN_USE", precondition},
		{errdefs.Precondition, errdefs.ReasonUnknownFeature, nil, codes.FailedPrecondition, "UNKNOWN_FEATURE", precondition},
		{errdefs.Aborted, errdefs.ReasonFenced, nil, codes.Aborted, "FENCED", 0},
		{errdefs.Aborted, errdefs.ReasonRestarted, nil, codes.Aborted, "RESTARTED", 0},
		{errdefs.NoSpace, errdefs.ReasonNoSpace, usage, codes.ResourceExhausted, "NO_SPACE", quota | space},
		{errdefs.NoSpace, errdefs.ReasonMetadataSpace, nil, codes.ResourceExhausted, "METADATA_SPACE", quota},
		{errdefs.NoSpace, errdefs.ReasonReclaimPending, usage, codes.ResourceExhausted, "RECLAIM_PENDING", quota | space | retry},
		{errdefs.NoSpace, errdefs.ReasonActiveZones, usage, codes.ResourceExhausted, "ACTIVE_ZONES", quota | space | retry},
		{errdefs.NoSpace, errdefs.ReasonWriteback, usage, codes.ResourceExhausted, "WRITEBACK_PENDING", quota | space | retry},
		{errdefs.Unavailable, errdefs.ReasonDraining, nil, codes.Unavailable, "DRAINING", retry},
		{errdefs.Corruption, errdefs.ReasonCorruption, corrupt, codes.DataLoss, "CORRUPTION", corruption},
		{errdefs.Device, errdefs.ReasonDeviceIO, nil, codes.Internal, "DEVICE_IO", 0},
		{errdefs.Device, errdefs.ReasonSyncFailed, nil, codes.Internal, "SYNC_FAILED", 0},
		{errdefs.ReadOnly, errdefs.ReasonReadOnly, nil, codes.FailedPrecondition, "READ_ONLY", precondition},
		{errdefs.Canceled, "", nil, codes.Canceled, "CANCELLED", 0},
		{errdefs.DeadlineExceeded, "", nil, codes.DeadlineExceeded, "DEADLINE_EXCEEDED", 0},
		{200, "", nil, codes.Internal, "INTERNAL", 0},
	} {
		t.Run(c.kind.String()+"/"+c.want, func(t *testing.T) {
			kinds[c.kind], covered[c.reason] = true, true
			err := fmt.Errorf("outer: %w", &errdefs.Error{
				Kind: c.kind, Reason: c.reason, Op: "engine.Write", Object: "file docs/a", Field: "offset",
				Meta: map[string]string{"free": "7"}, Detail: c.detail, Msg: "what happened",
			})
			st := toStatus(err, "", &shinglev1.WriteDetail{Last: &shinglev1.WriteResponse{ReceivedBytes: 5}})
			if st.Code() != c.code || st.Message() != "outer: file docs/a: what happened" {
				t.Errorf("got %v %q", st.Code(), st.Message())
			}
			info := detail[*errdetails.ErrorInfo](st)
			if info.GetDomain() != "shingle" || info.GetReason() != c.want || info.GetMetadata()["free"] != "7" {
				t.Errorf("ErrorInfo %v", info)
			}
			if detail[*shinglev1.WriteDetail](st).GetLast().GetReceivedBytes() != 5 {
				t.Error("the caller's own detail is missing")
			}
			got := 0
			if v := detail[*errdetails.BadRequest](st); v != nil {
				got |= bad
				if v.FieldViolations[0].Field != "offset" {
					t.Errorf("%v", v)
				}
			}
			if v := detail[*errdetails.ResourceInfo](st); v != nil {
				got |= resource
				if v.ResourceType != "file" || v.ResourceName != "docs/a" {
					t.Errorf("%v", v)
				}
			}
			if v := detail[*errdetails.PreconditionFailure](st); v != nil {
				got |= precondition
				if v.Violations[0].Type != c.want || v.Violations[0].Subject != "file docs/a" {
					t.Errorf("%v", v)
				}
			}
			if detail[*errdetails.QuotaFailure](st) != nil {
				got |= quota
			}
			if v := detail[*shinglev1.SpaceDetail](st); v != nil {
				got |= space
				if v.Usage.FreeBytes != 7 {
					t.Errorf("%v", v)
				}
			}
			if v := detail[*errdetails.RetryInfo](st); v != nil {
				got |= retry
				if v.RetryDelay.AsDuration() <= 0 {
					t.Errorf("%v", v)
				}
			}
			if v := detail[*shinglev1.Corruption](st); v != nil {
				got |= corruption
				if v.Zone.Zone != 17 || v.Zone.Offset != 12288 || v.Address != 1<<30 || v.Offset != 4096 || v.ActualCrc32C != 2 {
					t.Errorf("%v", v)
				}
			}
			if got != c.with {
				t.Errorf("details %#b, want %#b: %v", got, c.with, st.Details())
			}
		})
	}
	for k := range kindCodes {
		if !kinds[errdefs.Kind(k)] {
			t.Errorf("kind %v is in no case", errdefs.Kind(k))
		}
	}
	if errdefs.Kind(len(kindCodes)).String() != "unknown kind" {
		t.Error("a kind has no code")
	}
	for _, r := range declaredReasons(t) {
		if !covered[r] {
			t.Errorf("reason %s is in no case", r)
		}
	}
}

// declaredReasons reads the constants of package errdefs.
func declaredReasons(t *testing.T) (out []errdefs.Reason) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../errdefs/errdefs.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Reason" {
			s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, errdefs.Reason(s))
		}
		return true
	})
	if len(out) < 20 {
		t.Fatalf("found only %d reasons", len(out))
	}
	return out
}

func TestReasonsAndTheProtoAgree(t *testing.T) {
	declared := map[string]bool{"UNSPECIFIED": true}
	for _, r := range declaredReasons(t) {
		declared[string(r)] = true
		if _, ok := shinglev1.ErrorReason_value["ERROR_REASON_"+string(r)]; !ok {
			t.Errorf("the proto has no ERROR_REASON_%s", r)
		}
	}
	for name := range shinglev1.ErrorReason_value {
		if !declared[strings.TrimPrefix(name, "ERROR_REASON_")] {
			t.Errorf("package errdefs has no reason for %s", name)
		}
	}
}

func TestTheChainIsFlattened(t *testing.T) {
	inner := &errdefs.Error{
		Kind: errdefs.Device, Reason: errdefs.ReasonDeviceIO, Op: "zone.Append", Object: "zone 3", Field: "f",
		Meta: map[string]string{"zone": "3"}, Detail: engine.Usage{Total: 1}, Msg: "refused",
	}
	st := toStatus(errdefs.Wrap(errdefs.NoSpace, "", "engine.Write", "", fmt.Errorf("w: %w", inner)), "")
	info := detail[*errdetails.ErrorInfo](st)
	if st.Code() != codes.ResourceExhausted || info.Reason != "DEVICE_IO" || info.Metadata["zone"] != "3" {
		t.Errorf("%v %v", st.Code(), info)
	}
	if detail[*shinglev1.SpaceDetail](st).GetUsage().GetTotalBytes() != 1 {
		t.Error("the detail of the cause is missing")
	}
	if st := toStatus(context.DeadlineExceeded, ""); st.Code() != codes.DeadlineExceeded {
		t.Errorf("%v", st)
	}
}

func TestStatusesAreSmallAndValid(t *testing.T) {
	long := strings.Repeat("é", 3000)
	meta := map[string]string{}
	for i := range 40 {
		meta[fmt.Sprintf("key%d\xff", i)] = long
	}
	for _, kind := range []errdefs.Kind{errdefs.InvalidArgument, errdefs.NotFound, errdefs.Precondition, errdefs.NoSpace, errdefs.Corruption} {
		for _, m := range []map[string]string{nil, meta} {
			err := &errdefs.Error{
				Kind: kind, Reason: errdefs.Reason(long), Op: "engine.Read", Object: "file " + long, Field: long, Meta: m,
				Msg: "bad \xff bytes " + long, Detail: &engine.CorruptionDetail{Name: long},
			}
			st := toStatus(err, "", &shinglev1.WriteDetail{Last: &shinglev1.WriteResponse{ReceivedBytes: 5}})
			b, encodeErr := proto.Marshal(st.Proto())
			if encodeErr != nil || len(b) > 4<<10 {
				t.Errorf("%v: %d bytes, %v", kind, len(b), encodeErr)
			}
			if detail[*errdetails.ErrorInfo](st).GetDomain() != "shingle" || detail[*shinglev1.WriteDetail](st) == nil {
				t.Errorf("%v: the most important details are missing: %d", kind, len(st.Details()))
			}
		}
	}
	for _, c := range []struct{ in, want string }{
		{"short", "short"},
		{strings.Repeat("a", maxErrorText), strings.Repeat("a", maxErrorText)},
		{strings.Repeat("a", maxErrorText+1), strings.Repeat("a", maxErrorText-3) + "…"},
		{strings.Repeat("é", maxErrorText), strings.Repeat("é", (maxErrorText-3)/2) + "…"},
	} {
		if got := clip(c.in); got != c.want {
			t.Errorf("clip of %d bytes: %q", len(c.in), got)
		}
	}
}

func TestInternalErrorsAreLoggedUnderAnID(t *testing.T) {
	var log bytes.Buffer
	s := New(nil, Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now})
	err := s.status(t.Context(), errors.New("index out of range"))
	st := status.Convert(err)
	id := detail[*errdetails.ErrorInfo](st).GetMetadata()["error_id"]
	if st.Code() != codes.Internal || id == "" || !strings.Contains(st.Message(), "index out of range") {
		t.Errorf("%v", st)
	}
	if !strings.Contains(log.String(), id) {
		t.Errorf("id %q is not in the log %q", id, log.String())
	}
	again := status.Convert(s.status(t.Context(), errors.New("x")))
	if detail[*errdetails.ErrorInfo](again).GetMetadata()["error_id"] == id {
		t.Error("ids repeat")
	}
	log.Reset()
	_ = s.status(t.Context(), errdefs.New(errdefs.NotFound, "", "engine.Get", "file a", ""))
	if log.Len() != 0 {
		t.Errorf("a caller's error is logged: %q", log.String())
	}
	_ = s.status(t.Context(), errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, "engine.Read", "file a", ""))
	if !strings.Contains(log.String(), "file a") {
		t.Errorf("corruption is not logged: %q", log.String())
	}
	stream := status.Error(codes.Unavailable, "transport is closing")
	if got := s.status(t.Context(), stream); got != stream {
		t.Errorf("an error of the stream becomes %v", got)
	}
	if s.status(t.Context(), nil) != nil {
		t.Error("nil must stay nil")
	}
	if got := status.Code(s.status(t.Context(), fmt.Errorf("x: %w", io.ErrUnexpectedEOF))); got != codes.Internal {
		t.Errorf("%v", got)
	}
}
