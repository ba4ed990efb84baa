package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestCollectPages(t *testing.T) {
	const total = 2500
	fetches := 0
	fetch := func(first, n int) (out []int, err error) {
		fetches++
		for i := first; i < min(first+n, total); i++ {
			out = append(out, i)
		}
		return out, nil
	}
	for _, every := range []int{1, 7, 1000, 5000} {
		for _, size := range []int{1, 3, 1000} {
			var got []int
			pages := 0
			for next := 0; next >= 0; pages++ {
				page, n, err := collect(t.Context(), next, size, total, fetch,
					func(i int) bool { return i%every == every-1 }, func(i int) int { return i })
				if err != nil {
					t.Fatal(err)
				}
				if n >= 0 && len(page) != size {
					t.Fatalf("every %d, size %d: a page of %d in the middle", every, size, len(page))
				}
				got, next = append(got, page...), n
			}
			want := total / every
			if len(got) != want || !slices.IsSorted(got) || pages != max(1, (want+size-1)/size) {
				t.Errorf("every %d, size %d: %d items, want %d, in %d pages", every, size, len(got), want, pages)
			}
			if every == 1 && size == 1 {
				break
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fetches = 0
	if _, _, err := collect(ctx, 0, 1, total, fetch, func(int) bool { return false }, func(i int) int { return i }); err == nil || fetches != 0 {
		t.Errorf("after cancel: %v, %d fetches", err, fetches)
	}
	fail := errdefs.New(errdefs.Device, errdefs.ReasonDeviceIO, "zone.Report", "", "no")
	_, _, err := collect(t.Context(), 0, 1, total, func(int, int) ([]int, error) { return nil, fail },
		func(int) bool { return true }, func(i int) int { return i })
	if !errdefs.Is(err, errdefs.Device) {
		t.Errorf("%v", err)
	}
}

func TestAtLeastPercent(t *testing.T) {
	for _, c := range []struct {
		part, whole int64
		percent     uint32
		want        bool
	}{
		{0, 100, 0, true}, {0, 100, 1, false}, {75, 100, 75, true}, {74, 100, 75, false}, {100, 100, 100, true},
		{1, 3, 33, true}, {1, 3, 34, false}, {1<<62 - 1, 1<<62 - 1, 100, true}, {1<<62 - 2, 1<<62 - 1, 100, false},
	} {
		if got := atLeastPercent(c.part, c.whole, c.percent); got != c.want {
			t.Errorf("%d of %d >= %d%%: %v", c.part, c.whole, c.percent, got)
		}
	}
}

func TestPagesOfFilesAreBounded(t *testing.T) {
	var files []engine.File
	for i := range 10 {
		files = append(files, engine.File{
			Name: fmt.Sprintf("d/%d", i), Directory: i%2 == 0, Attributes: map[string]string{"k": strings.Repeat("v", 1000)},
		})
	}
	for _, c := range []struct {
		limit, n int
		last     string
	}{
		{1 << 20, 10, ""}, {0, 1, "d/0/"}, {1, 1, "d/0/"}, {2200, 2, "d/1"}, {3400, 3, "d/2/"},
	} {
		out, last := filePage(files, c.limit)
		if len(out) != c.n || last != c.last {
			t.Errorf("limit %d: %d files, last %q", c.limit, len(out), last)
		}
		size := 0
		for _, f := range out {
			size += proto.Size(f)
		}
		if len(out) > 1 && size > c.limit {
			t.Errorf("limit %d: %d bytes", c.limit, size)
		}
	}
	if out, last := filePage(nil, 1); out != nil || last != "" {
		t.Errorf("%v %q", out, last)
	}
}

// TestEnumsAgree holds the enums of the API and the engine's types together by name.
func TestEnumsAgree(t *testing.T) {
	for c, want := range map[zone.Condition]string{
		zone.NotWP: "NOT_WP", zone.Empty: "EMPTY", zone.ImplicitOpen: "IMPLICIT_OPEN", zone.ExplicitOpen: "EXPLICIT_OPEN",
		zone.Closed: "CLOSED", zone.Full: "FULL", zone.ReadOnly: "READ_ONLY", zone.Offline: "OFFLINE",
	} {
		if got := zoneConditionProto(c).String(); got != "ZONE_CONDITION_"+want {
			t.Errorf("condition %d is %s, want %s", c, got, want)
		}
	}
	states := map[string]bool{}
	for s := alloc.Empty; s <= alloc.Quarantined; s++ {
		got := blockGroupStateProto(s).String()
		if want := strings.ToUpper(strings.ReplaceAll(s.String(), "-", "_")); got != "BLOCK_GROUP_STATE_"+want {
			t.Errorf("state %v is %s", s, got)
		}
		states[got] = true
	}
	states[pb.BlockGroupState_BLOCK_GROUP_STATE_RELOCATING.String()] = true // no allocator's state: reclaim says so
	if len(states) != len(pb.BlockGroupState_name)-1 {
		t.Errorf("%d states of %d", len(states), len(pb.BlockGroupState_name)-1)
	}
	if blockGroupStateProto(200) != 0 || zoneUseProto("x") != 0 || codecProto(extent.CodecLZ4) != 0 {
		t.Error("what the API cannot say is UNSPECIFIED")
	}
	for _, c := range []pb.Compression{pb.Compression_COMPRESSION_NONE, pb.Compression_COMPRESSION_ZSTD} {
		if got := codecProto(*codecOf(c)); got != c {
			t.Errorf("%v comes back as %v", c, got)
		}
	}
	for s, want := range map[engine.WriteState]pb.WriteState{
		engine.Accepting: pb.WriteState_WRITE_STATE_ACCEPTING, engine.WaitingWriteback: pb.WriteState_WRITE_STATE_WAITING_WRITEBACK,
		engine.WaitingSpace: pb.WriteState_WRITE_STATE_WAITING_SPACE, engine.Finished: pb.WriteState_WRITE_STATE_FINISHED,
	} {
		if got := writeStateProto(s); got != want {
			t.Errorf("%d is %v", s, got)
		}
	}
	for s, want := range map[engine.Severity]pb.Severity{
		engine.Info: pb.Severity_SEVERITY_INFO, engine.Warning: pb.Severity_SEVERITY_WARNING, engine.Error: pb.Severity_SEVERITY_ERROR,
	} {
		if got := severityProto(s); got != want {
			t.Errorf("%d is %v", s, got)
		}
	}
}

// TestUsageIsComplete fills every field of engine.Usage with a different number and looks for
// each in the message.
func TestUsageIsComplete(t *testing.T) {
	u := usageProto(engine.Usage{
		Total: 1, Used: 2, Free: 3, Quarantined: 6, Reclaimable: 7, Dirty: 8, Raw: 9,
		Active: 10, MaxActive: 11, Open: 12, MaxOpen: 13, Metadata: 14, MetadataMax: 15,
		Files: 16, Logical: 17, Stored: 18, Inline: 19, Extents: 20,
		Unusable: 40, Reserved: 50, Relocatable: 21, Stuck: 22, Tails: 3, Failed: 4, Lent: 2, Pending: 20, Writable: 23, Reclaiming: true,
	})
	want := &pb.Usage{
		TotalBytes: 1, UsedBytes: 2, FreeBytes: 3, ZoneUnusableBytes: 40, ReservedBytes: 50, QuarantinedBytes: 6, ReclaimableBytes: 7,
		DirtyBytes: 8, RawBytes: 9, ActiveZones: 10, MaxActiveZones: 11, OpenZones: 12, MaxOpenZones: 13, MetadataBytes: 14,
		MetadataMaxBytes: 15, Files: 16, LogicalBytes: 17, StoredBytes: 18, InlineBytes: 19, Extents: 20,
		WritableEstimateBytes: 23, ReclaimRunning: true,
		Unusable: &pb.UnusableSpace{DeadBytes: 31, TailBytes: 3, FailedBytes: 4, LentBytes: 2, RelocatableBytes: 21, StuckBytes: 22},
		Reserved: &pb.ReservedSpace{ReceivedBytes: 30, PendingBytes: 20},
	}
	if !proto.Equal(u, want) {
		t.Errorf("%v", u)
	}
	// In the contract, and not answered yet.
	later := map[protoreflect.Name]bool{"overhead": true, "classes": true}
	fields := u.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if u.ProtoReflect().Has(fields.Get(i)) == later[fields.Get(i).Name()] {
			t.Errorf("%s is set or not, against what is said here", fields.Get(i).Name())
		}
	}
}
