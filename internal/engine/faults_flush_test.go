package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// TestFlushFails loses a flush: what was appended before it is appended again.
func TestFlushFails(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		for nth := 1; nth <= 2; nth++ {
			for _, reached := range []bool{false, true} {
				b := newFaultBench(t, faultZNS, o)
				e := b.open()
				want := map[string][]byte{"a": noise(1, 400_000), "b": text(2, 500_000), "c": []byte("inline"), "d": noise(4, 5000)}
				before := b.fault.Counts().Flushes
				b.fault.FailFlush(nth, reached)
				b.fault.FailFlush(nth, reached) // and the one after
				var wg sync.WaitGroup
				for name, data := range want {
					wg.Go(func() {
						if err := writeInSteps(e, name, data, 100_000); err != nil {
							t.Errorf("flush %d: %s: %v", nth, name, err)
						}
					})
				}
				wg.Wait()
				for i := 0; b.fault.Counts().FailedFlushes < 2; i++ {
					want[fmt.Sprint(i)] = noise(uint64(i), 9000)
					put(t, e, fmt.Sprint(i), want[fmt.Sprint(i)])
				}
				syncAll(t, e)
				if n := e.Counters()["flush_errors"]; n != 2 {
					t.Errorf("%d flush errors are counted, want 2", n)
				}
				if n := b.fault.Counts().Flushes - before; n < 3 {
					t.Errorf("%d flushes, and two of them failed", n)
				}
				checkQuiet(t, e)
				// Nothing that a failed flush left in doubt may be counted on.
				e = b.crash(uint64(nth))
				for name, data := range want {
					sameFile(t, e, name, data)
				}
			}
		}
	})
}

// TestFlushFailsUnderLoad loses flushes at random under many writers and then the power. Whatever
// a Sync answered well must be there.
func TestFlushFailsUnderLoad(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		for seed := range uint64(3) {
			b := newFaultBench(t, faultZNS, o)
			e := b.open()
			rng := rand.New(rand.NewPCG(seed, 5))
			for nth := 1; nth < 200; nth += 1 + rng.IntN(6) {
				b.fault.FailFlush(nth, rng.IntN(3) == 0)
			}
			if seed == 2 {
				for nth := 5; nth < 400; nth += 1 + rng.IntN(40) {
					b.fault.FailAppend(faultdev.AnyZone, nth, faultdev.Moved(rng.IntN(3)))
				}
			}
			const writers, rounds, n = 6, 8, 30_000
			synced := make([]int, writers) // rounds whose bytes are durable
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() {
					name := fmt.Sprint(i)
					for r := 0; r < rounds; {
						err := tryWriteAt(e, name, int64(r*n), noise(uint64(i*rounds+r), n))
						if err == nil {
							_, err = e.Sync(context.Background(), []string{name}, nil)
						}
						switch {
						case err == nil:
							r++
							synced[i] = r
						case !errdefs.Is(err, errdefs.Device): // given up: written again
							t.Errorf("%s: %v", name, err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.fault.Heal()
			if e.Counters()["flush_errors"] == 0 {
				t.Error("no flush failed")
			}
			syncAll(t, e)
			checkQuiet(t, e)
			check := func() {
				for i := range writers {
					var want []byte
					for r := range synced[i] {
						want = append(want, noise(uint64(i*rounds+r), n)...)
					}
					sameFile(t, e, fmt.Sprint(i), want)
				}
				checkIdentity(t, e)
			}
			check()
			e = b.crash(seed)
			check()
		}
	})
}

// TestEveryFlushFails must end in an error and be over once the device is well.
func TestEveryFlushFails(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, faultZNS, o)
		e := b.open()
		ctx := context.Background()
		old := noise(9, 200_000)
		put(t, e, "old", old)
		put(t, e, "f", old)
		fail := b.failing(zone.OpFlush)
		data := noise(1, 200_000)
		writeAt(t, e, "f", 0, data)
		stickyUntilRewritten(t, e, fail, data)
		// Names need no flush of the device.
		if _, err := e.Create(ctx, CreateRequest{Name: "g"}); err != nil {
			t.Errorf("create: %v", err)
		}
		// Nor does what is stored in its record.
		if !o.NoDelalloc {
			put(t, e, "small", []byte("small"))
		}
		if _, _, err := e.Rename(ctx, RenameRequest{Name: "f", NewName: "h"}); !errdefs.Is(err, errdefs.Device) {
			t.Errorf("rename of a file that cannot be made durable: %v", err)
		}
		fail.on.Store(false)
		// One half is written again, the other is cut off.
		writeAt(t, e, "f", 0, data[:100_000])
		if _, err := e.Sync(ctx, []string{"f"}, nil); !errdefs.Is(err, errdefs.Device) {
			t.Errorf("half of the range is bad still, and Sync says %v", err)
		}
		if _, _, err := e.Truncate(ctx, "f", 100_000, Preconditions{}); err != nil {
			t.Errorf("truncate: %v", err)
		}
		if _, err := e.Sync(ctx, []string{"f"}, nil); err != nil {
			t.Errorf("sync after that: %v", err)
		}
		syncAll(t, e)
		checkQuiet(t, e)
		for range 2 {
			sameFile(t, e, "f", data[:100_000])
			sameFile(t, e, "old", old)
			e = b.reopen()
		}
	})
}

// TestCloseWithSyncFailure says that closing is not silent about data that cannot be made
// durable, and does not hang; afterwards the file is what it was before.
func TestCloseWithSyncFailure(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		for _, kind := range []zone.OpKind{zone.OpAppend, zone.OpFlush} {
			b := newFaultBench(t, faultZNS, o)
			e := b.open()
			old := noise(1, 100_000)
			put(t, e, "f", old)
			fail := b.failing(kind)
			if err := tryWriteAt(e, "f", 50_000, noise(2, 200_000)); err != nil && !o.NoDelalloc {
				t.Fatal(err)
			}
			err := e.Close(context.Background())
			if !errdefs.Is(err, errdefs.Device) && (!o.NoDelalloc || kind == zone.OpFlush) {
				t.Errorf("closing while every %v fails: %v", kind, err)
			}
			fail.on.Store(false)
			e = b.open()
			sameFile(t, e, "f", old)
			syncAll(t, e)
			checkQuiet(t, e)
		}
	})
}

// TestFailedCommit says that after a failed commit of the metadata nothing is written until the
// store is opened again, and that reading goes on, of what is only in memory too.
func TestFailedCommit(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.DirtyLimit, o.MaxWait = minDirtyLimit, time.Minute
		b := newFaultBench(t, faultZNS, o)
		e := b.open()
		ctx := context.Background()
		old := noise(1, 100_000)
		put(t, e, "f", old)
		data := noise(2, 100_000)
		writeAt(t, e, "g", 0, data)
		w := openWriter(t, e, WriterOptions{Name: "h"})
		defer w.Close()
		e.failWrites(errors.New("the disk of the metadata is gone"))
		for what, do := range map[string]func() error{
			"write":    func() error { return w.Write(ctx, nil, [][]byte{data}, nil) },
			"open":     func() error { _, err := e.OpenWriter(ctx, WriterOptions{Name: "f"}); return err },
			"sync":     func() error { _, err := e.Sync(ctx, nil, nil); return err },
			"delete":   func() error { _, err := e.Delete(ctx, DeleteRequest{Name: "f"}); return err },
			"create":   func() error { _, err := e.Create(ctx, CreateRequest{Name: "x"}); return err },
			"rename":   func() error { _, _, err := e.Rename(ctx, RenameRequest{Name: "f", NewName: "x"}); return err },
			"truncate": func() error { _, _, err := e.Truncate(ctx, "f", 5, Preconditions{}); return err },
			"punch":    func() error { _, _, err := e.Deallocate(ctx, "f", 5, 7, Preconditions{}); return err },
		} {
			if err := do(); !errdefs.Is(err, errdefs.ReadOnly) || errdefs.ReasonOf(err) != errdefs.ReasonReadOnly {
				t.Errorf("%s: %v", what, err)
			}
		}
		sameFile(t, e, "f", old)
		sameFile(t, e, "g", data)
		if !e.Info().ReadOnly || len(e.Conditions()) == 0 {
			t.Error("nobody says that the store is read-only")
		}
		if err := e.Close(ctx); !errdefs.Is(err, errdefs.ReadOnly) {
			t.Errorf("closing: %v", err)
		}
		e = b.open()
		sameFile(t, e, "f", old)
		put(t, e, "g", data)
		syncAll(t, e)
		checkQuiet(t, e)
	})
}

// TestInlineOfDamagedRecord has a small file whose record makes no sense overwritten: what cannot be
// published is kept, in its error, and takes no metadata space from others.
func TestInlineOfDamagedRecord(t *testing.T) {
	b := newBench(t, smallZNS, Options{WritebackAge: time.Hour})
	e := b.open()
	put(t, e, "f", text(1, 100))
	err := e.st.Update(func(tx *store.Tx) error {
		n, err := tx.Resolve("f")
		if err != nil {
			return err
		}
		n.Inline = &store.Inline{RawLen: 200, Data: make([]byte, 200)} // of a file of 100 bytes
		return tx.PutNode(n)
	})
	if err != nil {
		t.Fatal(err)
	}
	data := text(2, 100)
	writeAt(t, e, "f", 0, data)
	if _, err := e.Sync(context.Background(), nil, nil); errdefs.ReasonOf(err) != errdefs.ReasonSyncFailed {
		t.Fatalf("sync of what cannot be published: %v", err)
	}
	if got, err := tryRead(e, "f", 0, nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("what could not be published reads as %d bytes, %v", len(got), err)
	}
	if n := e.inlining.Load(); n != 0 {
		t.Errorf("metadata is still kept for %d inline files", n)
	}
}
