package label_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

const blk = extent.BlockSize

var geo = zone.Geometry{
	Dialect: zone.ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 8, MaxOpen: 2, MaxActive: 2,
}

func sample(generation uint64) label.Label {
	return label.Label{
		Store: [16]byte{1, 2, 3, 15: 16}, Device: 1, Devices: 2, Generation: generation,
		ZoneSize: geo.ZoneSize, Zones: geo.Zones, Dialect: zone.ZNS,
	}
}

var header = label.Header{
	Store: [16]byte{9, 15: 8}, Slot: 77, Generation: 1 << 40, Device: 3, Zone: 79, Class: 2, Copy: 1,
}

func newMem(t *testing.T, g zone.Geometry) *zone.Mem {
	t.Helper()
	d, err := zone.NewMem(g, zone.MemOptions{Garbage: true})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRoundTrips(t *testing.T) {
	b := label.EncodeLabel(sample(7))
	if got, err := label.DecodeLabel(b); err != nil || got != sample(7) {
		t.Errorf("label: %+v, %v", got, err)
	}
	h := label.EncodeHeader(header)
	if got, err := label.DecodeHeader(h); err != nil || got != header {
		t.Errorf("header: %+v, %v", got, err)
	}
	for _, b := range [][]byte{b, h} {
		if len(b) != blk || uintptr(unsafe.Pointer(&b[0]))%blk != 0 {
			t.Error("an encoded block is one aligned block")
		}
	}
}

// The bytes on media are docs/format.md 1.2 and 1.3, not whatever the code does today.
func TestBytesOnMedia(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"label", label.EncodeLabel(sample(7)), "53484e474c4c424c" + "01000000" + "01000000" +
			"01020300000000000000000000000010" + "0700000000000000" + "0000010000000000" + "08000000" +
			"01000000" + "02000000"},
		{"header", label.EncodeHeader(header), "53484e474c5a4f4e" + "01000000" + "4d000000" +
			"09000000000000000000000000000008" + "0000000000010000" + "03000000" + "4f000000" + "02" + "01"},
	} {
		n := len(c.want) / 2
		if diff := cmp.Diff(c.want, hex.EncodeToString(c.b[:n])); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if !bytes.Equal(c.b[n:blk-4], make([]byte, blk-4-n)) {
			t.Errorf("%s: the rest must be zeros", c.name)
		}
	}
}

// reseal makes the checksum right again after a change.
func reseal(b []byte) []byte {
	s := csum.Sum(b[:blk-4])
	b[blk-4], b[blk-3], b[blk-2], b[blk-1] = byte(s), byte(s>>8), byte(s>>16), byte(s>>24)
	return b
}

func TestDecodersRefuse(t *testing.T) {
	set := func(at int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = v; return reseal(b) }
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 1; return b }
	}
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   errdefs.Kind
		label  bool // the header has no such field
	}{
		{"nothing", func(b []byte) []byte { return nil }, errdefs.NotFound, false},
		{"zeros", func(b []byte) []byte { return make([]byte, blk) }, errdefs.NotFound, false},
		{"another magic", set(0, 'X'), errdefs.NotFound, false},
		{"half a block", func(b []byte) []byte { return b[:blk/2] }, errdefs.Corruption, false},
		{"a rotten bit", flip(33), errdefs.Corruption, false},
		{"a rotten bit in the growth area", flip(3000), errdefs.Corruption, false},
		{"a rotten checksum", flip(blk - 1), errdefs.Corruption, false},
		{"a later version", set(8, 2), errdefs.Precondition, false},
		{"dialect 9", set(52, 9), errdefs.Corruption, true},
		{"dialect 257", set(53, 1), errdefs.Corruption, true},
		{"an odd zone size", set(40, 1), errdefs.Corruption, true},
		{"a negative zone size", set(47, 0x80), errdefs.Corruption, true},
		{"no zones", set(48, 0), errdefs.Corruption, true},
		{"too many zones", set(51, 0xff), errdefs.Corruption, true},
		{"device 2 of 2", set(12, 2), errdefs.Corruption, true},
		{"generation 0", set(32, 0), errdefs.Corruption, true},
	} {
		if _, err := label.DecodeLabel(c.change(label.EncodeLabel(sample(7)))); !errdefs.Is(err, c.want) {
			t.Errorf("label with %s: %v, want kind %v", c.name, err, c.want)
		}
		if c.label {
			continue
		}
		if _, err := label.DecodeHeader(c.change(label.EncodeHeader(header))); !errdefs.Is(err, c.want) {
			t.Errorf("header with %s: %v, want kind %v", c.name, err, c.want)
		}
	}
	for _, change := range []func([]byte) []byte{set(48, 0), set(48, 4), set(47, 0xff)} {
		if _, err := label.DecodeHeader(change(label.EncodeHeader(header))); !errdefs.Is(err, errdefs.Corruption) {
			t.Errorf("header: %v, want corruption", err)
		}
	}
	if _, err := label.DecodeHeader(label.EncodeLabel(sample(1))); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("a label is no header: %v", err)
	}
}

func TestZones(t *testing.T) {
	smr := zone.Geometry{Dialect: zone.SMR, ZoneSize: blk, ZoneCapacity: blk, Zones: 9, Conventional: 4}
	if a, b, err := label.Zones(smr); a != 4 || b != 5 || err != nil {
		t.Errorf("zones %d, %d, %v", a, b, err)
	}
	smr.Conventional = 9
	if a, b, err := label.Zones(smr); a != 0 || b != 1 || err != nil {
		t.Errorf("all conventional: zones %d, %d, %v", a, b, err)
	}
	one := zone.Geometry{Dialect: zone.SMR, ZoneSize: blk, ZoneCapacity: blk, Zones: 1, Conventional: 1}
	if _, _, err := label.Zones(one); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("one conventional zone: %v", err)
	}
	smr.Conventional = 8
	if _, _, err := label.Zones(smr); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("one sequential zone: %v", err)
	}
	d := newMem(t, smr)
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("Read: %v", err)
	}
	if err := label.Write(d, sample(1)); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("Write: %v", err)
	}
	if err := label.Erase(d); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("Erase: %v", err)
	}
}

func TestLabelsAlternate(t *testing.T) {
	d := newMem(t, geo)
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.NotFound) {
		t.Fatalf("a new device: %v", err)
	}
	var resets [2]uint64
	for g := uint64(1); g < 8; g++ {
		if err := label.Write(d, sample(g)); err != nil {
			t.Fatal(err)
		}
		if got, err := label.Read(d); err != nil || got != sample(g) {
			t.Fatalf("after writing %d: %+v, %v", g, got, err)
		}
		r, _ := d.Report(0, 2)
		if r[0].Condition.IsActive() || r[1].Condition.IsActive() {
			t.Fatal("a label keeps an active slot")
		}
		resets = [2]uint64{r[0].Resets, r[1].Resets}
	}
	if resets != [2]uint64{3, 2} {
		t.Errorf("the zones were reset %v times", resets)
	}
	if err := label.Write(d, sample(6)); !errdefs.Is(err, errdefs.Precondition) {
		t.Errorf("generation 6 after 7: %v", err)
	}
	if err := label.Write(d, sample(7)); err != nil {
		t.Errorf("generation 7 again: %v", err)
	}
	if r, _ := d.Report(0, 2); r[0].Resets != resets[0] || r[1].Resets != resets[1] {
		t.Error("writing the label that is there resets a zone")
	}
	if err := label.Write(d, label.Label{Generation: 9}); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("a label that makes no sense: %v", err)
	}
	if err := label.Erase(d); err != nil {
		t.Fatal(err)
	}
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("after Erase: %v", err)
	}
	if err := label.Write(d, sample(2)); err != nil {
		t.Errorf("a low generation after Erase: %v", err)
	}
}

func TestDamagedLabels(t *testing.T) {
	d := newMem(t, geo)
	write := func(g uint64) {
		t.Helper()
		if err := label.Write(d, sample(g)); err != nil {
			t.Fatal(err)
		}
	}
	corrupt := func(z int) {
		t.Helper()
		if err := d.Corrupt(z, 100, 1); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	write(2)
	corrupt(1) // holds 2
	if got, err := label.Read(d); err != nil || got.Generation != 1 {
		t.Fatalf("one damaged: %+v, %v", got, err)
	}
	write(3) // goes over the damaged one
	if got, err := label.Read(d); err != nil || got.Generation != 3 {
		t.Fatalf("after mending: %+v, %v", got, err)
	}
	corrupt(0)
	corrupt(1)
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.Corruption) {
		t.Fatalf("both damaged: %v", err)
	}
	write(1)
	if got, err := label.Read(d); err != nil || got.Generation != 1 {
		t.Fatalf("after writing over damage: %+v, %v", got, err)
	}
}

func TestFailingZones(t *testing.T) {
	d := newMem(t, geo)
	for g := uint64(1); g <= 2; g++ {
		if err := label.Write(d, sample(g)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.SetCondition(0, zone.Offline); err != nil {
		t.Fatal(err)
	}
	if got, err := label.Read(d); err != nil || got.Generation != 2 {
		t.Errorf("the older zone is offline: %+v, %v", got, err)
	}
	if err := label.Write(d, sample(3)); !errors.Is(err, zone.ErrZoneOffline) {
		t.Errorf("write to an offline zone: %v", err)
	}
	if got, err := label.Read(d); err != nil || got.Generation != 2 {
		t.Errorf("a failed write must leave the old label: %+v, %v", got, err)
	}
	if err := d.SetCondition(1, zone.Offline); err != nil {
		t.Fatal(err)
	}
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.Device) {
		t.Errorf("both offline: %v", err)
	}
}

func TestALaterVersionIsRefused(t *testing.T) {
	d := newMem(t, geo)
	if err := label.Write(d, sample(1)); err != nil {
		t.Fatal(err)
	}
	b := label.EncodeLabel(sample(2))
	b[8] = 2
	if _, err := d.Append(1, [][]byte{reseal(b)}); err != nil {
		t.Fatal(err)
	}
	if _, err := label.Read(d); !errdefs.Is(err, errdefs.Precondition) {
		t.Errorf("Read: %v", err)
	}
	if err := label.Write(d, sample(3)); !errdefs.Is(err, errdefs.Precondition) {
		t.Errorf("Write: %v", err)
	}
}

// The power fails before and after every operation of Write, many times over: there is always
// a label, the old or the new, and the new one if Write had succeeded.
func TestWriteSurvivesPowerCutsEverywhere(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	const have = 5 // labels written before
	for _, after := range []bool{false, true} {
		for at, done := uint64(0), false; !done; at++ {
			for seed := range seeds {
				d := newMem(t, geo)
				for g := uint64(1); g <= have; g++ {
					if err := label.Write(d, sample(g)); err != nil {
						t.Fatal(err)
					}
				}
				first, started := uint64(0), false
				d.SetHook(func(op zone.Op) error {
					if !started {
						first, started = op.Index, true
					}
					if op.Index == first+at && op.After == after {
						d.CutPower()
					}
					return nil
				})
				err := label.Write(d, sample(have+1))
				d.SetHook(nil)
				if done = err == nil; !done && !errors.Is(err, zone.ErrPowerLost) {
					t.Fatal(err)
				}
				d.PowerOn(rand.New(rand.NewPCG(seed, at)))
				got, readErr := label.Read(d)
				switch {
				case readErr != nil:
					t.Fatalf("cut at %d (after %v), seed %d: %v", at, after, seed, readErr)
				case got.Generation != have+1 && (err == nil || got.Generation != have):
					t.Fatalf("cut at %d (after %v), seed %d: generation %d", at, after, seed, got.Generation)
				}
				if err := label.Write(d, got); err != nil { // as an engine does that did not get further
					t.Fatalf("writing the same after a crash: %v", err)
				}
				if r, _ := d.Report(0, 2); r[0].Condition.IsActive() || r[1].Condition.IsActive() {
					t.Fatal("after a crash a label keeps an active slot")
				}
				if err := label.Write(d, sample(have+2)); err != nil {
					t.Fatalf("writing after a crash: %v", err)
				}
			}
		}
	}
}

func FuzzDecodeLabel(f *testing.F) {
	f.Add(label.EncodeLabel(sample(7)), true)
	f.Add([]byte("SHNGLLBL"), false)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) == blk {
			reseal(b)
		}
		l, err := label.DecodeLabel(b)
		if err != nil {
			return
		}
		again, err := label.DecodeLabel(label.EncodeLabel(l))
		if err != nil || again != l {
			t.Errorf("%+v became %+v, %v", l, again, err)
		}
	})
}

func FuzzDecodeHeader(f *testing.F) {
	f.Add(label.EncodeHeader(header), true)
	f.Add([]byte("SHNGLZON"), false)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) == blk {
			reseal(b)
		}
		h, err := label.DecodeHeader(b)
		if err != nil {
			return
		}
		again, err := label.DecodeHeader(label.EncodeHeader(h))
		if err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}
