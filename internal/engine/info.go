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

// clear takes a condition back: what it said is no longer so.
func (c *conditions) clear(reason, object string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.m, reason+" "+object)
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
		Copies:    e.copies,
		StoreUUID: e.uuid, BootID: e.boot, StartTime: e.started, FormatVersion: store.FormatVersion,
		Compression: e.codec, NoDelalloc: e.o.NoDelalloc, ReadOnly: e.failed() != nil, DirtyLimit: e.o.DirtyLimit,
		MaxExtentSize: e.maxExtent, MaxWait: e.o.MaxWait, StagedTTL: e.o.StagedTTL, AckInterval: ackInterval,
	}
}

// Geometry returns the geometry of the first device that is there: what all have in common, and its number
// of zones.
func (e *Engine) Geometry() zone.Geometry {
	for _, m := range e.dev.Members() {
		if m.Present {
			return m.Geometry
		}
	}
	return e.geo
}

// rawBytes is what the devices that are there say they hold.
func (e *Engine) rawBytes() (n int64) {
	for _, m := range e.dev.Members() {
		if m.Present {
			n += m.Geometry.DeviceBytes()
		}
	}
	return n
}

// Usage returns the account of space.
func (e *Engine) Usage() Usage {
	a, s := e.al.Usage(), e.st.Stats()
	u := Usage{
		Total: a.Total, Used: a.Used, Free: a.Free, Unusable: a.Unusable, Reserved: a.Reserved, Quarantined: a.Quarantined,
		Reclaimable: a.Reclaimable, Raw: e.rawBytes(), Active: a.Active, MaxActive: a.MaxActive, MaxOpen: e.geo.MaxOpen,
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

// BlockGroups describes block groups [first, first+n); n < 0 means all from first on.
func (e *Engine) BlockGroups(first, n int) []BlockGroupInfo {
	if n < 0 {
		n = e.slots()
	}
	groups := e.al.Snapshot(first, n)
	out := make([]BlockGroupInfo, len(groups))
	for i, g := range groups {
		g.Zone = e.zoneOf(g.Slot)
		out[i] = BlockGroupInfo{g, e.dev.Places(int(g.Slot))}
	}
	return out
}
