package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
)

// The kinds of scopes, as they are kept on media (docs/format.md 2.14).
const (
	scopeStore  = 0
	scopeFile   = 1
	scopeGroup  = 2
	scopeDevice = 3
)

// newScrub checks a request and makes the record that it begins with.
func (e *Engine) newScrub(op string, r ScrubRequest) (store.Scrub, error) {
	rec := store.Scrub{State: uint8(scrub.Running), ReadOnly: r.ReadOnly, Limit: r.Limit, RequestID: r.RequestID, Started: e.o.Now().UnixNano()}
	scopes := 0
	if r.Scope.File != "" {
		if err := CheckName(r.Scope.File); err != nil {
			return rec, err
		}
		rec.Scope, rec.File = scopeFile, r.Scope.File
		scopes++
	}
	if r.Scope.BlockGroup != nil {
		rec.Scope, rec.Slot = scopeGroup, *r.Scope.BlockGroup
		scopes++
		if int64(rec.Slot) >= int64(e.slots()) {
			return rec, errdefs.New(errdefs.OutOfRange, "", op, fmt.Sprintf("block group %d", rec.Slot), fmt.Sprintf("there are %d block groups", e.slots()))
		}
	}
	if r.Scope.Device != "" {
		rec.Scope, rec.Device = scopeDevice, r.Scope.Device
		scopes++
		if n, err := strconv.ParseUint(rec.Device, 10, 32); err != nil {
			return rec, errdefs.Invalid(op, "scope.device", "device must be a number")
		} else if !e.hasDevice(uint32(n)) {
			return rec, errdefs.New(errdefs.OutOfRange, "", op, "device "+rec.Device, "there is no such device; `client device ls` lists them")
		} else {
			rec.Device = strconv.FormatUint(n, 10)
		}
	}
	switch {
	case scopes > 1:
		return rec, errdefs.Invalid(op, "scope", "at most one of file, block_group and device must be set")
	case r.Limit < 0:
		return rec, errdefs.Invalid(op, "limit", "limit must not be negative")
	case len(r.RequestID) > maxRequestID:
		return rec, errdefs.Invalid(op, "request_id", fmt.Sprintf("request_id has at most %d bytes", maxRequestID))
	}
	return rec, nil
}

// planScrub fixes what the scrub covers, and its total, in one look at the metadata: what it counts is
// what was placed by the last commit that the look sees, or before.
func (e *Engine) planScrub(rec *store.Scrub) error {
	used := e.st.Stats().UsedBytes
	return e.st.View(func(tx *store.Tx) error {
		rec.Placement = tx.CommitSequence()
		rec.Marks, rec.MetadataTotal = nil, 0
		switch rec.Scope {
		case scopeFile:
			n, err := tx.Resolve(rec.File)
			if err != nil {
				return err
			}
			if n.Kind != store.File {
				return errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, "engine.StartScrub", rec.File, "is a directory")
			}
			rec.FileID, rec.Span, rec.Marks = n.ID, extent.MaxFileSize, []int64{n.StoredBytes}
		case scopeGroup:
			g, err := tx.BlockGroup(rec.Slot)
			if err != nil {
				return err
			}
			rec.Span, rec.Marks = e.geo.ZoneSize, []int64{g.LiveBytes}
		default:
			if rec.Scope == scopeStore {
				rec.MetadataTotal = used
			}
			each := max(1, (e.slots()+store.MaxScrubMarks-1)/store.MaxScrubMarks)
			rec.Span = int64(each) * e.geo.ZoneSize
			rec.Marks = make([]int64, max(1, (e.slots()+each-1)/each))
			err := tx.BlockGroups(func(g store.BlockGroup) error {
				on := func(p store.Place) bool { return rec.Device == strconv.FormatUint(uint64(p.Device), 10) && !p.Stale }
				if i := int(g.Slot) / each; i < len(rec.Marks) && (rec.Scope == scopeStore || slices.ContainsFunc(g.Places, on)) {
					rec.Marks[i] += g.LiveBytes
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		rec.Total = rec.MetadataTotal
		for _, n := range rec.Marks {
			rec.Total += n
		}
		return nil
	})
}

// planOf returns the plan of a scrub on record.
func planOf(rec *store.Scrub, zoneSize int64, slots int) scrub.Plan {
	p := scrub.Plan{
		Labels:   rec.Scope == scopeStore || rec.Scope == scopeDevice,
		Metadata: rec.Scope == scopeStore, MetadataTotal: rec.MetadataTotal,
		To: int64(slots) * zoneSize, Span: max(1, rec.Span), Marks: rec.Marks,
	}
	switch rec.Scope {
	case scopeFile:
		p.To = extent.MaxFileSize
	case scopeGroup:
		p.From = int64(rec.Slot) * zoneSize
		p.To = p.From + zoneSize
	}
	if len(p.Marks) == 0 { // zeros of a file or a block group that was empty
		p.Marks = []int64{0}
	}
	return p
}

func progressOf(rec *store.Scrub) scrub.Progress {
	return scrub.Progress{
		Phase: scrub.Phase(rec.Phase), Bucket: rec.Bucket, Key: rec.Key, At: int64(rec.At), InMark: rec.InMark,
		Done: rec.Done, Skipped: rec.Skipped, Counters: countersOf(rec),
	}
}

func putProgress(rec *store.Scrub, p *scrub.Progress) {
	rec.Phase, rec.Bucket, rec.Key, rec.At, rec.InMark = uint8(p.Phase), p.Bucket, p.Key, uint64(p.At), p.InMark
	rec.Done, rec.Skipped = p.Done, p.Skipped
	rec.Counters = rec.Counters[:0]
	for _, n := range counterFields(&p.Counters) {
		rec.Counters = append(rec.Counters, *n)
	}
}

// counterFields returns the counters in the order that they have on media.
func counterFields(c *scrub.Counters) []*uint64 {
	return []*uint64{
		&c.DataExtentsScrubbed, &c.TreeExtentsScrubbed, &c.DataBytesScrubbed, &c.TreeBytesScrubbed,
		&c.ReadErrors, &c.CsumErrors, &c.VerifyErrors, &c.NoCsum, &c.CsumDiscards, &c.SuperErrors, &c.MallocErrors,
		&c.UncorrectableErrors, &c.UnverifiedErrors, &c.CorrectedErrors, &c.LastPhysical,
		&c.ExtentLookups, &c.CsumLookups, &c.ReadOperations, &c.BytesRead,
	}
}

func countersOf(rec *store.Scrub) (c scrub.Counters) {
	for i, n := range counterFields(&c) {
		if i < len(rec.Counters) {
			*n = rec.Counters[i]
		}
	}
	return c
}

// describeScrub answers how a scrub on record stands.
func (e *Engine) describeScrub(rec store.Scrub) Scrub {
	s := Scrub{
		ID: strconv.FormatUint(rec.ID, 10), State: scrub.State(rec.State), ReadOnly: rec.ReadOnly, Limit: rec.Limit,
		Started: time.Unix(0, rec.Started), Active: time.Duration(rec.Active),
		Total: rec.Total, Done: rec.Done, Skipped: rec.Skipped, Counters: countersOf(&rec), Findings: rec.Findings, Error: rec.Error,
	}
	switch rec.Scope {
	case scopeFile:
		s.Scope.File = rec.File
	case scopeGroup:
		s.Scope.BlockGroup = &rec.Slot
	case scopeDevice:
		s.Scope.Device = rec.Device
	}
	if rec.Ended != 0 {
		s.Ended = time.Unix(0, rec.Ended)
	}
	if _, _, run := e.currentScrub(); run != nil && run.id == rec.ID && s.State == scrub.Running {
		s.Active = run.active(e.o.Now())
	}
	if s.Active > 0 {
		s.Rate = int64(float64(s.Done) / s.Active.Seconds())
	}
	if s.Rate > 0 && s.State == scrub.Running {
		if ns := float64(s.Total-s.Done) / float64(s.Rate) * float64(time.Second); ns < math.MaxInt64 {
			s.ETA = time.Duration(ns)
		}
	}
	return s
}

// findingRecords returns what is kept of findings.
func (e *Engine) findingRecords(fs []scrub.Finding) []store.Finding {
	out := make([]store.Finding, len(fs))
	for i, f := range fs {
		out[i] = store.Finding{
			FileID: f.FileID, File: f.File, Off: f.Offset, Len: f.Length, Addr: extent.Addr(f.Address), Device: f.Device, Zone: f.Zone, ZoneOff: f.ZoneOffset,
			Expected: f.Expected, Actual: f.Actual, Unreadable: f.Unreadable, Outcome: uint8(f.Outcome), Time: f.Time.UnixNano(),
			OtherRefs: uint32(f.OtherReferences), Object: f.Object,
		}
	}
	return out
}

func findingOf(f store.Finding) ScrubFinding {
	return ScrubFinding{
		File: f.File, FileID: f.FileID, Offset: f.Off, Length: f.Len, Address: uint64(f.Addr), Device: f.Device, Zone: f.Zone, ZoneOffset: f.ZoneOff,
		Expected: f.Expected, Actual: f.Actual, Unreadable: f.Unreadable, Outcome: scrub.Outcome(f.Outcome), Time: time.Unix(0, f.Time),
		OtherReferences: int(f.OtherRefs), Object: f.Object,
	}
}
