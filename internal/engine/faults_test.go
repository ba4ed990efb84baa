package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

var faultZNS = zone.Geometry{
	Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 60, MaxOpen: 4, MaxActive: 5, AppendLimit: 64 << 10,
}

// failing makes every operation of a kind fail until it is turned off.
type failing struct {
	on   atomic.Bool
	hits atomic.Int64
}

func (b *faultBench) failing(kind zone.OpKind) *failing {
	f := &failing{}
	f.on.Store(true)
	b.mem.SetHook(func(op zone.Op) error {
		if op.Kind != kind || op.After || !f.on.Load() {
			return nil
		}
		f.hits.Add(1)
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "test", op.Kind.String(), zone.ErrMedia)
	})
	return f
}

// crash cuts the power, which ends the engine, and opens the store again with what is left.
func (b *faultBench) crash(seed uint64) *Engine {
	b.t.Helper()
	b.mem.CutPower()
	b.e.failWrites(errors.New("the power was cut"))
	_ = b.e.Close(context.Background())
	b.mem.PowerOn(rand.New(rand.NewPCG(seed, 0)))
	return b.open()
}

// pieces returns where a file's data lies.
func pieces(t testing.TB, e *Engine, name string) (out []store.Piece) {
	t.Helper()
	err := e.st.View(func(tx *store.Tx) error {
		n, err := tx.Resolve(name)
		if err == nil {
			out, err = tx.Map(n.ID, 0, extent.MaxFileSize)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// at returns the zone and the offset in it of the i-th block of a piece.
func (e *Engine) at(x store.Piece, i int64) (z int, off int64) {
	slot, off := e.split(x.Addr)
	return e.zoneOf(slot), off + i*extent.BlockSize
}

func sameFile(t testing.TB, e *Engine, name string, want []byte) {
	t.Helper()
	got := readAll(t, e, name)
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	t.Errorf("%s differs at %d (%d bytes, want %d): % x, want % x", name, at, len(got), len(want),
		got[at:min(len(got), at+8)], want[at:min(len(want), at+8)])
}

func wantError(t testing.TB, err error, kind errdefs.Kind, reason errdefs.Reason) {
	t.Helper()
	if !errdefs.Is(err, kind) || errdefs.ReasonOf(err) != reason {
		t.Fatalf("the error is %v (%v, %s), want %v, %s", err, errdefs.KindOf(err), errdefs.ReasonOf(err), kind, reason)
	}
}

// TestAppendFails loses appends of headers and of data, with the write pointer moved by none,
// part or all of them. Nobody may hear of it.
func TestAppendFails(t *testing.T) {
	t.Parallel()
	want := map[string][]byte{"a": noise(1, 300_000), "b": text(2, 500_001), "c": noise(3, 200_000)}
	modes(t, func(t *testing.T, o Options) {
		for _, moved := range []faultdev.Moved{faultdev.MovedNone, faultdev.MovedPart, faultdev.MovedAll} {
			for _, nth := range []int{1, 3} {
				if testing.Short() && (nth != 1 || moved == faultdev.MovedNone) {
					continue
				}
				b := newFaultBench(t, faultZNS, o)
				e := b.open()
				b.fault.FailAppend(faultdev.AnyZone, nth, moved)
				b.fault.FailAppend(faultdev.AnyZone, nth+3, moved)
				var wg sync.WaitGroup
				for name, data := range want {
					wg.Go(func() {
						if err := writeInSteps(e, name, data, 100_000); err != nil {
							t.Errorf("moved %d, append %d: %s: %v", moved, nth, name, err)
						}
					})
				}
				wg.Wait()
				if n := b.fault.Counts().FailedAppends; n != 2 {
					t.Fatalf("%d appends failed, want 2", n)
				}
				if n := e.Counters()["append_errors"]; n != 2 {
					t.Errorf("%d append errors are counted, want 2", n)
				}
				checkQuiet(t, e)
				for range 2 {
					for name, data := range want {
						sameFile(t, e, name, data)
					}
					e = b.reopen()
				}
				if s := b.fault.Stats(); s.RefusedTooManyActive+s.RefusedTooManyOpen+s.Evictions != 0 {
					t.Errorf("a zone that failed kept its slot: %+v", s)
				}
				if moved == faultdev.MovedNone {
					b.checkLimits()
				}
			}
		}
	})
}

// TestEveryAppendFails must end in an error that names the range and not in endless tries, and
// be over once the device is well.
func TestEveryAppendFails(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, faultZNS, o)
		e := b.open()
		ctx := context.Background()
		old := noise(9, 200_000)
		put(t, e, "old", old)
		put(t, e, "f", old)
		fail := b.failing(zone.OpAppend)
		data := noise(1, 200_000)
		err := tryWriteAt(e, "f", 0, data)
		if o.NoDelalloc {
			if !errdefs.Is(err, errdefs.Device) {
				t.Fatalf("the write answers %v", err)
			}
			sameFile(t, e, "f", old)
		} else {
			if err != nil {
				t.Fatal(err)
			}
			stickyUntilRewritten(t, e, fail, data)
		}
		if n := fail.hits.Load(); n > 200 {
			t.Errorf("%d appends were tried", n)
		}
		fail.on.Store(false)
		writeAt(t, e, "f", 0, data)
		if _, err := e.Sync(ctx, []string{"f"}, nil); err != nil {
			t.Fatalf("after the range was written again: %v", err)
		}
		syncAll(t, e)
		checkQuiet(t, e)
		for range 2 {
			sameFile(t, e, "f", data)
			sameFile(t, e, "old", old)
			e = b.reopen()
		}
	})
}

// stickyUntilRewritten says what holds for the file "f", whose data cannot be made durable.
func stickyUntilRewritten(t *testing.T, e *Engine, fail *failing, data []byte) {
	t.Helper()
	ctx := context.Background()
	for range 2 {
		_, err := e.Sync(ctx, []string{"f"}, nil)
		wantError(t, err, errdefs.Device, errdefs.ReasonSyncFailed)
		if _, err := e.Sync(ctx, nil, nil); !errdefs.Is(err, errdefs.Device) {
			t.Fatalf("the sync of the store answers %v", err)
		}
	}
	if _, err := e.Sync(ctx, []string{"old"}, nil); err != nil {
		t.Fatalf("the sync of another file: %v", err)
	}
	sameFile(t, e, "f", data)
	if f, err := e.Get(ctx, Ref{Name: "f"}); err != nil || !f.SyncFailed {
		t.Fatalf("the file is %+v, %v", f, err)
	}
	found := false
	for _, c := range e.Conditions() {
		found = found || c.Reason == string(errdefs.ReasonSyncFailed) && c.Object == "files/f"
	}
	if !found {
		t.Errorf("no condition names the file: %+v", e.Conditions())
	}
	checkIdentity(t, e)
	if n := e.Usage().Reserved; n != extent.RoundUp(int64(len(data))) {
		t.Errorf("%d bytes are reserved for data that has no place", n)
	}
	// A device that is well again does not end it: nobody has written the range again.
	fail.on.Store(false)
	_, err := e.Sync(ctx, []string{"f"}, nil)
	wantError(t, err, errdefs.Device, errdefs.ReasonSyncFailed)
	fail.on.Store(true)
}

// TestDeleteEndsSyncFailure says that deleting a file gives back what it held reserved.
func TestDeleteEndsSyncFailure(t *testing.T) {
	b := newFaultBench(t, faultZNS, Options{})
	e := b.open()
	ctx := context.Background()
	fail := b.failing(zone.OpFlush)
	writeAt(t, e, "f", 0, noise(1, 300_000))
	_, err := e.Sync(ctx, nil, nil)
	wantError(t, err, errdefs.Device, errdefs.ReasonSyncFailed)
	if _, err := e.Delete(ctx, DeleteRequest{Name: "f"}); err != nil {
		t.Fatal(err)
	}
	fail.on.Store(false)
	syncAll(t, e)
	checkQuiet(t, e)
}

// TestReadFailsOnce says that a passing error of a read is no error.
func TestReadFailsOnce(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, faultZNS, o)
		e := b.open()
		data := text(1, 600_000)
		put(t, e, "f", data)
		x := pieces(t, e, "f")[0]
		z, off := e.at(x, 0)
		b.fault.FailRead(z, off, extent.BlockSize, false)
		sameFile(t, e, "f", data)
		if n := e.Counters()["read_errors"]; n != 1 {
			t.Errorf("%d read errors are counted, want 1", n)
		}
		if c := e.Conditions(); len(c) != 0 {
			t.Errorf("conditions: %+v", c)
		}
	})
}

// TestBadBlock says what bad stored data leads to: an error with an address after the good
// prefix, and an end of the error by a whole overwrite, not by a part of one.
func TestBadBlock(t *testing.T) {
	for _, rot := range []bool{false, true} {
		t.Run(fmt.Sprintf("rot=%t", rot), func(t *testing.T) {
			modes(t, func(t *testing.T, o Options) { badBlock(t, o, rot) })
		})
	}
}

func badBlock(t *testing.T, o Options, rot bool) {
	b := newFaultBench(t, faultZNS, o)
	e := b.open()
	data := text(1, 1_500_000)
	put(t, e, "dir/f", data)
	other := noise(2, 100_000)
	put(t, e, "other", other)
	ps := pieces(t, e, "dir/f")
	x := ps[len(ps)/2]
	block := x.Blocks / 2
	z, off := e.at(x, block)
	reason := errdefs.ReasonDeviceIO
	if rot {
		reason = errdefs.ReasonCorruption
		if err := b.mem.Corrupt(z, off+77, 1); err != nil {
			t.Fatal(err)
		}
	} else {
		b.fault.FailRead(z, off, extent.BlockSize, true)
	}
	got, err := tryRead(e, "dir/f", 0, nil)
	wantError(t, err, errdefs.Corruption, reason)
	var bad *errdefs.Error
	if !errors.As(err, &bad) {
		t.Fatal(err)
	}
	d, ok := bad.Detail.(*CorruptionDetail)
	if !ok || !strings.Contains(err.Error(), "dir/f") {
		t.Fatalf("the error does not name the file: %v", err)
	}
	if d.Name != "dir/f" || d.Zone != z || d.ZoneOff != off || d.Address != x.Addr+extent.Addr(block*extent.BlockSize) {
		t.Errorf("the bad block is zone %d offset %d, reported as %+v", z, off, d)
	}
	if d.Offset < x.FileOff || d.Offset+d.Length > x.FileOff+x.Len || d.Length <= 0 {
		t.Errorf("the bad range is [%d, +%d), of a piece [%d, +%d)", d.Offset, d.Length, x.FileOff, x.Len)
	}
	if rot && d.Expected == d.Actual {
		t.Errorf("expected and actual checksum are %08x", d.Actual)
	}
	if int64(len(got)) != d.Offset || !bytes.Equal(got, data[:d.Offset]) {
		t.Errorf("%d good bytes came before the error, want %d", len(got), d.Offset)
	}
	after := d.Offset + d.Length
	if got, err := tryRead(e, "dir/f", after, nil); err != nil || !bytes.Equal(got, data[after:]) {
		t.Errorf("what comes after the bad range: %v", err)
	}
	sameFile(t, e, "other", other)

	// A write that covers the bad block in part would give it a new checksum.
	err = tryWriteAt(e, "dir/f", d.Offset+10, []byte("x"))
	wantError(t, err, errdefs.Corruption, reason)
	checkQuiet(t, e)
	part := noise(3, int(d.Length))
	writeAt(t, e, "dir/f", d.Offset, part)
	copy(data[d.Offset:], part)
	sameFile(t, e, "dir/f", data)
	syncAll(t, e)
	checkQuiet(t, e)
	sameFile(t, e, "dir/f", data)
	b.fault.Heal()
	e = b.reopen()
	sameFile(t, e, "dir/f", data)
}

// TestZoneFailsInStream loses a zone in the middle of a write while others write too. What was
// only appended to it goes elsewhere; what was durable in it can be read from a read-only zone
// and is named from an offline one.
func TestZoneFailsInStream(t *testing.T) {
	for _, to := range []zone.Condition{zone.ReadOnly, zone.Offline} {
		t.Run(conditionWord(to), func(t *testing.T) {
			modes(t, func(t *testing.T, o Options) { zoneFails(t, o, to) })
		})
	}
}

func zoneFails(t *testing.T, o Options, to zone.Condition) {
	b := newFaultBench(t, faultZNS, o)
	e := b.open()
	first := noise(1, 50_000)
	put(t, e, "first", first)
	z, _ := e.at(pieces(t, e, "first")[0], 0)
	b.fault.FailZone(z, 300_000, to)
	data := make([][]byte, 6)
	var wg sync.WaitGroup
	for i := range data {
		data[i] = noise(uint64(i+10), 400_000+i)
		wg.Go(func() {
			if err := writeInSteps(e, fmt.Sprintf("f%d", i), data[i], 128<<10); err != nil {
				t.Errorf("f%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	syncAll(t, e)
	checkQuiet(t, e)
	lost := 0
	check := func() {
		lost = 0
		for i := range data {
			name := fmt.Sprintf("f%d", i)
			got, err := tryRead(e, name, 0, nil)
			if err == nil && bytes.Equal(got, data[i]) {
				continue
			}
			// Half of each was synced before the rest was written: that half may have lain there.
			if to == zone.Offline && errdefs.Is(err, errdefs.Corruption) && inZone(e, pieces(t, e, name), z) {
				lost++
				continue
			}
			t.Errorf("%s: %v", name, err)
		}
		got, err := tryRead(e, "first", 0, nil)
		if to == zone.ReadOnly && (err != nil || !bytes.Equal(got, first)) {
			t.Errorf("what lies in a read-only zone: %v", err)
		}
		if to == zone.Offline {
			wantError(t, err, errdefs.Corruption, errdefs.ReasonDeviceIO)
		}
	}
	check()
	if c := e.Conditions(); len(c) == 0 || c[0].Severity != Error {
		t.Errorf("nobody says that a zone failed: %+v", c)
	}
	if e.Usage().Quarantined == 0 {
		t.Error("the rest of the zone is not quarantined")
	}
	e = b.reopen()
	check()
	checkIdentity(t, e)
}

func inZone(e *Engine, ps []store.Piece, z int) bool {
	for _, x := range ps {
		if at, _ := e.at(x, 0); at == z {
			return true
		}
	}
	return false
}

// TestOfflineZoneBeforeSync says that data appended to a zone that goes offline before the
// commit is not lost: it is in memory still.
func TestOfflineZoneBeforeSync(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, faultZNS, o)
		e := b.open()
		put(t, e, "first", noise(1, 5000))
		z, _ := e.at(pieces(t, e, "first")[0], 0)
		b.fault.FailZone(z, 400_000, zone.Offline)
		data := noise(2, 700_000)
		writeAt(t, e, "f", 0, data)
		syncAll(t, e)
		if n := b.fault.Counts().FailedAppends; n == 0 {
			t.Fatal("the zone did not fail")
		}
		sameFile(t, e, "f", data)
		checkQuiet(t, e)
		e = b.reopen()
		sameFile(t, e, "f", data)
	})
}

// TestOverwriteInFlight writes over a range while its append hangs and then fails for good: the
// newer bytes end the error before it begins.
func TestOverwriteInFlight(t *testing.T) {
	b := newFaultBench(t, faultZNS, Options{})
	e := b.open()
	ctx := context.Background()
	put(t, e, "other", noise(1, 5000)) // the zone is open
	gate, met := make(chan struct{}), make(chan struct{})
	b.fault.Stall(zone.OpAppend, faultdev.AnyZone, gate, met)
	writeAt(t, e, "f", 0, noise(2, 64<<10))
	synced := make(chan error, 1)
	go func() {
		_, err := e.Sync(ctx, []string{"f"}, nil)
		synced <- err
	}()
	<-met
	fail := b.failing(zone.OpAppend)
	data := noise(3, 64<<10)
	writeAt(t, e, "f", 0, data)
	close(gate)
	for e.count.rangesInFlight.Load() > 0 {
		if _, err := e.Get(ctx, Ref{Name: "f"}); err != nil {
			t.Fatal(err)
		}
	}
	fail.on.Store(false)
	if err := <-synced; err != nil {
		t.Logf("the first sync: %v", err) // both answers are true
	}
	if _, err := e.Sync(ctx, []string{"f"}, nil); err != nil {
		t.Fatalf("the data that failed has been written over: %v", err)
	}
	sameFile(t, e, "f", data)
	checkQuiet(t, e)
}
