package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

var spaceZNS = zone.Geometry{
	Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 512 << 10, Zones: 40, MaxOpen: 4, MaxActive: 5, AppendLimit: 100 << 10,
}

// fill puts files of n bytes until there is no space, and returns how many there are and the
// refusal. The account of space is checked at every step.
func fill(t testing.TB, e *Engine, prefix string, n int) (files int, refusal error) {
	t.Helper()
	for ; files < 10_000; files++ {
		checkIdentity(t, e)
		_, err := tryPut(e, fmt.Sprintf("%s%d", prefix, files), noise(uint64(files), n))
		if err != nil {
			return files, err
		}
	}
	t.Fatal("the store never gets full")
	return 0, nil
}

func deleteFile(t testing.TB, e *Engine, name string) Freed {
	t.Helper()
	f, err := e.Delete(context.Background(), DeleteRequest{Name: name})
	if err != nil {
		t.Fatalf("delete %s: %v", name, err)
	}
	return f
}

// wantFull holds a refusal against what a full store owes who asks.
func wantFull(t testing.TB, err error) {
	t.Helper()
	wantError(t, err, errdefs.NoSpace, errdefs.ReasonNoSpace)
	var full *errdefs.Error
	if !errors.As(err, &full) {
		t.Fatal(err)
	}
	for _, key := range []string{"wanted", "free", "reserved", "zone_unusable", "reclaimable", "active", "max_active"} {
		if full.Meta[key] == "" {
			t.Errorf("the refusal has no figure %q: %v", key, full.Meta)
		}
	}
	if u, ok := full.Detail.(Usage); !ok || u.Total == 0 {
		t.Errorf("the refusal carries %+v", full.Detail)
	}
}

// eventually waits for what background work brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never comes to this: %s", what)
		}
	}
}

// TestFillDeleteRefill fills a store, empties it and fills it again, with no restart and no call
// by hand.
func TestFillDeleteRefill(t *testing.T) {
	alone(t)
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.MaxWait = 5 * time.Second
		b := newFaultBench(t, spaceZNS, o)
		e := b.open()
		const n = 250_000
		for round := range 3 {
			prefix := fmt.Sprintf("%d/", round)
			files, err := fill(t, e, prefix, n)
			wantFull(t, err)
			syncAll(t, e)
			u := e.Usage()
			if u.Used < u.Total*95/100 {
				t.Fatalf("round %d: full at %d of %d bytes: %+v", round, u.Used, u.Total, u)
			}
			checkQuiet(t, e)
			for i := range files {
				sameFile(t, e, fmt.Sprintf("%s%d", prefix, i), noise(uint64(i), n))
			}
			if round == 1 {
				e = b.reopen()
			}
			for i := range files {
				if f := deleteFile(t, e, fmt.Sprintf("%s%d", prefix, i)); f.PendingBytes+f.FreedBytes < n {
					t.Fatalf("the delete of %d bytes says it frees %+v", n, f)
				}
				checkIdentity(t, e)
			}
		}
		eventually(t, "everything is free", func() bool { return e.Usage().Used == 0 })
		b.checkLimits()
	})
}

// TestGivingBackOnFullStore truncates, punches and deletes where nothing more can be written.
func TestGivingBackOnFullStore(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.MaxWait = 10 * time.Millisecond
		b := newFaultBench(t, spaceZNS, o)
		e := b.open()
		ctx := context.Background()
		data := text(1, 200_000)
		put(t, e, "punched", data)
		put(t, e, "truncated", data)
		files, _ := fill(t, e, "f", 600_000)
		rest, _ := fill(t, e, "g", 4096)
		for _, cut := range []int{150_001, 77_777, 4096, 1} {
			if _, f, err := e.Truncate(ctx, "truncated", int64(cut), Preconditions{}); err != nil {
				t.Fatalf("truncate to %d: %v %+v", cut, err, f)
			}
			sameFile(t, e, "truncated", data[:cut])
			checkIdentity(t, e)
		}
		punched := bytes.Clone(data)
		for _, r := range []extent.Range{{Off: 5000, End: 9000}, {Off: 100, End: 200}, {Off: 50_000, End: 180_001}} {
			if _, _, err := e.Deallocate(ctx, "punched", r.Off, r.Len(), Preconditions{}); err != nil {
				t.Fatalf("punch %v: %v", r, err)
			}
			clear(punched[r.Off:r.End])
			sameFile(t, e, "punched", punched)
			checkIdentity(t, e)
		}
		if _, _, err := e.Rename(ctx, RenameRequest{Name: "punched", NewName: "a/b/c"}); err != nil {
			t.Errorf("rename: %v", err)
		}
		for i := range files {
			deleteFile(t, e, fmt.Sprintf("f%d", i))
		}
		put(t, e, "again", noise(3, 600_000))
		for i := range rest {
			sameFile(t, e, fmt.Sprintf("g%d", i), noise(uint64(i), 4096))
		}
		e = b.reopen()
		sameFile(t, e, "a/b/c", punched)
		sameFile(t, e, "truncated", data[:1])
		checkIdentity(t, e)
	})
}

// TestMaxWait says how long a writer waits for space and what it hears then.
func TestMaxWait(t *testing.T) {
	b := newFaultBench(t, spaceZNS, Options{MaxWait: time.Minute})
	e := b.open()
	ctx := context.Background()
	files, err := fill(t, e, "f", 600_000)
	wantFull(t, err) // at once: nothing is coming
	if files < 8 {
		t.Fatalf("%d files fit", files)
	}
	write := func(wait time.Duration) (time.Duration, error) {
		w, err := e.OpenWriter(ctx, WriterOptions{Name: "w", MaxWait: wait})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		start := time.Now()
		err = w.Write(ctx, nil, [][]byte{noise(1, 1<<20)}, nil)
		return time.Since(start), err
	}
	if took, err := write(time.Minute); took > 10*time.Second {
		t.Errorf("a refusal with nothing on its way took %v: %v", took, err)
	} else {
		wantFull(t, err)
	}
	// Deleted files are on their way back, and the reset of their zones hangs.
	gate := make(chan struct{})
	for range spaceZNS.Zones {
		b.fault.Stall(zone.OpReset, faultdev.AnyZone, gate, nil)
	}
	for i := range 3 {
		deleteFile(t, e, fmt.Sprintf("f%d", i))
	}
	const wait = 300 * time.Millisecond
	took, err := write(wait)
	wantError(t, err, errdefs.NoSpace, errdefs.ReasonReclaimPending)
	if took < wait || took > 20*wait {
		t.Errorf("it waited %v, max_wait is %v", took, wait)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: "w"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Write(short, nil, [][]byte{noise(1, 1<<20)}, nil); !errdefs.Is(err, errdefs.DeadlineExceeded) {
		t.Errorf("a wait beyond its context: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := write(time.Minute)
		done <- err
	}()
	eventually(t, "the writer waits", func() bool { return e.reserved.Load() == 0 && b.fault.Counts().Resets > 0 })
	close(gate)
	if err := <-done; err != nil {
		t.Errorf("the space came, and the writer hears %v", err)
	}
	syncAll(t, e)
	checkQuiet(t, e)
}

// TestReaderPins says that a deleted or replaced file can be read to its end by who had it open,
// and that its space comes back after that.
func TestReaderPins(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.MaxWait = 10 * time.Millisecond
		b := newFaultBench(t, spaceZNS, o)
		e := b.open()
		ctx := context.Background()
		data := noise(1, 2_500_000)
		for _, how := range []string{"delete", "replace", "rename"} {
			put(t, e, "f", data)
			before := e.Usage().Used
			if how == "rename" {
				put(t, e, "g", []byte("new"))
			}
			r, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: "f"}})
			if err != nil {
				t.Fatal(err)
			}
			p, err := r.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got := bytes.Clone(p.Data)
			switch how {
			case "delete":
				deleteFile(t, e, "f")
			case "replace":
				put(t, e, "f", []byte("new"))
			case "rename":
				if _, _, err := e.Rename(ctx, RenameRequest{Name: "g", NewName: "f", Replace: true}); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = fill(t, e, "x", 300_000) // whatever is free is written over
			for {
				p, err := r.Next(ctx)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				got = append(got, p.Data...)
			}
			if !bytes.Equal(got, data) {
				t.Errorf("%s: the reader saw something else", how)
			}
			files, _, err := e.List(ctx, ListRequest{Limit: 10_000})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				deleteFile(t, e, f.Name)
			}
			eventually(t, "all but the pinned file is free", func() bool { return e.orphans.Load() == 1 })
			if u := e.Usage().Used; u < before {
				t.Errorf("%s: %d bytes are in use, and the open file has %d", how, u, before)
			}
			r.Close()
			eventually(t, "all is free", func() bool { return e.Usage().Used == 0 })
		}
		syncAll(t, e)
		checkQuiet(t, e)
	})
}

// TestOrphansAfterRestart frees what was deleted while it was open when the engine went.
func TestOrphansAfterRestart(t *testing.T) {
	b := newFaultBench(t, spaceZNS, Options{})
	e := b.open()
	ctx := context.Background()
	for i := range 5 {
		put(t, e, fmt.Sprint(i), noise(uint64(i), 500_000))
	}
	for i := range 5 {
		r, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		_ = r // the reader never comes to close it
		deleteFile(t, e, fmt.Sprint(i))
	}
	if e.Usage().Used == 0 {
		t.Fatal("files were freed while they were open")
	}
	e = b.crash(1)
	eventually(t, "all is free", func() bool { u := e.Usage(); return u.Used == 0 && e.orphans.Load() == 0 })
	syncAll(t, e)
	checkQuiet(t, e)
	e = b.reopen()
	if u := e.Usage(); u.Used != 0 || u.Free != u.Total {
		t.Errorf("after another restart the usage is %+v", u)
	}
}

// TestTruncateAcrossCrash completes at open a truncate that a crash interrupted.
func TestTruncateAcrossCrash(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, spaceZNS, o)
		e := b.open()
		data := noise(1, 2_000_000)
		put(t, e, "f", data)
		b.closed()
		b.editMetadata(func(tx *store.Tx) error {
			n, err := tx.Resolve("f")
			if err != nil {
				return err
			}
			n.Size, n.ContentCRC = 5000, nil
			if err := tx.PutNode(n); err != nil {
				return err
			}
			return tx.AddOrphan(n.ID, store.OrphanCut, time.Now())
		})
		e = b.open()
		if u := e.Usage(); u.Used > 128<<10 {
			t.Errorf("%d bytes are in use for a file of 5000", u.Used)
		}
		sameFile(t, e, "f", data[:5000])
		if _, _, err := e.Truncate(context.Background(), "f", 1_000_000, Preconditions{}); err != nil {
			t.Fatal(err)
		}
		sameFile(t, e, "f", append(bytes.Clone(data[:5000]), make([]byte, 995_000)...))
		deleteFile(t, e, "f")
		eventually(t, "all is free", func() bool { return e.Usage().Used == 0 })
		checkQuiet(t, e)
	})
}

// TestOpenWithFullMetadata opens a store whose metadata file takes nothing but deletes any more.
func TestOpenWithFullMetadata(t *testing.T) {
	b := newFaultBench(t, spaceZNS, Options{MetadataLimit: 6 << 20})
	e := b.open()
	ctx := context.Background()
	data := noise(1, 100_000)
	put(t, e, "f", data)
	attributes := map[string]string{"a": string(bytes.Repeat([]byte("x"), 3000))}
	n := 0
	for ; n < 5000; n++ {
		if _, err := e.Create(ctx, CreateRequest{Name: fmt.Sprintf("d/%d", n), Attributes: attributes}); err != nil {
			wantError(t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
			break
		}
	}
	b.closed()
	b.opts.MetadataLimit = e.Usage().Metadata / 4096 * 4096 * 16 / 15 // nothing is left beside the share of deletes
	e = b.open()
	sameFile(t, e, "f", data)
	err := tryWriteAt(e, "f", 0, data)
	wantError(t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
	if _, _, err := e.Truncate(ctx, "f", 5000, Preconditions{}); err != nil {
		t.Errorf("truncate: %v", err)
	}
	for i := range n {
		deleteFile(t, e, fmt.Sprintf("d/%d", i))
	}
	deleteFile(t, e, "d")
	eventually(t, "there is room again", func() bool { return tryWriteAt(e, "f", 0, data[:10_000]) == nil })
	e = b.reopen()
	sameFile(t, e, "f", data[:10_000])
}

// TestMetadataLimit fills the metadata file with small records. What was received must be made
// durable all the same, deletes must work, and what they give back can be used again.
func TestMetadataLimit(t *testing.T) {
	alone(t)
	t.Parallel()
	ctx := context.Background()
	for _, c := range []struct {
		name  string
		write func(e *Engine, file, i int) error
	}{
		{"scattered blocks", func(e *Engine, file, i int) error {
			return tryWriteAt(e, fmt.Sprintf("f%d", file), int64(i)*3*extent.BlockSize, noise(uint64(i), extent.BlockSize))
		}},
		{"inline files", func(e *Engine, file, i int) error {
			return tryWriteAt(e, fmt.Sprintf("f%d/%d", file, i), 0, noise(uint64(i), 1900))
		}},
		{"attributes", func(e *Engine, file, i int) error {
			_, err := e.Create(ctx, CreateRequest{
				Name: fmt.Sprintf("f%d/%d", file, i), Attributes: map[string]string{"a": string(bytes.Repeat([]byte("x"), 3000))},
			})
			return err
		}},
	} {
		for _, direct := range []bool{false, true} {
			if direct && c.name == "inline files" {
				continue // in that mode nothing is stored inline
			}
			if testing.Short() && (direct || c.name == "attributes") {
				continue
			}
			t.Run(fmt.Sprintf("%s/nodelalloc=%t", c.name, direct), func(t *testing.T) {
				g := spaceZNS
				g.Zones = 100
				b := newFaultBench(t, g, Options{NoDelalloc: direct, MetadataLimit: 2 << 20, MaxWait: 10 * time.Millisecond})
				e := b.open()
				const perFile = 60
				counts := []int{}
				for round := range 2 {
					var err error
					file, i := 0, 0
					for ; err == nil; file++ {
						if file > 200 {
							t.Fatal("the metadata never gets full")
						}
						for i = 0; i < perFile && err == nil; i++ {
							err = c.write(e, file, i)
						}
						if _, serr := e.Sync(ctx, nil, nil); serr != nil {
							t.Fatalf("what was received cannot be synced: %v", serr)
						}
					}
					wantError(t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
					u := e.Usage()
					if u.Metadata < u.MetadataMax/2 || u.Metadata > u.MetadataMax {
						t.Errorf("refused with %d of %d bytes of metadata in use", u.Metadata, u.MetadataMax)
					}
					checkQuiet(t, e)
					counts = append(counts, file*perFile+i)
					files, _, lerr := e.List(ctx, ListRequest{Recursive: true, Limit: 100_000})
					if lerr != nil {
						t.Fatal(lerr)
					}
					if round == 1 {
						e = b.reopen()
					}
					for i := range files { // the deepest first
						deleteFile(t, e, files[len(files)-1-i].Name)
					}
					eventually(t, "everything is freed", func() bool { return e.orphans.Load() == 0 && e.Usage().Used == 0 })
					checkIdentity(t, e)
				}
				if counts[1] < counts[0]*3/4 {
					t.Errorf("%d writes fitted at first and %d after everything was deleted", counts[0], counts[1])
				}
				put(t, e, "again", noise(1, 100_000))
			})
		}
	}
}
