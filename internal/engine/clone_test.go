package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

func cloneFile(t testing.TB, e *Engine, from, to string) File {
	t.Helper()
	f, _, err := e.Clone(context.Background(), CloneRequest{Name: from, NewName: to})
	if err != nil {
		t.Fatalf("clone %s to %s: %v", from, to, err)
	}
	return f
}

// TestClone clones a file, goes different ways with the two, and takes one after the other away.
func TestClone(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		ctx := context.Background()
		for _, data := range [][]byte{noise(1, 700_001), text(2, 1_500_000), []byte("inline")} {
			b := newBench(t, smallZNS, o)
			e := b.open()
			src := put(t, e, "src", data)
			before := e.Usage()
			f := cloneFile(t, e, "src", "new/dir/dst")
			if f.ID == src.ID || f.Size != src.Size || f.Stored != src.Stored || f.Allocated != src.Allocated || f.Dirty != 0 ||
				f.Name != "new/dir/dst" || f.Generation <= src.Generation || *f.ContentCRC != *src.ContentCRC {
				t.Errorf("the clone is %+v, its source %+v", f, src)
			}
			if u := e.Usage(); u.Used != before.Used || u.Free != before.Free {
				t.Errorf("a clone takes space: %+v, before %+v", u, before)
			}
			sameFile(t, e, "new/dir/dst", data)
			one, two := bytes.Clone(data), bytes.Clone(data)
			mid, n := int64(len(data)/3), len(data)/5
			writeAt(t, e, "src", mid, text(3, n))
			copy(one[mid:], text(3, n))
			writeAt(t, e, "new/dir/dst", 0, noise(4, n))
			copy(two, noise(4, n))
			syncAll(t, e)
			sameFile(t, e, "src", one)
			sameFile(t, e, "new/dir/dst", two)
			e = b.reopen()
			sameFile(t, e, "src", one)
			sameFile(t, e, "new/dir/dst", two)
			if _, _, err := e.Truncate(ctx, "src", mid+1, Preconditions{}); err != nil {
				t.Fatal(err)
			}
			sameFile(t, e, "src", one[:mid+1])
			sameFile(t, e, "new/dir/dst", two)
			deleteFile(t, e, "src")
			eventually(t, "the source is freed", func() bool { return e.orphans.Load() == 0 })
			sameFile(t, e, "new/dir/dst", two)
			checkQuiet(t, e)
			deleteFile(t, e, "new/dir/dst")
			eventually(t, "all is free", func() bool { return e.Usage().Used == 0 && e.orphans.Load() == 0 })
			checkTotals(t, e)
			b.shut()
			b.checkClean()
		}
	})
}

// TestCloneOfDirtyData: the clone has all that was received before it and nothing that came
// later, and a crash right after the answer changes nothing about that.
func TestCloneOfDirtyData(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		old, now := noise(1, 600_000), noise(2, 300_000)
		put(t, e, "src", old)
		writeAt(t, e, "src", 100_000, now)
		want := bytes.Clone(old)
		copy(want[100_000:], now)
		f := cloneFile(t, e, "src", "dst")
		writeAt(t, e, "src", 0, text(3, 600_000))
		sameFile(t, e, "dst", want)
		if f.ContentCRC != nil {
			t.Error("the checksum of content that was overwritten is kept")
		}
		e = b.crash(1)
		sameFile(t, e, "dst", want)
		b.shut()
		b.checkClean()
	})
}

func TestCloneKeepsAttributes(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	zstd := extent.CodecZstd
	at := time.Unix(1_600_000_000, 123).UTC()
	w := openWriter(t, e, WriterOptions{
		Name: "src", Mode: Replace, Attributes: map[string]string{"a": "1"}, Mtime: at, FileMode: ptr(uint32(0o640)), Compression: &zstd,
	})
	mustWrite(t, w, text(1, 300_000))
	if _, err := w.Finish(ctx, nil); err != nil {
		t.Fatal(err)
	}
	w.Close()
	f, _, err := e.Clone(ctx, CloneRequest{Name: "src", NewName: "dst", RequestID: "r"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Get(ctx, Ref{Name: "dst"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []File{f, got} {
		if f.Attributes["a"] != "1" || !f.Mtime.Equal(at) || *f.Mode != 0o640 || f.Compression != zstd || f.RequestID != "r" || f.ContentCRC == nil {
			t.Errorf("%+v", f)
		}
	}
	// The clone's own record decides about what is written to it.
	writeAt(t, e, "dst", 0, text(2, 300_000))
	syncAll(t, e)
	if got, err := e.Get(ctx, Ref{Name: "dst"}); err != nil || got.Stored > 250_000 {
		t.Errorf("%+v %v", got, err)
	}
}

func TestCloneRefusals(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	src := put(t, e, "src", noise(1, 100_000))
	old := put(t, e, "old", noise(2, 5000))
	if _, err := e.Create(ctx, CreateRequest{Name: "dir/sub", Directory: true}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		r      CloneRequest
		kind   errdefs.Kind
		reason errdefs.Reason
	}{
		{"no such file", CloneRequest{Name: "missing", NewName: "x"}, errdefs.NotFound, ""},
		{"a directory", CloneRequest{Name: "dir", NewName: "x"}, errdefs.Precondition, errdefs.ReasonNotAFile},
		{"a bad name", CloneRequest{Name: "/src", NewName: "x"}, errdefs.InvalidArgument, ""},
		{"a bad new name", CloneRequest{Name: "src", NewName: "x/"}, errdefs.InvalidArgument, ""},
		{"onto itself", CloneRequest{Name: "src", NewName: "src", Replace: true}, errdefs.InvalidArgument, ""},
		{"below itself", CloneRequest{Name: "src", NewName: "src/x"}, errdefs.Precondition, errdefs.ReasonNotADirectory},
		{"taken", CloneRequest{Name: "src", NewName: "old"}, errdefs.AlreadyExists, ""},
		{"taken by a directory", CloneRequest{Name: "src", NewName: "dir", Replace: true}, errdefs.Precondition, errdefs.ReasonNotAFile},
		{"the source has changed", CloneRequest{Name: "src", NewName: "x", If: Preconditions{Generation: ptr(src.Generation + 1)}}, errdefs.Precondition, errdefs.ReasonPrecondition},
		{"another source", CloneRequest{Name: "src", NewName: "x", If: Preconditions{FileID: &old.ID}}, errdefs.Precondition, errdefs.ReasonPrecondition},
		{"the target has changed", CloneRequest{Name: "src", NewName: "old", Replace: true, IfTarget: Preconditions{Size: ptr(int64(1))}}, errdefs.Precondition, errdefs.ReasonPrecondition},
		{"the target must not exist", CloneRequest{Name: "src", NewName: "old", Replace: true, IfTarget: Preconditions{Generation: ptr(int64(0))}}, errdefs.Precondition, errdefs.ReasonPrecondition},
		{"the target must exist", CloneRequest{Name: "src", NewName: "x", IfTarget: Preconditions{FileID: &old.ID}}, errdefs.Precondition, errdefs.ReasonPrecondition},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := e.Clone(ctx, c.r)
			wantError(t, err, c.kind, c.reason)
			missing(t, e, "x")
			sameFile(t, e, "old", noise(2, 5000))
		})
	}
	t.Run("what holds", func(t *testing.T) {
		_, freed, err := e.Clone(ctx, CloneRequest{
			Name: "src", NewName: "old", Replace: true,
			If: Preconditions{Generation: &src.Generation, FileID: &src.ID, Size: &src.Size}, IfTarget: Preconditions{FileID: &old.ID, Generation: &old.Generation},
		})
		if err != nil || freed.PendingBytes != old.Stored {
			t.Errorf("%+v %v", freed, err)
		}
		sameFile(t, e, "old", noise(1, 100_000))
		if f, _, err := e.Clone(ctx, CloneRequest{Name: "src", NewName: "x", IfTarget: Preconditions{Generation: ptr(int64(0))}}); err != nil || f.Name != "x" {
			t.Errorf("%+v %v", f, err)
		}
	})
	eventually(t, "what was replaced is freed", func() bool { return e.orphans.Load() == 0 && e.Usage().Used == extent.RoundUp(100_000) })
	e.Draining()
	b.shut()
	b.checkClean()
	_, _, err := e.Clone(ctx, CloneRequest{Name: "src", NewName: "y"})
	wantError(t, err, errdefs.Unavailable, errdefs.ReasonDraining)
}

// TestCloneRetry: the answer that was lost comes again, whatever became of the source and of the
// clone since.
func TestCloneRetry(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	put(t, e, "src", noise(1, 100_000))
	r := CloneRequest{Name: "src", NewName: "dst", RequestID: "call 1"}
	f, _, err := e.Clone(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	writeAt(t, e, "dst", 0, noise(2, 5000))
	deleteFile(t, e, "src")
	again, freed, err := e.Clone(ctx, r)
	if err != nil || again.ID != f.ID || again.Generation <= f.Generation || freed != (Freed{}) {
		t.Errorf("%+v %+v %v, want file %d as it is now", again, freed, err, f.ID)
	}
	put(t, e, "src", noise(3, 1000))
	r.RequestID = "call 2"
	_, _, err = e.Clone(ctx, r)
	wantError(t, err, errdefs.AlreadyExists, "")
	r.RequestID, r.Replace = "call 3", true
	if other, _, err := e.Clone(ctx, r); err != nil || other.ID == f.ID {
		t.Errorf("%+v %v", other, err)
	}
}

// TestCloneOnAFullStore clones where nothing more can be written, and frees what is not shared.
func TestCloneOnAFullStore(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.MaxWait = 10 * time.Millisecond
		b := newBench(t, spaceZNS, o)
		e := b.open()
		const n = 250_000
		files, err := fill(t, e, "f", n)
		wantFull(t, err)
		for i := range files {
			cloneFile(t, e, fmt.Sprintf("f%d", i), fmt.Sprintf("c%d", i))
		}
		if err := tryWriteAt(e, "c0", 0, noise(9, n)); !errdefs.Is(err, errdefs.NoSpace) {
			t.Fatalf("a clone is written to where there is no space: %v", err)
		}
		checkQuiet(t, e)
		used := e.Usage().Used
		for i := range files {
			deleteFile(t, e, fmt.Sprintf("f%d", i))
		}
		eventually(t, "the sources are freed", func() bool { return e.orphans.Load() == 0 })
		if u := e.Usage(); u.Used != used {
			t.Errorf("the sources' deletion freed %d bytes", used-u.Used)
		}
		for i := range files {
			sameFile(t, e, fmt.Sprintf("c%d", i), noise(uint64(i), n))
			deleteFile(t, e, fmt.Sprintf("c%d", i))
		}
		eventually(t, "all is free", func() bool { return e.Usage().Used == 0 })
		b.shut()
		b.checkClean()
	})
}

// TestCloneOfWhatCannotBeDurable: a clone is durable or is not there.
func TestCloneOfWhatCannotBeDurable(t *testing.T) {
	b := newFaultBench(t, faultZNS, Options{})
	e := b.open()
	put(t, e, "src", noise(1, 100_000))
	fail := b.failing(zone.OpAppend)
	writeAt(t, e, "src", 0, noise(2, 50_000))
	_, _, err := e.Clone(context.Background(), CloneRequest{Name: "src", NewName: "dst"})
	wantError(t, err, errdefs.Device, errdefs.ReasonSyncFailed)
	missing(t, e, "dst")
	fail.on.Store(false)
	put(t, e, "other", noise(3, 1000))
	if _, _, err := e.Clone(context.Background(), CloneRequest{Name: "src", NewName: "dst"}); !errdefs.Is(err, errdefs.Device) {
		t.Errorf("the error does not stick: %v", err)
	}
	writeAt(t, e, "src", 0, noise(4, 50_000))
	cloneFile(t, e, "src", "dst")
	sameFile(t, e, "dst", append(noise(4, 50_000), noise(1, 100_000)[50_000:]...))
}

// TestReplacedByAClone: who reads the file that a clone replaces reads it to the end.
func TestReplacedByAClone(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	put(t, e, "src", noise(1, 2_000_000))
	put(t, e, "dst", noise(2, 2_000_000))
	r, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: "dst"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []byte
	for {
		p, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.Data...)
		if len(got) == 1<<20 {
			if _, _, err := e.Clone(ctx, CloneRequest{Name: "src", NewName: "dst", Replace: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(got, noise(2, 2_000_000)) {
		t.Error("the reader saw something else than it had opened")
	}
	sameFile(t, e, "dst", noise(1, 2_000_000))
	r.Close()
	eventually(t, "the old file is freed", func() bool { return e.Usage().Used == extent.RoundUp(2_000_000) })
}

// TestCloneWaitsForItsTurn: a clone waits for a write that is half way in, and no longer than its
// context lasts.
func TestCloneWaitsForItsTurn(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	put(t, e, "src", noise(1, 10_000))
	f, err := e.openRef(Ref{Name: "src"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.release(f)
	if err := f.lockWrite(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, _, err = e.Clone(ctx, CloneRequest{Name: "src", NewName: "dst"})
	wantError(t, err, errdefs.DeadlineExceeded, "")
	f.unlockWrite()
	missing(t, e, "dst")
	cloneFile(t, e, "src", "dst")
}

// TestBadBlockOfClones: each clone that shares a bad block says so; the check names some of them
// and counts the rest; overwriting it in one heals that one.
func TestBadBlockOfClones(t *testing.T) {
	raw := extent.CodecNone
	b := newBench(t, smallZNS, Options{Compression: &raw})
	data := noise(1, 100_000)
	put(t, b.open(), "raw", data)
	for i := range 20 {
		cloneFile(t, b.e, "raw", fmt.Sprintf("clones/%02d", i))
	}
	b.shut()
	z, x := b.victim()
	if err := b.dev.(*zone.Mem).Corrupt(z, int64(x.Addr)%smallZNS.ZoneSize+4096+5, 1); err != nil {
		t.Fatal(err)
	}
	found := b.check(true)
	if len(found) != 1 || !strings.Contains(found[0], `file "raw" bytes [4096, 8192), file "clones/00" bytes [4096, 8192), `) ||
		!strings.HasSuffix(found[0], ", and 13 more") {
		t.Fatalf("found %q", found)
	}
	e := b.open()
	for _, name := range []string{"raw", "clones/07"} {
		got, err := tryRead(e, name, 0, nil)
		wantError(t, err, errdefs.Corruption, errdefs.ReasonCorruption)
		var bad *errdefs.Error
		if d, ok := (*CorruptionDetail)(nil), errors.As(err, &bad); ok {
			if d, _ = bad.Detail.(*CorruptionDetail); d == nil || d.Name != name || d.Offset != 4096 {
				t.Errorf("%+v", d)
			}
		}
		if !bytes.Equal(got, data[:4096]) {
			t.Errorf("%d bytes come before the bad block", len(got))
		}
	}
	if err := tryWriteAt(e, "clones/07", 5000, []byte("part")); !errdefs.Is(err, errdefs.Corruption) {
		t.Errorf("a bad block gets a new checksum: %v", err)
	}
	writeAt(t, e, "clones/07", 4096, data[4096:8192])
	syncAll(t, e)
	sameFile(t, e, "clones/07", data)
	if _, err := tryRead(e, "clones/08", 0, nil); !errdefs.Is(err, errdefs.Corruption) {
		t.Errorf("the others are healed with it: %v", err)
	}
	cloneFile(t, e, "clones/07", "raw2")
	sameFile(t, e, "raw2", data)
}
