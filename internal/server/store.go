package server

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/zone"
)

// features is GetServerInfoResponse.features, sorted.
var features = []string{
	"clone", "compression.none", "compression.zstd", "copies.2", "devices", "map", "scrub", "trim", "write.in_place", "write.nodelalloc", "write.replace",
	"write.resume",
}

// GetServerInfo implements the RPC.
func (s *storeService) GetServerInfo(ctx context.Context, _ *shinglev1.GetServerInfoRequest) (*shinglev1.GetServerInfoResponse, error) {
	e, err := s.open("server.GetServerInfo")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	i := e.Info()
	return &shinglev1.GetServerInfoResponse{
		Version: s.o.Version, Revision: s.o.Revision,
		StoreUuid: uuid.UUID(i.StoreUUID).String(), BootId: i.BootID, StartTime: timeProto(i.StartTime),
		FormatVersion: i.FormatVersion, Features: features, ReadOnly: i.ReadOnly, Copies: uint32(max(1, i.Copies)),
		DefaultCompression: codecProto(i.Compression), Nodelalloc: i.NoDelalloc,
		Limits: &shinglev1.Limits{
			MaxDataBytes: maxDataBytes, PreferredDataBytes: preferredDataBytes, AckIntervalBytes: i.AckInterval,
			MaxNameBytes: maxNameBytes, MaxAttributeBytes: maxAttributeBytes, MaxFileSize: maxFileSize,
			DirtyLimitBytes: i.DirtyLimit, MaxExtentSize: i.MaxExtentSize, MaxPageSize: maxPageSize,
			DefaultMaxWait: durationpb.New(i.MaxWait), StagedWriteTtl: durationpb.New(i.StagedTTL),
		},
		Geometry: geometryProto(e.Geometry()), AddressSpaceEnd: e.AddressSpaceEnd(),
	}, nil
}

func geometryProto(g zone.Geometry) *shinglev1.Geometry {
	dialect := shinglev1.ZoneDialect_ZONE_DIALECT_UNSPECIFIED
	switch g.Dialect {
	case zone.ZNS:
		dialect = shinglev1.ZoneDialect_ZONE_DIALECT_ZNS
	case zone.SMR:
		dialect = shinglev1.ZoneDialect_ZONE_DIALECT_SMR
	}
	return &shinglev1.Geometry{
		Dialect: dialect, ZoneSize: g.ZoneSize, ZoneCapacity: g.ZoneCapacity,
		Zones: int32(g.Zones), ConventionalZones: int32(g.Conventional),
		MaxOpenZones: int32(g.MaxOpen), MaxActiveZones: int32(g.MaxActive), AppendLimit: g.AppendLimit,
	}
}

// GetUsage implements the RPC.
func (s *storeService) GetUsage(ctx context.Context, _ *shinglev1.GetUsageRequest) (*shinglev1.GetUsageResponse, error) {
	e, err := s.open("server.GetUsage")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	u, err := e.Totals()
	if err != nil {
		return nil, s.status(ctx, err)
	}
	out := usageProto(u)
	out.Classes = classesProto(e.Classes())
	return &shinglev1.GetUsageResponse{Usage: out}, nil
}

// ListConditions implements the RPC.
func (s *storeService) ListConditions(ctx context.Context, _ *shinglev1.ListConditionsRequest) (*shinglev1.ListConditionsResponse, error) {
	e, err := s.open("server.ListConditions")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	out := &shinglev1.ListConditionsResponse{}
	for _, c := range e.Conditions() {
		out.Conditions = append(out.Conditions, &shinglev1.Condition{
			Reason: c.Reason, Severity: severityProto(c.Severity), Object: c.Object,
			Message: c.Message, Advice: c.Advice, Since: timeProto(c.Since),
		})
	}
	slices.SortStableFunc(out.Conditions, func(a, b *shinglev1.Condition) int {
		return cmp.Compare(b.GetSeverity(), a.GetSeverity())
	})
	return out, nil
}

func severityProto(s engine.Severity) shinglev1.Severity {
	switch s {
	case engine.Info:
		return shinglev1.Severity_SEVERITY_INFO
	case engine.Warning:
		return shinglev1.Severity_SEVERITY_WARNING
	}
	return shinglev1.Severity_SEVERITY_ERROR
}

// GetCounters implements the RPC.
func (s *storeService) GetCounters(ctx context.Context, _ *shinglev1.GetCountersRequest) (*shinglev1.GetCountersResponse, error) {
	e, err := s.open("server.GetCounters")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.GetCountersResponse{BootId: e.Info().BootID, Counters: e.Counters()}, nil
}

// ListZones implements the RPC.
func (s *storeService) ListZones(ctx context.Context, r *shinglev1.ListZonesRequest) (*shinglev1.ListZonesResponse, error) {
	first, size, query, err := zonesRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.ListZones")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	g := e.Geometry()
	page, next, err := collect(ctx, first, size, e.ZoneCount(), e.Zones, func(z engine.ZoneInfo) bool {
		return len(r.GetConditions()) == 0 || slices.Contains(r.GetConditions(), zoneConditionProto(z.Condition))
	}, func(z engine.ZoneInfo) int { return z.Position })
	if err != nil {
		return nil, s.status(ctx, err)
	}
	out := &shinglev1.ListZonesResponse{}
	for _, z := range page {
		out.Zones = append(out.Zones, zoneProto(z, g))
	}
	if next >= 0 {
		out.NextPageToken = pageToken(query, decimal(next))
	}
	return out, nil
}

// ListBlockGroups implements the RPC.
func (s *storeService) ListBlockGroups(ctx context.Context, r *shinglev1.ListBlockGroupsRequest) (*shinglev1.ListBlockGroupsResponse, error) {
	first, size, query, err := blockGroupsRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.ListBlockGroups")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	g := e.Geometry()
	fetch := func(first, n int) ([]engine.BlockGroupInfo, error) { return e.BlockGroups(first, n), nil }
	page, next, err := collect(ctx, first, size, g.Zones, fetch, func(b engine.BlockGroupInfo) bool {
		return (len(r.GetStates()) == 0 || slices.Contains(r.GetStates(), blockGroupStateProto(b.State))) &&
			atLeastPercent(b.Unusable, b.Capacity, r.GetMinUnusablePercent())
	}, func(b engine.BlockGroupInfo) int { return int(b.Slot) })
	if err != nil {
		return nil, s.status(ctx, err)
	}
	out := &shinglev1.ListBlockGroupsResponse{}
	for _, b := range page {
		out.BlockGroups = append(out.BlockGroups, blockGroupProto(b, g))
	}
	if next >= 0 {
		out.NextPageToken = pageToken(query, decimal(next))
	}
	return out, nil
}

// atLeastPercent reports part / whole >= percent / 100.
func atLeastPercent(part, whole int64, percent uint32) bool {
	hi1, lo1 := bits.Mul64(uint64(part), 100)
	hi2, lo2 := bits.Mul64(uint64(whole), uint64(percent))
	return hi1 > hi2 || hi1 == hi2 && lo1 >= lo2
}

// collect gathers up to size items that match, from number first on, below end. next is the
// number of the next one that matches, or -1. fetch answers items by number from first on, n
// at most; fewer mean the end. Filters look at everything, so ctx is checked between fetches.
func collect[T any](
	ctx context.Context, first, size, end int,
	fetch func(first, n int) ([]T, error), match func(T) bool, number func(T) int,
) (out []T, next int, err error) {
	for first < end {
		if err := ctx.Err(); err != nil {
			return nil, -1, err
		}
		n := min(maxPageSize, end-first)
		items, err := fetch(first, n)
		if err != nil {
			return nil, -1, err
		}
		for _, it := range items {
			if !match(it) {
				continue
			}
			if len(out) == size {
				return out, number(it), nil
			}
			out = append(out, it)
		}
		if len(items) < n {
			break
		}
		first = number(items[len(items)-1]) + 1
	}
	return out, -1, nil
}

func zoneProto(z engine.ZoneInfo, g zone.Geometry) *shinglev1.Zone {
	out := &shinglev1.Zone{
		Device: strconv.FormatUint(uint64(z.Device), 10), Zone: uint32(z.Index), Start: uint64(z.Start),
		Size: uint64(z.Size), Capacity: uint64(z.Capacity), WritePointer: uint64(z.WP),
		Condition: zoneConditionProto(z.Condition), Conventional: z.Index < g.Conventional, Quarantined: z.Quarantined,
		LiveBytes: uint64(z.Live), UnusableBytes: uint64(z.Unusable), Resets: z.Resets, Use: zoneUseProto(z.Use),
	}
	if z.BlockGroup >= 0 {
		slot := uint32(z.BlockGroup)
		out.BlockGroup = &slot
	}
	return out
}

func zoneUseProto(use string) shinglev1.ZoneUse {
	switch use {
	case "data":
		return shinglev1.ZoneUse_ZONE_USE_DATA
	case "label":
		return shinglev1.ZoneUse_ZONE_USE_LABEL
	case "conventional":
		return shinglev1.ZoneUse_ZONE_USE_CONVENTIONAL
	}
	return shinglev1.ZoneUse_ZONE_USE_UNSPECIFIED
}

// zoneConditionProto relies on both lists being in the order of the standards; a test holds
// their names together.
func zoneConditionProto(c zone.Condition) shinglev1.ZoneCondition {
	return shinglev1.ZoneCondition(c) + shinglev1.ZoneCondition_ZONE_CONDITION_NOT_WP
}

func blockGroupProto(b engine.BlockGroupInfo, g zone.Geometry) *shinglev1.BlockGroup {
	state := blockGroupStateProto(b.State)
	if b.Pinned && b.State == alloc.Full {
		state = shinglev1.BlockGroupState_BLOCK_GROUP_STATE_RELOCATING
	}
	return &shinglev1.BlockGroup{
		BlockGroup: b.Slot, Start: uint64(b.Slot) * uint64(g.ZoneSize), Class: blockGroupClassProto(b.Class), State: state,
		Generation: b.Generation, Capacity: uint64(b.Capacity), AllocOffset: uint64(b.AllocOffset),
		Used: uint64(b.Live), ZoneUnusable: uint64(b.Unusable), Pending: uint64(b.Pending),
		Zones:        placesProto(b.Places, 0),
		Conventional: b.Conventional,
	}
}

func blockGroupClassProto(c alloc.Class) shinglev1.BlockGroupClass {
	switch c {
	case alloc.ClassData:
		return shinglev1.BlockGroupClass_BLOCK_GROUP_CLASS_DATA
	case alloc.ClassRelocation:
		return shinglev1.BlockGroupClass_BLOCK_GROUP_CLASS_RELOCATION
	}
	return shinglev1.BlockGroupClass_BLOCK_GROUP_CLASS_UNSPECIFIED
}

func blockGroupStateProto(s alloc.State) shinglev1.BlockGroupState {
	switch s {
	case alloc.Empty:
		return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_EMPTY
	case alloc.Active:
		return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_ACTIVE
	case alloc.Full:
		return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_FULL
	case alloc.Closing:
		return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_CLOSING
	case alloc.Resetting:
		return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_RESETTING
	case alloc.ReadOnly:
		return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_READ_ONLY
	case alloc.Quarantined:
		return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_QUARANTINED
	}
	return shinglev1.BlockGroupState_BLOCK_GROUP_STATE_UNSPECIFIED
}
