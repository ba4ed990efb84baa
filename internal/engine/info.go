package engine

import (
	"fmt"
	"math"
	"sort"
	"sync"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// conditions are what is wrong now, one for each reason and object.
type conditions struct {
	mu sync.Mutex
	m  map[string]Condition
}

// maxConditions bounds the list; what comes after is in the log.
const maxConditions = 1000

func (c *conditions) set(x Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := x.Reason + " " + x.Object
	if old, ok := c.m[key]; ok {
		x.Since = old.Since
	} else if len(c.m) >= maxConditions {
		return
	}
	c.m[key] = x
}

// Conditions returns what is wrong now, worst first: the open report, failed zones, corruption
// met, ranges that cannot be made durable. Empty is healthy.
func (e *Engine) Conditions() []Condition {
	e.cond.mu.Lock()
	out := make([]Condition, 0, len(e.cond.m))
	for _, c := range e.cond.m {
		out = append(out, c)
	}
	e.cond.mu.Unlock()
	if s := e.st.Stats(); s.SetAside < s.MaxBytes {
		out = append(out, Condition{
			Reason: string(errdefs.ReasonMetadataSpace), Severity: Warning, Object: "metadata", Since: e.started,
			Message: fmt.Sprintf("the disk that holds the metadata had no room for all of its %d bytes: %d are set aside", s.MaxBytes, s.SetAside),
			Advice:  "make room on that disk; more is set aside when it is needed",
		})
	}
	for _, f := range e.busyFiles() {
		f.mu.Lock()
		err := f.failedErrorLocked()
		f.mu.Unlock()
		if err != nil {
			out = append(out, Condition{
				Reason: string(errdefs.ReasonSyncFailed), Severity: Error, Object: "files/" + e.nameOf(f.id), Message: err.Error(),
				Advice: "read the file while the engine runs; rewrite or delete it to end the error", Since: e.started,
			})
		}
		e.release(f)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Severity != out[j].Severity {
			return out[i].Severity > out[j].Severity
		}
		return out[i].Reason+out[i].Object < out[j].Reason+out[j].Object
	})
	return out
}

// Info describes this run.
func (e *Engine) Info() ServerInfo {
	return ServerInfo{
		StoreUUID: e.uuid, BootID: e.boot, StartTime: e.started, FormatVersion: store.FormatVersion,
		Compression: e.codec, NoDelalloc: e.o.NoDelalloc, ReadOnly: e.failed() != nil, DirtyLimit: e.o.DirtyLimit,
		MaxExtentSize: e.maxExtent, MaxWait: e.o.MaxWait, StagedTTL: e.o.StagedTTL, AckInterval: ackInterval,
	}
}

// Geometry returns the device's geometry.
func (e *Engine) Geometry() zone.Geometry { return e.geo }

// Usage returns the account of space.
func (e *Engine) Usage() Usage {
	a, s := e.al.Usage(), e.st.Stats()
	u := Usage{
		Total: a.Total, Used: a.Used, Free: a.Free, Unusable: a.Unusable, Reserved: a.Reserved, Quarantined: a.Quarantined,
		Reclaimable: a.Reclaimable, Raw: e.geo.DeviceBytes(), Active: a.Active, MaxActive: a.MaxActive, MaxOpen: e.geo.MaxOpen,
		Dirty: e.mode.Dirty() + e.waiting.Load(), Metadata: s.UsedBytes, MetadataMax: s.MaxBytes,
	}
	// Copies of what is being moved are nobody's promise: they become used when what they were made of
	// becomes unusable.
	u.Lent = min(max(e.rc.copies.Load(), 0), u.Reserved)
	u.Reserved -= u.Lent
	u.Unusable += u.Lent
	movable, stuck := e.rc.index.Dead()
	u.Relocatable = min(movable+e.al.ActiveDead(), u.Unusable-min(u.Reclaimable, u.Unusable))
	u.Stuck = min(stuck, u.Unusable-u.Relocatable)
	u.Tails, u.Failed, u.Pending, u.Reclaiming = a.Tails, a.Failed, min(a.Pending, u.Reserved), e.Reclaiming()
	room := max(0, s.MaxBytes-s.MaxBytes/8-s.UsedBytes) // as metadataRoom has it
	u.Writable = min(u.Free+u.Unusable-u.Stuck, room/metadataPerBlock*extent.BlockSize)
	if e.geo.MaxActive > 0 {
		u.MaxActive = e.geo.MaxActive
	} else if e.geo.MaxOpen == 0 {
		u.MaxActive = 0
	}
	return u
}

// Classes returns the account of space of each class and kind of block groups that there is.
func (e *Engine) Classes() []alloc.ClassUsage { return e.al.ByClass() }

// Totals is Usage with the files and extents counted and added up, as they are on record. The
// metadata keeps the sums (store.Totals), so it costs one look-up however much is stored.
func (e *Engine) Totals() (Usage, error) {
	u := e.Usage()
	err := e.st.View(func(tx *store.Tx) error {
		t := tx.Superblock().Totals
		u.Files, u.Logical, u.Stored, u.Inline, u.Extents = t.Files, t.Logical, t.Stored, t.Inline, t.Extents
		return nil
	})
	if u.Logical < 0 {
		u.Logical = math.MaxInt64 // the sizes of sparse files add up to more
	}
	return u, err
}

// Zones describes zones [first, first+n) of the device; n < 0 means all from first on.
func (e *Engine) Zones(first, n int) ([]ZoneInfo, error) {
	zs, err := e.dev.Report(first, n)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Zones", "zone report", err)
	}
	a, b, err := label.Zones(e.geo)
	if err != nil {
		return nil, err
	}
	out := make([]ZoneInfo, len(zs))
	for i, z := range zs {
		out[i] = ZoneInfo{Zone: z, Start: int64(z.Index) * e.geo.ZoneSize, BlockGroup: -1}
		slot := sort.SearchInts(e.zones, z.Index)
		switch {
		case z.Index == a || z.Index == b:
			out[i].Use = "label"
		case slot < len(e.zones) && e.zones[slot] == z.Index:
			g := e.al.Snapshot(slot, 1)[0]
			out[i].Use, out[i].BlockGroup = "data", int64(slot)
			out[i].Live, out[i].Unusable = g.Live, g.Unusable
			out[i].Quarantined = g.State == alloc.Quarantined || g.State == alloc.ReadOnly
		case !e.geo.IsSequential(z.Index):
			out[i].Use = "conventional"
		}
	}
	return out, nil
}

// BlockGroups describes block groups [first, first+n); n < 0 means all from first on.
func (e *Engine) BlockGroups(first, n int) []alloc.BlockGroup {
	if n < 0 {
		n = len(e.zones)
	}
	return e.al.Snapshot(first, n)
}
