package server

import (
	"math"
	"strconv"
	"strings"
	"time"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
)

const (
	// maxScrubRequestID is the most bytes of StartScrubRequest.request_id; it is kept on media.
	maxScrubRequestID = 64
	// maxFindingsPage keeps a page whose names are all as long as names may be, 4 KiB, below the
	// 4 MiB that gRPC clients take unless told otherwise.
	maxFindingsPage = 500
)

func startScrubRequest(op string, r *shinglev1.StartScrubRequest) (engine.ScrubRequest, error) {
	c := check{op: op}
	out := engine.ScrubRequest{ReadOnly: r.GetReadOnly(), RequestID: r.GetRequestId(), Limit: c.scrubLimit(r.GetLimitBytesPerSecond())}
	switch target := r.GetScope().GetTarget().(type) {
	case *shinglev1.ScrubScope_File:
		c.name("scope.file", target.File)
		out.Scope.File = target.File
	case *shinglev1.ScrubScope_BlockGroup:
		out.Scope.BlockGroup = &target.BlockGroup
	case *shinglev1.ScrubScope_Device:
		if target.Device == "" {
			c.fail("scope.device", "must not be empty")
		}
		c.id("scope.device", target.Device)
		out.Scope.Device = target.Device
	}
	if n := len(out.RequestID); n > maxScrubRequestID {
		c.fail("request_id", "%d bytes long; at most %d", n, maxScrubRequestID)
	}
	return out, c.err
}

// scrubLimit checks a limit in bytes a second; 0 is none.
func (c *check) scrubLimit(n uint64) int64 {
	if n > math.MaxInt64 {
		c.fail("limit_bytes_per_second", "%d is over %d", n, int64(math.MaxInt64))
	}
	return int64(n)
}

func checkScrubID(op, id string) error {
	c := check{op: op}
	c.id("scrub_id", id)
	return c.err
}

func watchScrubRequest(r *shinglev1.WatchScrubRequest) (every time.Duration, err error) {
	c := check{op: "server.WatchScrub"}
	c.id("scrub_id", r.GetScrubId())
	every = c.watchInterval("interval", r.GetInterval())
	return every, c.err
}

// findingsRequest also answers the query that a page token of this list carries.
func findingsRequest(r *shinglev1.ListScrubFindingsRequest) (q engine.ScrubFindingsQuery, query string, err error) {
	c := check{op: "server.ListScrubFindings"}
	c.id("scrub_id", r.GetScrubId())
	q = engine.ScrubFindingsQuery{
		ID: r.GetScrubId(), Limit: min(c.page(r.GetPageSize()), maxFindingsPage), UncorrectedOnly: r.GetUncorrectedOnly(),
	}
	query = "scrub findings\x00" + q.ID
	if q.UncorrectedOnly {
		query += "\x00uncorrected"
	}
	if t := r.GetPageToken(); t != "" && c.err == nil {
		var position string
		if position, c.err = parseToken(c.op, query, t); c.err == nil {
			q.After, q.ID, c.err = parseFindingsPosition(c.op, position)
		}
	}
	return q, query, c.err
}

// findingsPosition is where a page of the findings of a scrub ended.
func findingsPosition(after uint64, id string) string {
	return strconv.FormatUint(after, 10) + " " + id
}

func parseFindingsPosition(op, position string) (after uint64, id string, err error) {
	text, id, found := strings.Cut(position, " ")
	after, err = strconv.ParseUint(text, 10, 64)
	if err != nil || !found || findingsPosition(after, id) != position {
		return 0, "", errdefs.Invalid(op, "page_token", "page_token: this is no token of this server")
	}
	return after, id, nil
}

func scrubStateProto(s scrub.State) shinglev1.ScrubState {
	switch s {
	case scrub.Running:
		return shinglev1.ScrubState_SCRUB_STATE_RUNNING
	case scrub.Paused:
		return shinglev1.ScrubState_SCRUB_STATE_PAUSED
	case scrub.Cancelled:
		return shinglev1.ScrubState_SCRUB_STATE_CANCELLED
	case scrub.Interrupted:
		return shinglev1.ScrubState_SCRUB_STATE_INTERRUPTED
	case scrub.Finished:
		return shinglev1.ScrubState_SCRUB_STATE_FINISHED
	case scrub.Failed:
		return shinglev1.ScrubState_SCRUB_STATE_FAILED
	}
	return shinglev1.ScrubState_SCRUB_STATE_UNSPECIFIED
}

// scrubScopeProto answers nil for the store.
func scrubScopeProto(s engine.ScrubScope) *shinglev1.ScrubScope {
	switch {
	case s.File != "":
		return &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_File{File: s.File}}
	case s.BlockGroup != nil:
		return &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_BlockGroup{BlockGroup: *s.BlockGroup}}
	case s.Device != "":
		return &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_Device{Device: s.Device}}
	}
	return nil
}

func scrubCountersProto(c scrub.Counters) *shinglev1.ScrubCounters {
	return &shinglev1.ScrubCounters{
		DataExtentsScrubbed: c.DataExtentsScrubbed, TreeExtentsScrubbed: c.TreeExtentsScrubbed,
		DataBytesScrubbed: c.DataBytesScrubbed, TreeBytesScrubbed: c.TreeBytesScrubbed,
		ReadErrors: c.ReadErrors, CsumErrors: c.CsumErrors, VerifyErrors: c.VerifyErrors, NoCsum: c.NoCsum,
		CsumDiscards: c.CsumDiscards, SuperErrors: c.SuperErrors, MallocErrors: c.MallocErrors,
		UncorrectableErrors: c.UncorrectableErrors, UnverifiedErrors: c.UnverifiedErrors, CorrectedErrors: c.CorrectedErrors,
		LastPhysical: c.LastPhysical, ExtentLookups: c.ExtentLookups, CsumLookups: c.CsumLookups,
		ReadOperations: c.ReadOperations, BytesRead: c.BytesRead,
	}
}

func findingProto(f engine.ScrubFinding) *shinglev1.Corruption {
	out := &shinglev1.Corruption{
		Name: f.File, FileId: f.FileID, Offset: f.Offset, Length: f.Length, Address: f.Address,
		ExpectedCrc32C: f.Expected, ActualCrc32C: f.Actual, Unreadable: f.Unreadable, Outcome: outcomeProto(f.Outcome),
		Time: timeProto(f.Time), OtherReferences: int32(min(f.OtherReferences, math.MaxInt32)), Object: clip(f.Object),
	}
	if !strings.HasPrefix(f.Object, "metadata") { // which lies in no zone
		out.Zone = &shinglev1.ZoneRef{Device: strconv.FormatUint(uint64(f.Device), 10), Zone: f.Zone, Offset: uint64(f.ZoneOffset)}
	}
	return out
}

func outcomeProto(o scrub.Outcome) shinglev1.CorruptionOutcome {
	switch o {
	case scrub.Repaired:
		return shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_REPAIRED
	case scrub.Uncorrectable:
		return shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_UNCORRECTABLE
	case scrub.NotRepairedReadOnly:
		return shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_NOT_REPAIRED_READ_ONLY
	case scrub.Gone:
		return shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_GONE
	}
	return shinglev1.CorruptionOutcome_CORRUPTION_OUTCOME_UNSPECIFIED
}
