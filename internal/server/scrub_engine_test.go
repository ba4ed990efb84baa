package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/zone"
)

const (
	scrubRunning     = pb.ScrubState_SCRUB_STATE_RUNNING
	scrubPaused      = pb.ScrubState_SCRUB_STATE_PAUSED
	scrubCancelled   = pb.ScrubState_SCRUB_STATE_CANCELLED
	scrubInterrupted = pb.ScrubState_SCRUB_STATE_INTERRUPTED
	scrubFinished    = pb.ScrubState_SCRUB_STATE_FINISHED
)

// put makes a durable file of noise, as it is.
func put(s *stored, name string, seed int64, n int) []byte {
	s.t.Helper()
	data := noise(seed, n)
	o := &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE, Compression: pb.Compression_COMPRESSION_NONE}
	if _, err := s.write(&pb.WriteRequest{Name: name, Options: o}, data, 1<<20); err != nil {
		s.t.Fatal(err)
	}
	return data
}

// place is where the block of a file at the offset lies.
func place(s *stored, name string, offset int64) (zone int, at int64, address uint64) {
	s.t.Helper()
	r, err := s.files.MapFile(s.t.Context(), &pb.MapFileRequest{Name: name})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, x := range r.Extents {
		if x.Offset <= offset && offset < x.Offset+x.Length {
			skip := x.Skip + offset - x.Offset
			return int(x.Zones[0].Zone), int64(x.Zones[0].Offset) + skip, x.Address + uint64(skip)
		}
	}
	s.t.Fatalf("%s has nothing at %d: %v", name, offset, r)
	return 0, 0, 0
}

// watched receives all replies of a watch and holds each against the contract.
func watched(s *stored, id string) (all []*pb.Scrub, err error) {
	s.t.Helper()
	stream, err := s.maintenance.WatchScrub(s.t.Context(), &pb.WatchScrubRequest{ScrubId: id, Interval: durationpb.New(minWatchInterval)})
	if err != nil {
		s.t.Fatal(err)
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return all, err
		}
		all = append(all, r.Scrub)
	}
	for i, r := range all {
		if running := r.State == scrubRunning; !running != (i == len(all)-1) {
			s.t.Errorf("reply %d of %d: %v", i, len(all), r)
		}
		if r.DoneBytes > r.TotalBytes || r.SkippedBytes > r.DoneBytes || r.ScrubId != all[0].ScrubId || r.TotalBytes != all[0].TotalBytes ||
			r.DoneBytes < all[max(i-1, 0)].DoneBytes {
			s.t.Errorf("reply %d: %v", i, r)
		}
	}
	if len(all) == 0 {
		s.t.Fatal("a watch without a reply")
	}
	return all, nil
}

// scrubbed runs a scrub to its end.
func scrubbed(s *stored, r *pb.StartScrubRequest) *pb.Scrub {
	s.t.Helper()
	begun, err := s.maintenance.StartScrub(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := watched(s, begun.Scrub.ScrubId)
	if err != nil {
		s.t.Fatal(err)
	}
	last := all[len(all)-1]
	if last.State != scrubFinished || last.DoneBytes != last.TotalBytes || last.TotalBytes != begun.Scrub.TotalBytes || last.EndTime == nil || last.Eta != nil {
		s.t.Errorf("begun as %v it ends as %v", begun.Scrub, last)
	}
	return last
}

func findings(s *stored, r *pb.ListScrubFindingsRequest) (all []*pb.Corruption) {
	s.t.Helper()
	r = proto.CloneOf(r)
	for {
		page, err := s.maintenance.ListScrubFindings(s.t.Context(), r)
		if err != nil {
			s.t.Fatal(err)
		}
		if r.PageSize > 0 && len(page.Findings) > int(r.PageSize) {
			s.t.Errorf("%d findings on a page of %d", len(page.Findings), r.PageSize)
		}
		all = append(all, page.Findings...)
		if r.PageToken = page.NextPageToken; r.PageToken == "" {
			return all
		}
	}
}

func TestScrubOverTheWire(t *testing.T) {
	s := newStore(t, small)
	for name, call := range map[string]func() error{
		"GetScrub":    func() error { return second(s.maintenance.GetScrub(t.Context(), &pb.GetScrubRequest{})) },
		"WatchScrub":  func() error { return second(watched(s, "")) },
		"PauseScrub":  func() error { return second(s.maintenance.PauseScrub(t.Context(), &pb.PauseScrubRequest{})) },
		"ResumeScrub": func() error { return second(s.maintenance.ResumeScrub(t.Context(), &pb.ResumeScrubRequest{})) },
		"CancelScrub": func() error { return second(s.maintenance.CancelScrub(t.Context(), &pb.CancelScrubRequest{})) },
		"ListScrubFindings": func() error {
			return second(s.maintenance.ListScrubFindings(t.Context(), &pb.ListScrubFindingsRequest{}))
		},
	} {
		if err := call(); status.Code(err) != codes.NotFound {
			t.Errorf("%s before the first scrub: %v", name, err)
		}
	}
	if empty := scrubbed(s, &pb.StartScrubRequest{}); empty.Counters.GetDataBytesScrubbed() != 0 || empty.Findings != 0 {
		t.Errorf("an empty store: %v", empty)
	}
	put(s, "a", 1, 2<<20)
	put(s, "d/b", 2, 100_000)
	whole := scrubbed(s, &pb.StartScrubRequest{ReadOnly: true})
	c := whole.Counters
	if c.GetDataBytesScrubbed() < 2<<20+100_000 || c.GetTreeBytesScrubbed() == 0 || c.GetBytesRead() < c.GetDataBytesScrubbed() ||
		c.GetReadOperations() == 0 || c.GetCsumErrors() != 0 || c.GetUncorrectableErrors() != 0 || whole.Findings != 0 || !whole.ReadOnly {
		t.Errorf("%v", whole)
	}
	if whole.ActiveTime.AsDuration() <= 0 || whole.RateBytesPerSecond == 0 || whole.StartTime.AsTime().After(whole.EndTime.AsTime()) {
		t.Errorf("%v", whole)
	}
	got, err := s.maintenance.GetScrub(t.Context(), &pb.GetScrubRequest{})
	if err != nil || !proto.Equal(got.Scrub, whole) {
		t.Errorf("%v, %v; the watch ended with %v", got, err, whole)
	}
	one := scrubbed(s, &pb.StartScrubRequest{Scope: fileScope("d/b")})
	if n := one.Counters.GetDataBytesScrubbed(); n < 100_000 || n > 110_000 || one.Scope.GetFile() != "d/b" || one.TotalBytes >= whole.TotalBytes {
		t.Errorf("%v", one)
	}
	slot := uint32(0)
	groups, err := s.store.ListBlockGroups(t.Context(), &pb.ListBlockGroupsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range groups.BlockGroups {
		if b.Used > 0 {
			slot = b.BlockGroup
			break
		}
	}
	if r := scrubbed(s, &pb.StartScrubRequest{Scope: groupScope(slot)}); r.Counters.GetDataBytesScrubbed() == 0 || r.TotalBytes >= whole.TotalBytes ||
		r.Scope.GetBlockGroup() != slot {
		t.Errorf("%v", r)
	}
	if r := scrubbed(s, &pb.StartScrubRequest{Scope: deviceScope("0")}); r.Counters.GetDataBytesScrubbed() != c.GetDataBytesScrubbed() || r.Scope.GetDevice() != "0" {
		t.Errorf("%v", r)
	}
	old, err := s.maintenance.GetScrub(t.Context(), &pb.GetScrubRequest{ScrubId: whole.ScrubId})
	if err != nil || !proto.Equal(old.Scrub, whole) {
		t.Errorf("an earlier one is %v, %v", old, err)
	}
	s.restart()
	old, err = s.maintenance.GetScrub(t.Context(), &pb.GetScrubRequest{ScrubId: whole.ScrubId})
	if err != nil || !proto.Equal(old.Scrub, whole) {
		t.Errorf("after a restart it is %v, %v", old, err)
	}
}

func TestScrubRefuses(t *testing.T) {
	s := newStore(t, small)
	for _, c := range []struct {
		scope *pb.ScrubScope
		want  []codes.Code
	}{
		{fileScope("nobody"), []codes.Code{codes.NotFound}},
		{groupScope(9999), []codes.Code{codes.OutOfRange, codes.InvalidArgument}},
		{deviceScope("7"), []codes.Code{codes.OutOfRange, codes.InvalidArgument, codes.NotFound}},
		{deviceScope("sda"), []codes.Code{codes.OutOfRange, codes.InvalidArgument, codes.NotFound}},
	} {
		_, err := s.maintenance.StartScrub(t.Context(), &pb.StartScrubRequest{Scope: c.scope})
		ok := false
		for _, code := range c.want {
			ok = ok || status.Code(err) == code
		}
		if !ok {
			t.Errorf("%v: %v", c.scope, err)
		}
	}
	if _, err := s.files.CreateFile(t.Context(), &pb.CreateFileRequest{File: &pb.File{Name: "d", Kind: pb.FileKind_FILE_KIND_DIRECTORY}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.maintenance.StartScrub(t.Context(), &pb.StartScrubRequest{Scope: fileScope("d")}); status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.InvalidArgument {
		t.Errorf("a directory: %v", err)
	}
	scrubbed(s, &pb.StartScrubRequest{})
	for _, id := range []string{"no such", "99", "-1", "18446744073709551616"} {
		if _, err := s.maintenance.GetScrub(t.Context(), &pb.GetScrubRequest{ScrubId: id}); status.Code(err) != codes.NotFound {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestScrubNamesBadBlocks counts each bad block once and names it as a read does.
func TestScrubNamesBadBlocks(t *testing.T) {
	s := newStore(t, small)
	data := put(s, "a", 1, 1<<20)
	put(s, "b", 2, 200_000)
	if _, err := s.files.CloneFile(t.Context(), &pb.CloneFileRequest{Name: "b", NewName: "c"}); err != nil {
		t.Fatal(err)
	}
	type bad struct {
		name   string
		offset int64
	}
	want := map[string]bad{}
	for _, b := range []bad{{"a", 0}, {"a", 8192}, {"a", 512 << 10}, {"a", 1<<20 - 4096}, {"b", 4096}} {
		z, at, address := place(s, b.name, b.offset)
		if err := s.o.Devices[0].Device.(keep).Device.(*zone.Mem).Corrupt(z, at+17, 1); err != nil {
			t.Fatal(err)
		}
		want[fmt.Sprint(address)] = b
	}
	for _, readOnly := range []bool{true, false} {
		r := scrubbed(s, &pb.StartScrubRequest{ReadOnly: readOnly})
		if r.Findings != 5 || r.Counters.GetCsumErrors() != 5 || r.Counters.GetReadErrors() != 0 || r.Counters.GetUncorrectableErrors() != 5 || r.Counters.GetCorrectedErrors() != 0 {
			t.Errorf("read-only %t: %v", readOnly, r)
		}
		outcome := pb.CorruptionOutcome_CORRUPTION_OUTCOME_UNCORRECTABLE
		if readOnly {
			outcome = pb.CorruptionOutcome_CORRUPTION_OUTCOME_NOT_REPAIRED_READ_ONLY
		}
		all := findings(s, &pb.ListScrubFindingsRequest{PageSize: 2})
		if len(all) != 5 {
			t.Fatalf("%d findings: %v", len(all), all)
		}
		seen := map[string]bool{}
		for _, f := range all {
			b, ok := want[fmt.Sprint(f.Address)]
			if seen[fmt.Sprint(f.Address)] {
				t.Errorf("named twice: %v", f)
			}
			seen[fmt.Sprint(f.Address)] = true
			if !ok || f.Outcome != outcome || f.Length != 4096 || f.Offset != b.offset || f.Time == nil || f.Unreadable || f.ActualCrc32C == f.ExpectedCrc32C {
				t.Errorf("%v, want %v", f, b)
				continue
			}
			if shared := b.name == "b"; shared != (f.OtherReferences == 1) || !shared && f.Name != b.name || shared && f.Name != "b" && f.Name != "c" {
				t.Errorf("%v, want %v", f, b)
			}
			_, _, err := s.read(&pb.ReadRequest{Name: f.Name, Offset: f.Offset, Length: proto.Int64(100)})
			c := detail[*pb.Corruption](status.Convert(err))
			if status.Code(err) != codes.DataLoss || c.GetAddress() != f.Address || !proto.Equal(c.GetZone(), f.Zone) || c.GetExpectedCrc32C() != f.ExpectedCrc32C ||
				c.GetActualCrc32C() != f.ActualCrc32C || c.GetName() != f.Name || c.GetFileId() != f.FileId {
				t.Errorf("a read says %v, %v; scrub %v", err, c, f)
			}
		}
		if again := findings(s, &pb.ListScrubFindingsRequest{ScrubId: r.ScrubId, UncorrectedOnly: true}); len(again) != 5 {
			t.Errorf("%d of them were not corrected", len(again))
		}
	}
	// What is overwritten is bad no more.
	copy(data, "mended")
	if _, err := s.write(&pb.WriteRequest{Name: "a", Options: &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE, Compression: pb.Compression_COMPRESSION_NONE}}, data, 1<<20); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { // for the space of what was replaced
		u, err := s.store.GetUsage(t.Context(), &pb.GetUsageRequest{})
		return err == nil && u.Usage.UsedBytes < 3<<19
	})
	if r := scrubbed(s, &pb.StartScrubRequest{}); r.Findings != 1 {
		t.Errorf("%v", r)
	}
	if f := findings(s, &pb.ListScrubFindingsRequest{}); len(f) != 1 || f[0].Name == "a" {
		t.Errorf("%v", f)
	}
}

// scrubStalls is a store whose scrub is held at a read of the device until the test lets it go on.
func scrubStalls(t *testing.T) (s *stored, begun *pb.Scrub, letGo func()) {
	t.Helper()
	s, dev, m := trimStore(t)
	s.maintenance = m
	put(s, "a", 1, 4<<20)
	z, _, _ := place(s, "a", 2<<20)
	gate, met := make(chan struct{}), make(chan struct{})
	dev.Stall(zone.OpRead, z, gate, met)
	r, err := m.StartScrub(t.Context(), &pb.StartScrubRequest{RequestId: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-met:
	case <-time.After(10 * time.Second):
		t.Fatal("the scrub reads nothing of the file")
	}
	open := false
	letGo = func() {
		if !open {
			open = true
			close(gate)
		}
	}
	t.Cleanup(letGo)
	return s, r.Scrub, letGo
}

// TestScrubVerbs takes a scrub whose device is stalled through its states: each call answers all the
// same.
func TestScrubVerbs(t *testing.T) {
	s, begun, letGo := scrubStalls(t)
	ctx, m := t.Context(), s.maintenance
	soon := func(what string, call func(context.Context) (*pb.Scrub, error)) (*pb.Scrub, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		start := time.Now()
		r, err := call(ctx)
		if err := ctx.Err(); err != nil { // the engine's tests hold it to a second, by a clock of their own
			t.Errorf("%s took %v", what, time.Since(start))
		}
		return r, err
	}
	pause := func(ctx context.Context) (*pb.Scrub, error) {
		r, err := m.PauseScrub(ctx, &pb.PauseScrubRequest{})
		return r.GetScrub(), err
	}
	resume := func(ctx context.Context) (*pb.Scrub, error) {
		r, err := m.ResumeScrub(ctx, &pb.ResumeScrubRequest{ScrubId: begun.ScrubId})
		return r.GetScrub(), err
	}
	cancel := func(ctx context.Context) (*pb.Scrub, error) {
		r, err := m.CancelScrub(ctx, &pb.CancelScrubRequest{ScrubId: begun.ScrubId})
		return r.GetScrub(), err
	}
	refused := func(what string, err error) {
		t.Helper()
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", what, err)
		}
	}
	start := func(id string) (*pb.Scrub, error) {
		r, err := m.StartScrub(ctx, &pb.StartScrubRequest{RequestId: id})
		return r.GetScrub(), err
	}
	running := func() {
		t.Helper()
		_, err := start("another")
		wantReason(t, err, codes.AlreadyExists, "SCRUB_RUNNING")
		if !strings.Contains(status.Convert(err).Message(), begun.ScrubId) || detail[*errdetails.ResourceInfo](status.Convert(err)) == nil {
			t.Errorf("%v", err)
		}
		if same, err := start("mine"); err != nil || same.ScrubId != begun.ScrubId {
			t.Errorf("the request again: %v, %v", same, err)
		}
	}
	running()
	_, err := soon("resume", resume)
	refused("resume while it runs", err)
	if r, err := soon("pause", pause); err != nil || r.State != scrubPaused || r.EndTime != nil {
		t.Errorf("%v, %v", r, err)
	}
	running()
	_, err = soon("pause", pause)
	refused("pause while it is paused", err)
	if all, err := watched(s, ""); err != nil || len(all) != 1 || all[0].State != scrubPaused {
		t.Errorf("%v, %v", all, err)
	}
	if r, err := m.SetScrubLimit(ctx, &pb.SetScrubLimitRequest{LimitBytesPerSecond: 1 << 40}); err != nil || r.Scrub.LimitBytesPerSecond != 1<<40 {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := soon("resume", resume); err != nil || r.State != scrubRunning || r.TotalBytes != begun.TotalBytes || r.LimitBytesPerSecond != 1<<40 {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := soon("cancel", cancel); err != nil || r.State != scrubCancelled || r.DoneBytes >= r.TotalBytes {
		t.Errorf("%v, %v", r, err)
	}
	_, err = soon("cancel", cancel)
	refused("cancel again", err)
	if r, err := soon("resume", resume); err != nil || r.State != scrubRunning {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := soon("pause", pause); err != nil || r.State != scrubPaused {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := soon("cancel", cancel); err != nil || r.State != scrubCancelled {
		t.Errorf("cancel while it is paused: %v, %v", r, err)
	}
	letGo()
	if r, err := soon("resume", resume); err != nil || r.State != scrubRunning {
		t.Errorf("%v, %v", r, err)
	}
	all, err := watched(s, "")
	if err != nil || all[len(all)-1].State != scrubFinished || all[0].TotalBytes != begun.TotalBytes {
		t.Errorf("%v, %v", all, err)
	}
	_, err = soon("resume", resume)
	refused("resume when it is over", err)
	if next, err := start("mine"); err != nil || next.ScrubId == begun.ScrubId {
		t.Errorf("%v, %v", next, err)
	}
}

// TestScrubWatchIsDrained: a server that goes down ends its watches, and a restart finds the scrub
// interrupted and goes on with it.
func TestScrubWatchIsDrained(t *testing.T) {
	s, begun, letGo := scrubStalls(t)
	stream, err := s.maintenance.WatchScrub(t.Context(), &pb.WatchScrubRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.Scrub.State != scrubRunning || r.Scrub.ScrubId != begun.ScrubId {
		t.Fatalf("%v, %v", r, err)
	}
	s.s.Drain()
	for err == nil {
		_, err = stream.Recv()
	}
	wantReason(t, err, codes.Unavailable, "DRAINING")
	letGo()
	s.closed()
	s.start()
	got, err := s.maintenance.GetScrub(t.Context(), &pb.GetScrubRequest{})
	if err != nil || got.Scrub.ScrubId != begun.ScrubId || got.Scrub.State != scrubInterrupted && got.Scrub.State != scrubFinished {
		t.Fatalf("%v, %v", got, err)
	}
	if got.Scrub.State == scrubFinished {
		return
	}
	if _, err := s.maintenance.ResumeScrub(t.Context(), &pb.ResumeScrubRequest{}); err != nil {
		t.Fatal(err)
	}
	all, err := watched(s, "")
	if err != nil || all[len(all)-1].State != scrubFinished || all[0].TotalBytes != begun.TotalBytes || all[0].DoneBytes < got.Scrub.DoneBytes {
		t.Errorf("%v, %v", all, err)
	}
}

// TestScrubLimit: a limit holds over the wire, and a new one is in force at once.
func TestScrubLimit(t *testing.T) {
	s := newStore(t, small)
	put(s, "a", 1, 4<<20)
	begun, err := s.maintenance.StartScrub(t.Context(), &pb.StartScrubRequest{LimitBytesPerSecond: 256 << 10}) // 16 s
	if err != nil || begun.Scrub.LimitBytesPerSecond != 256<<10 {
		t.Fatalf("%v, %v", begun, err)
	}
	start := time.Now()
	time.Sleep(time.Second)
	r, err := s.maintenance.SetScrubLimit(t.Context(), &pb.SetScrubLimitRequest{})
	if err != nil || r.Scrub.State != scrubRunning || r.Scrub.LimitBytesPerSecond != 0 || int64(r.Scrub.Counters.GetBytesRead()) > 512<<10+int64(time.Since(start).Seconds()*(256<<10)) {
		t.Errorf("%v, %v", r, err)
	}
	start = time.Now()
	if all, err := watched(s, ""); err != nil || all[len(all)-1].State != scrubFinished || time.Since(start) > 8*time.Second {
		t.Errorf("%v, %v after %v", all, err, time.Since(start))
	}
	if _, err := s.maintenance.SetScrubLimit(t.Context(), &pb.SetScrubLimitRequest{LimitBytesPerSecond: 1}); status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.NotFound {
		t.Errorf("a limit of one that is over: %v", err)
	}
}
