package server

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone/array"
)

const maxFileSize = extent.MaxFileSize

// placesProto names the places of a block group, one a copy, at an offset in their zones.
func placesProto(places []array.Place, off int64) []*shinglev1.ZoneRef {
	out := make([]*shinglev1.ZoneRef, len(places))
	for i, p := range places {
		out[i] = &shinglev1.ZoneRef{Device: strconv.Itoa(p.Device), Zone: uint32(p.Zone), Offset: uint64(off)}
	}
	return out
}

func decimal(n int) string { return strconv.Itoa(n) }

// position reads the number in a page token.
func (c *check) position(query, token string) int {
	if c.err != nil {
		return 0
	}
	text, err := parseToken(c.op, query, token)
	if err != nil {
		c.err = err
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		c.err = errdefs.Invalid(c.op, "page_token", "page_token: this is no token of this server")
	}
	return int(n)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func timeProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// codecOf answers nil for the store's default. Unknown values have been refused before.
func codecOf(c shinglev1.Compression) *extent.Codec {
	codec := extent.CodecNone
	switch c {
	case shinglev1.Compression_COMPRESSION_NONE:
	case shinglev1.Compression_COMPRESSION_ZSTD:
		codec = extent.CodecZstd
	default:
		return nil
	}
	return &codec
}

func codecProto(c extent.Codec) shinglev1.Compression {
	switch c {
	case extent.CodecNone:
		return shinglev1.Compression_COMPRESSION_NONE
	case extent.CodecZstd:
		return shinglev1.Compression_COMPRESSION_ZSTD
	}
	return shinglev1.Compression_COMPRESSION_UNSPECIFIED
}

func conditionsOf(p *shinglev1.Preconditions) engine.Preconditions {
	if p == nil {
		return engine.Preconditions{}
	}
	return engine.Preconditions{Generation: p.Generation, FileID: p.FileId, Size: p.Size}
}

func fileProto(f engine.File) *shinglev1.File {
	kind := shinglev1.FileKind_FILE_KIND_FILE
	if f.Directory {
		kind = shinglev1.FileKind_FILE_KIND_DIRECTORY
	}
	return &shinglev1.File{
		Name: f.Name, FileId: f.ID, Generation: f.Generation,
		Size: f.Size, AllocatedBytes: f.Allocated, StoredBytes: f.Stored, DirtyBytes: f.Dirty,
		CreateTime: timeProto(f.Created), UpdateTime: timeProto(f.Updated), Mtime: timeProto(f.Mtime),
		Mode: f.Mode, Attributes: f.Attributes, Compression: codecProto(f.Compression),
		ContentCrc32C: f.ContentCRC, RequestId: f.RequestID, SyncFailed: f.SyncFailed, Kind: kind,
	}
}

func freedProto(f engine.Freed) *shinglev1.Freed {
	return &shinglev1.Freed{FreedBytes: f.FreedBytes, PendingBytes: f.PendingBytes}
}

func usageProto(u engine.Usage) *shinglev1.Usage {
	return &shinglev1.Usage{
		TotalBytes: u.Total, UsedBytes: u.Used, FreeBytes: u.Free, ZoneUnusableBytes: u.Unusable,
		ReservedBytes: u.Reserved, QuarantinedBytes: u.Quarantined,
		ReclaimableBytes: u.Reclaimable, DirtyBytes: u.Dirty, RawBytes: u.Raw,
		ActiveZones: int32(u.Active), MaxActiveZones: int32(u.MaxActive),
		OpenZones: int32(u.Open), MaxOpenZones: int32(u.MaxOpen),
		MetadataBytes: u.Metadata, MetadataMaxBytes: u.MetadataMax,
		Files: u.Files, LogicalBytes: u.Logical, StoredBytes: u.Stored, InlineBytes: u.Inline, Extents: u.Extents,
		WritableEstimateBytes: u.Writable, ReclaimRunning: u.Reclaiming,
		Unusable: &shinglev1.UnusableSpace{
			DeadBytes: u.Unusable - u.Tails - u.Failed - u.Lent, TailBytes: u.Tails, FailedBytes: u.Failed, LentBytes: u.Lent,
			RelocatableBytes: u.Relocatable, StuckBytes: u.Stuck,
		},
		Reserved: &shinglev1.ReservedSpace{ReceivedBytes: u.Reserved - u.Pending, PendingBytes: u.Pending},
	}
}

func classesProto(classes []alloc.ClassUsage) (out []*shinglev1.ClassSpace) {
	for _, c := range classes {
		out = append(out, &shinglev1.ClassSpace{
			Class: blockGroupClassProto(c.Class), Conventional: c.Conventional, BlockGroups: c.BlockGroups,
			Capacity: c.Total, Used: c.Used, Free: c.Free, ZoneUnusable: c.Unusable, Pending: c.Pending, Quarantined: c.Quarantined,
		})
	}
	return out
}

func writeStateProto(s engine.WriteState) shinglev1.WriteState {
	switch s {
	case engine.WaitingWriteback:
		return shinglev1.WriteState_WRITE_STATE_WAITING_WRITEBACK
	case engine.WaitingSpace:
		return shinglev1.WriteState_WRITE_STATE_WAITING_SPACE
	case engine.Finished:
		return shinglev1.WriteState_WRITE_STATE_FINISHED
	}
	return shinglev1.WriteState_WRITE_STATE_ACCEPTING
}
