package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shingle-store/shingle/api/client/clienttest"
)

func TestFileVerbs(t *testing.T) {
	ctx := context.Background()
	s := clienttest.New(t)
	c := dial(t, s)
	mode := uint32(0o600)
	f, err := c.Create(ctx, "d/a", CreateOptions{Exclusive: true, Mode: &mode, Attributes: map[string]string{"k": "v"}, Mtime: time.Unix(5, 0)})
	must(t, err)
	if f.GetMode() != mode || f.GetAttributes()["k"] != "v" || f.GetMtime().GetSeconds() != 5 {
		t.Fatalf("made %v", f)
	}
	if _, err := c.Create(ctx, "d/a", CreateOptions{Exclusive: true}); !IsExists(err) {
		t.Fatalf("made twice: %v", err)
	}
	_, err = c.Create(ctx, "e", CreateOptions{Directory: true})
	must(t, err)
	s.Put("d/a", []byte("0123456789"))
	f, _, err = c.Truncate(ctx, "d/a", 8, nil)
	must(t, err)
	_, _, err = c.Deallocate(ctx, "d/a", 2, 3, &Preconditions{FileId: &f.FileId})
	must(t, err)
	holds(t, s, "d/a", []byte("01\x00\x00\x00567"))
	if _, _, err := c.Rename(ctx, "d/a", "e", RenameOptions{}); !IsExists(err) {
		t.Fatalf("renamed over: %v", err)
	}
	f, _, err = c.Rename(ctx, "d", "e/d", RenameOptions{})
	must(t, err)
	if f.GetName() != "e/d" {
		t.Fatalf("renamed %v", f)
	}
	if _, err := c.Delete(ctx, "e/d", DeleteOptions{}); !IsPrecondition(err) || ReasonOf(err) != "DIRECTORY_NOT_EMPTY" {
		t.Fatalf("deleted: %v", err)
	}
	freed, err := c.Delete(ctx, "e/d/a", DeleteOptions{})
	must(t, err)
	if freed.GetFreedBytes() != 8 {
		t.Fatalf("freed %v", freed)
	}
	if _, err := c.Delete(ctx, "e/d/a", DeleteOptions{}); !IsNotFound(err) {
		t.Fatalf("deleted twice: %v", err)
	}
	_, err = c.Delete(ctx, "e/d/a", DeleteOptions{AllowMissing: true})
	must(t, err)
	if _, err := c.Stat(ctx, "e/d/a"); !IsNotFound(err) {
		t.Fatalf("still there: %v", err)
	}
}

func TestCloneAndMap(t *testing.T) {
	ctx := context.Background()
	s := clienttest.New(t)
	c := dial(t, s)
	s.Put("a", []byte("0123456789"))
	f, _, err := c.Clone(ctx, "a", "d/b", CloneOptions{})
	must(t, err)
	if f.GetName() != "d/b" || f.GetRequestId() == "" {
		t.Fatalf("cloned %v", f)
	}
	holds(t, s, "d/b", []byte("0123456789"))
	if _, _, err := c.Clone(ctx, "a", "d/b", CloneOptions{}); !IsExists(err) {
		t.Fatalf("cloned over: %v", err)
	}
	wrong := f.GetGeneration() + 1
	if _, _, err := c.Clone(ctx, "a", "d/b", CloneOptions{Replace: true, IfTargetMatch: &Preconditions{Generation: &wrong}}); !IsPrecondition(err) {
		t.Fatalf("cloned over another: %v", err)
	}
	_, _, err = c.Clone(ctx, "a", "d/b", CloneOptions{Replace: true, IfTargetMatch: &Preconditions{FileId: &f.FileId}})
	must(t, err)
	for range c.FileMap(ctx, "d/b") {
		t.Error("an extent of nothing")
	}
	s.Maps = map[string][]*FileExtent{"d/b": {{Length: 3}, {Offset: 3, Length: 4}, {Offset: 7, Length: 3}}}
	walk := func(stop int) (got []int64) {
		for x, err := range c.FileMap(ctx, "d/b") {
			must(t, err)
			if x.File.GetName() != "d/b" {
				t.Errorf("an extent of %v", x.File)
			}
			if got = append(got, x.GetOffset()); len(got) == stop {
				break
			}
		}
		return got
	}
	if got := walk(0); !slices.Equal(got, []int64{0, 3, 7}) {
		t.Errorf("walked %v", got)
	}
	if got := walk(2); len(got) != 2 {
		t.Errorf("stopped after %v", got)
	}
	n := 0
	for _, err := range c.FileMap(ctx, "no") {
		if n++; !IsNotFound(err) || n > 1 {
			t.Errorf("walked a file that is not there: %v", err)
		}
	}
}

func TestListWalksAllPages(t *testing.T) {
	ctx := context.Background()
	s := clienttest.New(t)
	c := dial(t, s)
	var want []string
	for i := range 20 {
		name := fmt.Sprintf("d/%02d", i)
		s.Put(name, nil)
		want = append(want, name)
	}
	s.Put("d/05/x", nil)
	list := func(o ListOptions, stop int) (got []string) {
		for f, err := range c.List(ctx, "d", o) {
			must(t, err)
			if got = append(got, f.GetName()); len(got) == stop {
				break
			}
		}
		return got
	}
	if got := list(ListOptions{}, 0); !slices.Equal(got, want) {
		t.Errorf("listed %v", got)
	}
	if got := list(ListOptions{StartAfter: "d/17", PageSize: 1}, 0); !slices.Equal(got, want[18:]) {
		t.Errorf("after 17: %v", got)
	}
	if got := list(ListOptions{Recursive: true}, 0); len(got) != 21 {
		t.Errorf("recursive: %v", got)
	}
	if got := list(ListOptions{}, 4); !slices.Equal(got, want[:4]) {
		t.Errorf("stopped: %v", got)
	}
	for _, err := range c.List(ctx, "no", ListOptions{}) {
		if !IsNotFound(err) {
			t.Errorf("missing directory: %v", err)
		}
	}
}

func TestStoreVerbs(t *testing.T) {
	ctx := context.Background()
	s := clienttest.New(t)
	s.Usage = &Usage{TotalBytes: 7}
	s.Counters["commits"] = 3
	s.Conditions = []*Condition{{Reason: "ZONE_QUARANTINED"}}
	for i := range 8 {
		s.Zones = append(s.Zones, &Zone{Zone: uint32(i)})
		s.BlockGroups = append(s.BlockGroups, &BlockGroup{BlockGroup: uint32(i)})
	}
	c := dial(t, s)
	info, err := c.Info(ctx)
	must(t, err)
	usage, err := c.Usage(ctx)
	must(t, err)
	counters, err := c.Counters(ctx)
	must(t, err)
	conditions, err := c.Conditions(ctx)
	must(t, err)
	if info.GetBootId() != s.Boot() || usage.GetTotalBytes() != 7 || counters.GetCounters()["commits"] != 3 ||
		len(conditions) != 1 {
		t.Fatalf("%v %v %v %v", info, usage, counters, conditions)
	}
	n := uint32(0)
	for z, err := range c.Zones(ctx) {
		if must(t, err); z.GetZone() != n {
			t.Fatalf("zone %d at %d", z.GetZone(), n)
		}
		n++
	}
	for g, err := range c.BlockGroups(ctx) {
		if must(t, err); g.GetBlockGroup() != n-8 {
			t.Fatalf("block group %d at %d", g.GetBlockGroup(), n-8)
		}
		n++
	}
	if n != 16 {
		t.Fatalf("%d zones and block groups", n)
	}
}

func TestSyncNamesTheRun(t *testing.T) {
	ctx := context.Background()
	s := clienttest.New(t)
	c := dial(t, s)
	w, err := c.Write(within(t), "a", WriteOptions{})
	must(t, err)
	_, err = w.Write([]byte("x"))
	must(t, err)
	must(t, w.Close())
	r, err := c.Sync(ctx, SyncOptions{Names: []string{"a"}, BootID: w.BootID()})
	must(t, err)
	if r.BootID != s.Boot() {
		t.Fatalf("answered by %d", r.BootID)
	}
	holds(t, s, "a", []byte("x"))
	if !s.Crash() {
		t.Skip("the port was taken by another process")
	}
	for err = errCut; err != nil && CodeOf(err) != codes.Aborted; {
		_, err = c.Sync(within(t), SyncOptions{BootID: w.BootID()})
	}
	if !IsRestarted(err) {
		t.Fatalf("a run that is gone: %v", err)
	}
}

// TestWhatIsRepeated: calls that are harmless to repeat are, others are not.
func TestWhatIsRepeated(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", nil)
	c := dial(t, s)
	ctx := within(t)
	_, err := c.Info(ctx)
	must(t, err)
	var left atomic.Int32
	s.Faults.Call = func(string) error {
		if left.Add(-1) >= 0 {
			return errCut
		}
		return nil
	}
	for _, v := range []struct {
		name   string
		call   func() error
		repeat bool
	}{
		{"stat", func() error { _, err := c.Stat(ctx, "a"); return err }, true},
		{"usage", func() error { _, err := c.Usage(ctx); return err }, true},
		{"list", func() (err error) {
			for _, err = range c.List(ctx, "", ListOptions{}) {
			}
			return err
		}, true},
		{"create", func() error { _, err := c.Create(ctx, "b", CreateOptions{Exclusive: true}); return err }, true},
		{"clone", func() error { _, _, err := c.Clone(ctx, "a", "clone", CloneOptions{}); return err }, true},
		{"map", func() (err error) {
			for _, err = range c.FileMap(ctx, "a") {
			}
			return err
		}, true},
		{"sync", func() error { _, err := c.Sync(ctx, SyncOptions{}); return err }, false},
		{"sync of a run", func() error { _, err := c.Sync(ctx, SyncOptions{BootID: s.Boot()}); return err }, true},
		{"truncate", func() error { _, _, err := c.Truncate(ctx, "a", 1, nil); return err }, false},
		{"rename", func() error { _, _, err := c.Rename(ctx, "a", "c", RenameOptions{}); return err }, false},
		{"delete", func() error { _, err := c.Delete(ctx, "a", DeleteOptions{}); return err }, false},
		{"delete if there", func() error { _, err := c.Delete(ctx, "a", DeleteOptions{AllowMissing: true}); return err }, true},
	} {
		left.Store(2)
		if err := v.call(); (err == nil) != v.repeat {
			t.Errorf("%s: %v", v.name, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{nil, codes.OK, ""},
		{errors.New("x"), codes.Unknown, ""},
		{asError(context.Canceled), codes.Canceled, "canceled: context canceled"},
		{asError(context.DeadlineExceeded), codes.DeadlineExceeded, "deadline exceeded: context deadline exceeded"},
		{asError(status.Error(codes.FailedPrecondition, "no")), codes.FailedPrecondition, "failed precondition: no"},
		{fmt.Errorf("x: %w", asError(status.Error(codes.NotFound, "a"))), codes.NotFound, "x: not found: a"},
		{asError(clienttest.Errorf(codes.Aborted, "FENCED", nil, "by b")), codes.Aborted, "aborted: by b (FENCED)"},
	} {
		if CodeOf(c.err) != c.code {
			t.Errorf("%v: %v, want %v", c.err, CodeOf(c.err), c.code)
		}
		if c.text != "" && c.err.Error() != c.text {
			t.Errorf("reads %q, want %q", c.err, c.text)
		}
	}
	if asError(nil) != nil {
		t.Error("nil must stay nil")
	}
	e := &Error{Code: codes.Canceled}
	if !errors.Is(e, context.Canceled) || errors.Is(e, context.DeadlineExceeded) {
		t.Error("Canceled is context.Canceled")
	}
	if e.Fields() != nil || e.Usage() != nil {
		t.Error("no details must be nil")
	}
}

func TestDial(t *testing.T) {
	if _, err := Dial("dns://%zz"); !IsInvalid(err) {
		t.Errorf("bad address: %v", err)
	}
	s := clienttest.New(t)
	c, err := Dial("passthrough:///"+s.Addr, WithDialOptions(grpc.WithUserAgent("x")), WithRetryTime(-1), WithWindow(1))
	must(t, err)
	defer c.Close()
	_, err = c.Info(context.Background())
	must(t, err)
	w, err := c.Write(within(t), "a", WriteOptions{Mode: Replace})
	must(t, err)
	_, err = w.Write(make([]byte, 3*messageSize)) // a window under one message still works
	must(t, err)
	must(t, w.Close())
	s.Faults.Call = func(string) error { return errCut }
	if _, err := c.Info(context.Background()); !IsUnavailable(err) {
		t.Errorf("without retry: %v", err)
	}
}
