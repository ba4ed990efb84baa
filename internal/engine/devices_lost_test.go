package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

// TestDeviceLostUnderLoad has a device die while clients write, sync and read: nobody's read fails, nobody's
// sync does, and a new device gets all of it again while they go on.
func TestDeviceLostUnderLoad(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var rounds atomic.Int64
	last := make([][]byte, 6)
	for i := range last {
		wg.Go(func() {
			name := fmt.Sprintf("client%d", i)
			for n := uint64(0); ; n++ {
				data := noise(n*7+uint64(i), 50_000+int(n%13)*9_000)
				_, err := tryPut(e, name, data)
				if err == nil {
					_, err = e.Sync(context.Background(), nil, nil)
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				got, err := tryRead(e, name, 0, nil)
				if err != nil || string(got) != string(data) {
					t.Errorf("%s: %d bytes, %v", name, len(got), err)
					return
				}
				last[i] = data
				rounds.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		until := rounds.Load() + n
		eventually(t, "the clients get on", func() bool { return rounds.Load() >= until || t.Failed() })
	}
	more(20)
	b.devices[1].dead.Store(true)
	more(60)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["new"] = b.devices[2]
	if _, err := e.ReplaceDevice(context.Background(), 1, "new", false); err != nil {
		t.Error(err)
	}
	more(60)
	eventually(t, "the dead device has left", func() bool {
		infos, _, err := e.Devices()
		return err == nil && len(infos) == 2
	})
	close(stop)
	wg.Wait()
	b.whole()
	if c := scrubAll(t, e, ScrubRequest{}).Counters; c.Errors() != 0 {
		t.Errorf("%+v", c)
	}
	checkQuiet(t, e)
	b.close()
	b.given = []int{0, 2}
	b.wantClean()
	b.given = []int{2}
	e = b.open()
	for i, data := range last {
		sameFile(t, e, fmt.Sprintf("client%d", i), data)
	}
}

// TestDeviceLost has one of two devices die under load, stay away, and come back old.
func TestDeviceLost(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	files := map[string][]byte{}
	store := func(n int, seed uint64) {
		for i := range n {
			name := fmt.Sprintf("f%d", (int(seed)*7+i)%9)
			files[name] = noise(seed+uint64(i), 300_000+i*1111)
			put(t, b.e, name, files[name])
			syncAll(t, b.e)
		}
	}
	read := func() {
		t.Helper()
		for name, data := range files {
			sameFile(t, b.e, name, data)
		}
	}
	store(9, 1)
	b.devices[1].dead.Store(true)
	store(9, 20)
	read()
	infos, _, err := e.Devices()
	if err != nil || infos[1].State != DeviceFailed || infos[0].State != DeviceOnline {
		t.Errorf("%+v, %v", infos, err)
	}
	named := map[string]bool{}
	for _, c := range e.Conditions() {
		named[c.Reason] = true
	}
	if !named["DEVICE_FAILED"] || !named["DEGRADED"] {
		t.Errorf("%+v", e.Conditions())
	}
	b.close()

	b.given = []int{0}
	b.open()
	read()
	store(7, 40)
	read()
	b.close()
	for _, p := range b.check() {
		if !strings.Contains(p, "copies of 2") && !strings.Contains(p, "was not given") {
			t.Errorf("degraded: %s", p)
		}
	}

	b.devices[1].dead.Store(false)
	b.given = []int{1, 0}
	b.open()
	read()
	b.whole()
	read()
	if s := scrubAll(t, b.e, ScrubRequest{}); s.Counters.Errors() != 0 {
		t.Errorf("%+v", s.Counters)
	}
	b.close()
	b.wantClean()

	// And with the other one alone all is there.
	b.given = []int{1}
	b.open()
	read()
}

// TestReplaceDevice puts a new device in the place of one that is dead, missing, or well.
func TestReplaceDevice(t *testing.T) {
	for name, c := range map[string]struct {
		copies int
		lose   func(*copyBench)
	}{
		"dead": {2, func(b *copyBench) {
			b.devices[0].dead.Store(true)
			put(b.t, b.e, "x", noise(9, 100_000))
			syncAll(b.t, b.e)
		}},
		"missing": {2, func(b *copyBench) { b.close(); b.given = []int{1}; b.open() }},
		"well":    {2, func(*copyBench) {}},
		"only":    {1, func(*copyBench) {}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCopyBench(t, c.copies, Options{}, copyZNS, copyZNS)
			b.open()
			data := noise(3, 5<<20)
			put(t, b.e, "f", data)
			syncAll(t, b.e)
			c.lose(b)
			b.devices = append(b.devices, newMortal(t, copyZNS))
			b.added["new"] = b.devices[2]
			d, err := b.e.ReplaceDevice(context.Background(), 0, "new", false)
			if err != nil {
				t.Fatal(err)
			}
			if d.Number != 2 || d.State != DeviceOnline || d.Path != "new" {
				t.Errorf("%+v", d)
			}
			more := noise(4, 1<<20)
			put(t, b.e, "g", more)
			syncAll(t, b.e)
			eventually(t, "the old one has left", func() bool {
				infos, _, err := b.e.Devices()
				return err == nil && len(infos) == 2 && infos[0].Number == 1 && infos[1].Number == 2
			})
			b.whole()
			sameFile(t, b.e, "f", data)
			sameFile(t, b.e, "g", more)
			b.close()
			b.given = []int{1, 2}
			b.wantClean()
			b.open()
			sameFile(t, b.e, "f", data)
			b.close()
			if name == "missing" {
				b.given = []int{0, 1, 2}
				if _, err := b.tryOpen(); errdefs.ReasonOf(err) != errdefs.ReasonDeviceMismatch {
					t.Errorf("with the device that was replaced: %v", err)
				}
			}
		})
	}
}

// TestStaleDevice opens a store with an old state of a device whose label is not older than its record.
func TestDeviceOfOldStateIsNotRead(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	b.open()
	old := noise(1, 4<<20)
	put(t, b.e, "f", old)
	b.close()
	b.given = []int{0}
	b.open()
	data := noise(2, 4<<20)
	for range 4 { // the zones that the missing one has are used for something else on the other
		put(t, b.e, "f", data)
		syncAll(t, b.e)
	}
	b.close()
	// The records forget that the places are stale.
	st, err := store.Open(b.meta, store.Options{MaxBytes: 64 << 20, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	forgotten := 0
	err = st.Update(func(tx *store.Tx) error {
		var groups []store.BlockGroup
		if err := tx.BlockGroups(func(g store.BlockGroup) error { groups = append(groups, g); return nil }); err != nil {
			return err
		}
		for _, g := range groups {
			places := append([]store.Place(nil), g.Places...)
			for i := range places {
				if places[i].Stale {
					places[i].Stale = false
					forgotten++
				}
			}
			g.Places = places
			if err := tx.PutBlockGroup(g); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, st.Close()); err != nil || forgotten == 0 {
		t.Fatal(forgotten, err)
	}
	b.given = []int{0, 1}
	b.open()
	found := false
	for _, c := range b.e.Conditions() {
		found = found || c.Reason == "DEVICE_STALE"
	}
	if !found {
		t.Errorf("%+v", b.e.Conditions())
	}
	sameFile(t, b.e, "f", data)
	b.whole()
	sameFile(t, b.e, "f", data)
	b.close()
	b.wantClean()
}

// TestReplaceDeviceWithBadBlocks: what is good in no copy keeps its block group, and so the device, until the file
// is rewritten; all else moves.
func TestReplaceDeviceWithBadBlocks(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	data, other := noise(3, 2<<20), noise(4, 2<<20)
	put(t, e, "f", data)
	put(t, e, "g", other)
	syncAll(t, e)
	b.spoil("f", 9, 0)
	b.spoil("f", 9, 1)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["new"] = b.devices[2]
	if _, err := e.ReplaceDevice(context.Background(), 0, "new", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says what it is stuck at", func() bool {
		_, r, err := e.Devices()
		return err == nil && r.Running && strings.Contains(r.Stuck, "good in no copy")
	})
	sameFile(t, e, "g", other)
	put(t, e, "f", data)
	syncAll(t, e)
	eventually(t, "it has left", func() bool {
		infos, _, err := e.Devices()
		return err == nil && len(infos) == 2
	})
	b.whole()
	sameFile(t, e, "f", data)
	sameFile(t, e, "g", other)
	b.close()
	b.given = []int{1, 2}
	b.wantClean()
}

// TestWhatADeviceMissedIsOnRecord: after a crash nobody takes what a device missed for a copy, not even where the
// block group was written to before it died.
func TestWhatADeviceMissedIsOnRecord(t *testing.T) {
	for name, lose := range map[string]func(*copyBench){
		"dies":    func(b *copyBench) { b.devices[1].dead.Store(true) },
		"missing": func(b *copyBench) { b.close(); b.given = []int{0}; b.open() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
			b.open()
			before, after := noise(1, 200_000), noise(2, 200_000)
			put(t, b.e, "before", before)
			syncAll(t, b.e)
			lose(b)
			put(t, b.e, "after", after)
			syncAll(t, b.e)
			b.e.failWrites(errors.New("killed"))
			_ = b.e.Close(context.Background())
			b.devices[1].dead.Store(false)
			b.given = []int{0, 1}
			problems := b.check()
			for _, p := range problems {
				if !strings.Contains(p, "copies of 2") {
					t.Errorf("check: %s", p)
				}
			}
			if len(problems) == 0 {
				t.Error("check does not know that a copy is missing")
			}
			b.open()
			b.whole()
			b.close()
			b.wantClean()
			b.given = []int{1}
			b.open()
			sameFile(t, b.e, "before", before)
			sameFile(t, b.e, "after", after)
		})
	}
}

// TestReplaceDeviceWithAFailedZone: a block group whose other zone has failed, and in which nothing lives, does not
// keep a device from leaving; one in which something lives does not either.
func TestReplaceDeviceWithAFailedZone(t *testing.T) {
	for name, remove := range map[string]bool{"empty": true, "live": false} {
		t.Run(name, func(t *testing.T) {
			b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
			e := b.open()
			data, other := noise(3, 2<<20), noise(4, 1<<20)
			put(t, e, "f", data)
			put(t, e, "g", other)
			syncAll(t, e)
			slot, _ := e.split(pieces(t, e, "f")[0].Addr)
			b.close()
			p := e.placeAt(slot, 1)
			b.devices[p.Device].failed.Store(int64(p.Zone) + 1)
			e = b.open()
			if remove {
				deleteFile(t, e, "f")
				syncAll(t, e)
			}
			b.devices = append(b.devices, newMortal(t, copyZNS))
			b.added["new"] = b.devices[2]
			if _, err := e.ReplaceDevice(context.Background(), 0, "new", false); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the old one has left, or it is said why not", func() bool {
				infos, r, err := e.Devices()
				return err == nil && (len(infos) == 2 || !remove && r.Stuck != "")
			})
			sameFile(t, e, "g", other)
			if !remove {
				sameFile(t, e, "f", data)
				deleteFile(t, e, "f")
				eventually(t, "the old one has left", func() bool {
					infos, _, err := e.Devices()
					return err == nil && len(infos) == 2
				})
			}
			b.close()
			b.given = []int{1, 2}
			b.open()
			sameFile(t, b.e, "g", other)
		})
	}
}
