package engine

import (
	"io"
	"log/slog"
	"runtime"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/reclaim"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// Options configure Open. The zero value of a field means its default; Device, MetadataPath,
// Now and Random have none.
type Options struct {
	// Device holds the data. The engine owns it from Open on, also when Open fails.
	Device zone.Device
	// PLACEHOLDER, the engine's own takes its place on merging: Devices instead of Device, of which only the
	// first is used here, and OpenDevice, which is not.
	Devices    []Device
	OpenDevice func(path string) (zone.Device, error)
	// MetadataPath is the bbolt file.
	MetadataPath string
	// MetadataLimit bounds the metadata file, in bytes. Default: 1/64 of the device's usable
	// bytes, at least 64 MiB and at most 16 GiB.
	MetadataLimit int64
	// Compression is used for files that do not choose. Default: what the store was formatted with.
	Compression *extent.Codec
	// NoDelalloc places and appends inside Write. Default false.
	NoDelalloc bool
	// DirtyLimit bounds the memory of received data that is not durable yet, in bytes.
	// Default 512 MiB; at least 8 MiB.
	DirtyLimit int64
	// ReadLimit bounds the memory that holds what was read until clients have taken it, in bytes.
	// Half of it gives each open Reader 128 KiB of its own, the other half is lent to those whose
	// clients keep up. Default 256 MiB; at least 8 MiB.
	ReadLimit int64
	// MaxWait is how long a Write waits for writeback or space without progress when its
	// caller does not say, and a Read for others to end. Default 30 s.
	MaxWait time.Duration
	// StagedTTL is how long an unfinished replace with a write_id is kept. Default 24 h.
	StagedTTL time.Duration
	// WritebackAge is how old dirty data gets before it is written back. Default 10 s.
	WritebackAge time.Duration
	// Reclaim says when live data is moved to get space back, and how hard.
	Reclaim reclaim.Options
	// ScrubMemory bounds the memory that a scrub reads into, in bytes. Default 32 MiB; at least 1 MiB.
	ScrubMemory int64
	// ScrubGroup bounds what a scrub has read and not recorded, in bytes, beside the time of half a
	// second: what it reads again at most when it is resumed. Default 256 MiB; at least 1 MiB.
	ScrubGroup int64
	// Workers is the number of compression workers. Default: the number of processors.
	Workers int
	// Now is the clock.
	Now func() time.Time
	// Random gives the boot id; crypto/rand.Reader outside tests.
	Random io.Reader
	// Logger gets what an operator should know. Default: discarded.
	Logger *slog.Logger
	// MetadataNoSync skips fdatasync of the metadata file: tests only, a crash loses data.
	MetadataNoSync bool
	// AroundCommit, unless nil, stands around every metadata transaction: it runs commit, once, and
	// answers for it, or answers an error and does not. It may wait. For simulators that cut the
	// power there: default none.
	AroundCommit func(commit func() error) error

	// collect overrides extent.MaxRangeSize: the uncured baseline of BenchmarkS0CollectLarge.
	collect int64
	// before, unless nil, wraps what a commit begins with, so that the crash walk can cut the
	// power there.
	before func(beforeCommit) beforeCommit
}

// Validate names the first field that cannot be used.
func (o *Options) Validate() error {
	const op = "engine.Open"
	switch {
	case o.Device == nil:
		return errdefs.Invalid(op, "Device", "Device must be given")
	case o.MetadataPath == "":
		return errdefs.Invalid(op, "MetadataPath", "MetadataPath must be given")
	case o.Now == nil:
		return errdefs.Invalid(op, "Now", "Now must be given")
	case o.Random == nil:
		return errdefs.Invalid(op, "Random", "Random must be given")
	case o.DirtyLimit != 0 && o.DirtyLimit < minDirtyLimit:
		return errdefs.Invalid(op, "DirtyLimit", "DirtyLimit must be at least 8 MiB")
	case o.ReadLimit != 0 && o.ReadLimit < minReadLimit:
		return errdefs.Invalid(op, "ReadLimit", "ReadLimit must be at least 8 MiB")
	case o.MaxWait < 0:
		return errdefs.Invalid(op, "MaxWait", "MaxWait must not be negative")
	case o.StagedTTL < 0:
		return errdefs.Invalid(op, "StagedTTL", "StagedTTL must not be negative")
	case o.WritebackAge < 0:
		return errdefs.Invalid(op, "WritebackAge", "WritebackAge must not be negative")
	case o.Reclaim.Validate() != nil:
		return o.Reclaim.Validate()
	case o.ScrubMemory != 0 && o.ScrubMemory < scrub.MinMemory:
		return errdefs.Invalid(op, "ScrubMemory", "ScrubMemory must be at least 1 MiB")
	case o.ScrubGroup != 0 && o.ScrubGroup < scrub.MinGroup:
		return errdefs.Invalid(op, "ScrubGroup", "ScrubGroup must be at least 1 MiB")
	case o.Workers < 0:
		return errdefs.Invalid(op, "Workers", "Workers must not be negative")
	case o.MetadataLimit < 0:
		return errdefs.Invalid(op, "MetadataLimit", "MetadataLimit must not be negative")
	}
	if c := o.Compression; c != nil && *c != extent.CodecNone && *c != extent.CodecZstd {
		return errdefs.Invalid(op, "Compression", "Compression "+c.String()+" is not built in; use none or zstd")
	}
	return nil
}

const (
	minDirtyLimit = 8 << 20
	// ackInterval is how much progress a Write reply may lag behind, in bytes.
	ackInterval = 4 << 20
	// maxMessage is the most data of one Writer.Write, in bytes (Limits.max_data_bytes).
	maxMessage = 2 << 20
	// readWindow is the most bytes a Reader looks up, pins and reads at once.
	readWindow = 1 << 20
	// metadataPerBlock is what a dirty block may cost in the metadata file: one file extent,
	// extent, back-reference and checksum record, each on a page that splits. See docs/format.md 2.
	metadataPerBlock = 768
	// metadataPerInline is what a small file's data may cost there: a page of its own.
	metadataPerInline = 4096
	// appendsInFlight bounds the appends of one range that are under way together.
	appendsInFlight = 4
	// placeTries is how many zones may refuse an extent before its range is given up.
	placeTries = 8
	// redoTries is how many failed flushes a range survives before the error sticks to it.
	redoTries = 3
)

// beforeCommit is what the group commit calls before each batch: store.GroupOptions.Before.
type beforeCommit func() (apply store.Change, done func(error), err error)

func (o *Options) setDefaults(g zone.Geometry) {
	if o.MetadataLimit == 0 {
		o.MetadataLimit = min(max(int64(g.Zones)*g.ZoneCapacity/64, 64<<20), 16<<30)
	}
	if o.DirtyLimit == 0 {
		o.DirtyLimit = 512 << 20
	}
	if o.ReadLimit == 0 {
		o.ReadLimit = 256 << 20
	}
	if o.MaxWait == 0 {
		o.MaxWait = 30 * time.Second
	}
	if o.StagedTTL == 0 {
		o.StagedTTL = 24 * time.Hour
	}
	if o.WritebackAge == 0 {
		o.WritebackAge = 10 * time.Second
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.before == nil {
		o.before = func(b beforeCommit) beforeCommit { return b }
	}
	if o.collect == 0 {
		o.collect = extent.MaxRangeSize
	}
}
