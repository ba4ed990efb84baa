package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func ptr[T any](v T) *T { return &v }

// decoders decode a record of each bucket and give back what they made of it.
var decoders = [numBuckets]func(k, p []byte) (any, error){
	bSuper:       func(_, p []byte) (any, error) { return decodeSuperblock(p) },
	bDevices:     func(k, p []byte) (any, error) { return decodeDevice(k, p) },
	bBlockGroups: func(k, p []byte) (any, error) { return decodeBlockGroup(k, p) },
	bNodes:       func(k, p []byte) (any, error) { return decodeNode(k, p) },
	bNames:       func(_, p []byte) (any, error) { return decodeName(p) },
	bFileExtents: func(k, p []byte) (any, error) { return decodeFileExtent(k, p) },
	bExtents:     func(k, p []byte) (any, error) { return decodeExtent(k, p) },
	bBackRefs:    func(k, p []byte) (any, error) { return decodeBackRef(k, p) },
	bChecksums:   func(k, p []byte) (any, error) { r, err := decodeSums(k, p); return r.packed, err },
	bOrphans:     func(_, p []byte) (any, error) { k, _, err := decodeOrphan(p); return k, err },

	bScrubState:    func(k, p []byte) (any, error) { return decodeScrub(k, p) },
	bScrubFindings: func(k, p []byte) (any, error) { return decodeFinding(k, p) },
}

type sample struct {
	name    string
	b       bucketID
	key     []byte
	payload []byte
	want    any
}

func samples() []sample {
	sb := Superblock{FormatVersion: 1, Compatible: 1 << 63, ReadOnlyCompatible: 2, Incompatible: 4, StoreUUID: [16]byte{15: 9},
		ZoneSize: 1 << 28, Created: 5, StartCounter: 6, NodeIDLimit: 7, CommitSequence: 1 << 40, DefaultCompression: extent.CodecZstd,
		RelocationReserve: 8, Clean: true, Totals: Totals{Files: 9, Logical: -1 << 63, Stored: 10, Inline: 11, Extents: -1}}
	dev := Device{Number: 3, UUID: [16]byte{1}, LabelGeneration: 1 << 50, OtherLabel: 1<<50 - 1, ZoneSize: 4096, Zones: 75000, Dialect: 2, Conventional: 4}
	bg := BlockGroup{Slot: 70000, Kind: 1, Class: 2, Generation: 3, AllocOffset: 1 << 20, LiveBytes: 1 << 19,
		Places: []Place{{}, {Device: 1, Zone: 2, Stale: true}}, Capacity: 1 << 28, Flags: BGFinished | BGQuarantined}
	zero := Node{ID: 2, Kind: Directory}
	full := Node{ID: 1 << 60, Kind: File, Parent: 1, Name: "näme", Size: extent.MaxFileSize, Generation: 1<<40 + 1,
		Mode: ptr(uint32(0)), UID: 1, GID: 2, Created: -5, Updated: 1 << 62, MTime: 3,
		Attributes:  map[string]string{"b": "2", "a": "", "": "x", "\x00": "\xff"},
		Compression: ptr(extent.CodecNone), Inline: &Inline{Codec: extent.CodecZstd, RawLen: 131072, Data: []byte("stored")},
		ContentCRC: ptr(uint32(max32)), RequestID: "req", StoredBytes: 4096, AllocatedBytes: 5000, WriteID: "w"}
	fe := FileExtent{File: 9, Off: 12345, Len: 67, Addr: 1 << 30, Skip: 4095}
	raw := Extent{Addr: 4096, Blocks: maxExtentBlocks, Birth: 1, Placement: 2}
	framed := Extent{Addr: 8192, Blocks: 33, Codec: extent.CodecZstd, Shared: true,
		Frames: []extent.Frame{{Raw: 131072, Stored: 1, Codec: extent.CodecZstd}, {Raw: 131072, Stored: 131072}}}
	ref := BackRef{Addr: 4096, File: 9, Off: 1, Stored: 4096}
	sums := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	scrub := Scrub{
		ID: 3, State: 2, Scope: 1, File: "dir/näme", FileID: 1 << 60, Slot: max32, Device: "0", ReadOnly: true, Limit: 8 << 20, RequestID: "r",
		Started: 1 << 60, Ended: 1<<60 + 1, Active: 5, Total: max63, MetadataTotal: 6, Placement: max64, Phase: 3, Bucket: "nodes",
		Key: []byte{0, 1, 255}, At: max63, Span: 1 << 40, Marks: []int64{0, 1, max63}, InMark: 7, Done: 8, Skipped: 9,
		Counters: []uint64{0, max64, 1}, Findings: 10, Error: "why",
	}
	finding := Finding{
		Scrub: 3, Seq: 1 << 40, FileID: 9, File: "a/b", Off: extent.MaxFileSize, Len: 4096, Addr: 1 << 50, Zone: max32, ZoneOff: 1 << 40,
		Expected: max32, Actual: 1, Unreadable: true, Outcome: 2, Time: 1 << 60, OtherRefs: 4, Object: "metadata/extents",
	}
	return []sample{
		{"scrub", bScrubState, key64(3), scrub.encode(), scrub},
		{"zero scrub", bScrubState, key64(1), (&Scrub{}).encode(), Scrub{ID: 1}},
		{"finding", bScrubFindings, key64(3, 1<<40), finding.encode(), finding},
		{"super", bSuper, superKey, sb.encode(), sb},
		{"device", bDevices, key32(3), dev.encode(), dev},
		{"block group", bBlockGroups, key32(70000), bg.encode(), bg},
		{"zero node", bNodes, key64(2), zero.encode(), zero},
		{"full node", bNodes, key64(1 << 60), full.encode(), full},
		{"name", bNames, nameKey(1, "a/"), putUint(nil, 1, 77), uint64(77)},
		{"file extent", bFileExtents, fe.key(), fe.encode(), fe},
		{"raw extent", bExtents, key64(4096), raw.encode(), raw},
		{"framed extent", bExtents, key64(8192), framed.encode(), framed},
		{"back reference", bBackRefs, key64(4096, 9, 1), putUint(nil, 1, 4096), ref},
		{"checksums", bChecksums, key64(4096), putBytes(nil, 1, sums), sums},
		{"orphan", bOrphans, key64(5), putUint(putUint(nil, 1, 2), 2, 99), OrphanUnfinished},
	}
}

func TestCodecsRoundTrip(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			got, err := decoders[s.b](s.key, s.payload)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(s.want, got); d != "" {
				t.Fatal(d)
			}
			// A newer engine's fields are passed over, whatever their type.
			more := putBytes(putUint(bytes.Clone(s.payload), 900, 5), 901, []byte("new"))
			more = append(more, 0xC5, 0x3E, 1, 2, 3, 4) // field 1000, fixed32
			if got, err = decoders[s.b](s.key, more); err != nil {
				t.Fatalf("with unknown fields: %v", err)
			}
			if d := cmp.Diff(s.want, got); d != "" {
				t.Fatalf("with unknown fields: %s", d)
			}
		})
	}
}

// TestEveryFlippedBitIsCaught flips each bit of sealed records, and moves them elsewhere.
func TestEveryFlippedBitIsCaught(t *testing.T) {
	for _, s := range samples() {
		value := seal(s.b, s.key, bytes.Clone(s.payload))
		if _, err := unseal(s.b, s.key, value); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		for i := range len(value) * 8 {
			bad := bytes.Clone(value)
			bad[i/8] ^= 1 << (i % 8)
			_, err := unseal(s.b, s.key, bad)
			wantKind(t, err, errdefs.Corruption, errdefs.ReasonCorruption)
		}
		for n := range value {
			if _, err := unseal(s.b, s.key, value[:n]); !errdefs.Is(err, errdefs.Corruption) {
				t.Fatalf("%s cut to %d bytes: %v", s.name, n, err)
			}
		}
		key := bytes.Clone(s.key)
		key[len(key)-1]++
		if _, err := unseal(s.b, key, value); !errdefs.Is(err, errdefs.Corruption) {
			t.Fatalf("%s under another key: %v", s.name, err)
		}
		if _, err := unseal((s.b+1)%numBuckets, s.key, value); !errdefs.Is(err, errdefs.Corruption) {
			t.Fatalf("%s in another bucket: %v", s.name, err)
		}
	}
}

// TestWildLengthsAreNotRead: a sealed record that is too long is refused before it is summed.
func TestWildLengthsAreNotRead(t *testing.T) {
	for _, c := range []struct{ key, value int }{{maxKey + 1, 10}, {8, maxValue + 1 - sumSize}} {
		key, payload := make([]byte, c.key), make([]byte, c.value)
		_, err := unseal(bNodes, key, seal(bNodes, key, payload))
		wantKind(t, err, errdefs.Corruption, errdefs.ReasonCorruption)
	}
}

// TestRecordChecksumIsTheDocumentedOne computes docs/format.md's formula by hand.
func TestRecordChecksumIsTheDocumentedOne(t *testing.T) {
	v := seal(bNodes, []byte("key"), []byte("payload"))
	if got := binary.LittleEndian.Uint32(v[len(v)-4:]); got != 0x39ac7e63 {
		t.Fatalf("checksum %#x", got)
	}
}

func TestDecodersRefuseWhatCannotBe(t *testing.T) {
	for _, c := range []struct {
		name string
		b    bucketID
		key  []byte
		p    []byte
	}{
		{"zone size of half a block", bSuper, superKey, putUint(nil, 6, 2048)},
		{"short uuid", bSuper, superKey, putBytes(putUint(nil, 6, 4096), 5, []byte("x"))},
		{"device key", bDevices, []byte("x"), nil},
		{"block group key", bBlockGroups, key64(1), nil},
		{"node kind", bNodes, key64(1), putUint(nil, 1, 3)},
		{"node size", bNodes, key64(1), putUint(putUint(nil, 1, 1), 4, extent.MaxFileSize+1)},
		{"inline too long", bNodes, key64(1), putBytes(putUint(nil, 1, 1), 14, putBytes(nil, 3, make([]byte, extent.MaxCutInlineSize+1)))},
		{"name without node", bNames, nameKey(1, "a"), nil},
		{"empty file extent", bFileExtents, key64(1, 0), nil},
		{"file extent past the end", bFileExtents, key64(1, extent.MaxFileSize), putUint(nil, 1, 1)},
		{"file extent of half a block", bFileExtents, key64(1, 0), putUint(putUint(nil, 1, 1), 2, 100)},
		{"empty extent", bExtents, key64(4096), nil},
		{"unaligned extent", bExtents, key64(4097), putUint(nil, 1, 1)},
		{"extent too long", bExtents, key64(4096), putUint(nil, 1, maxExtentBlocks+1)},
		{"raw extent with frames", bExtents, key64(4096), putBytes(putUint(nil, 1, 1), 3, []byte{1, 1, 1})},
		{"frames that do not add up", bExtents, key64(4096), putBytes(putUint(putUint(nil, 1, 2), 2, 1), 3, []byte{1, 1, 1})},
		{"half a frame", bExtents, key64(4096), putBytes(putUint(putUint(nil, 1, 1), 2, 1), 3, []byte{1, 1})},
		{"frame of nothing", bExtents, key64(4096), putBytes(putUint(putUint(nil, 1, 1), 2, 1), 3, []byte{0, 1, 1})},
		{"empty back reference", bBackRefs, key64(4096, 1, 0), nil},
		{"no checksums", bChecksums, key64(4096), nil},
		{"half a checksum", bChecksums, key64(4096), putBytes(nil, 1, []byte{1, 2, 3})},
		{"too many checksums", bChecksums, key64(4096), putBytes(nil, 1, make([]byte, 4*sumsPerRecord+4))},
		{"orphan kind", bOrphans, key64(1), putUint(nil, 1, 4)},
		{"wrong wire type", bOrphans, key64(1), putBytes(nil, 1, []byte("x"))},
		{"scrub 0", bScrubState, key64(0), nil},
		{"too many marks", bScrubState, key64(1), putBytes(nil, 21, make([]byte, MaxScrubMarks+1))},
		{"a mark cut short", bScrubState, key64(1), putBytes(nil, 21, []byte{0x80})},
		{"a mark below zero", bScrubState, key64(1), putVarints(nil, 21, []uint64{max64})},
		{"a cursor that is no key", bScrubState, key64(1), putBytes(nil, 18, make([]byte, maxKey+1))},
		{"half read-only", bScrubState, key64(1), putUint(nil, 7, 2)},
		{"finding 0", bScrubFindings, key64(1, 0), nil},
		{"finding past the end of a file", bScrubFindings, key64(1, 1), putUint(nil, 3, extent.MaxFileSize+1)},
		{"cut varint", bOrphans, key64(1), []byte{8, 0x80}},
	} {
		if v, err := decoders[c.b](c.key, c.p); err == nil {
			t.Errorf("%s: decoded as %+v", c.name, v)
		} else if err := badRecord(c.b, c.key, err); !errors.Is(err, errWire) || !errdefs.Is(err, errdefs.Corruption) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// emptyFrames is the record of a raw extent of 48 blocks with a frame table that has no frames, as no engine writes
// it.
var emptyFrames = []byte{1 << 3, 48, 3<<3 | 2, 0}

// TestEmptyFrameTable: reclaim and mend take an extent with frames for a compressed one.
func TestEmptyFrameTable(t *testing.T) {
	x, err := decodeExtent(key64(4096), emptyFrames)
	if err != nil || x.Frames != nil || x.Blocks != 48 {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err := decodeExtent(key64(4096), putUint(emptyFrames[:len(emptyFrames):len(emptyFrames)], 2, 1)); err == nil {
		t.Errorf("a compressed one is %+v", x)
	}
}

func fuzzDecoder(f *testing.F, b bucketID) {
	if b == bExtents {
		f.Add(key64(4096), emptyFrames)
	}
	for _, s := range samples() {
		if s.b == b {
			f.Add(s.key, s.payload)
		}
	}
	rng := rand.New(rand.NewSource(1))
	for range 20 {
		p := make([]byte, rng.Intn(40))
		rng.Read(p)
		f.Add(key64(uint64(rng.Intn(8))*4096), p)
	}
	f.Fuzz(func(t *testing.T, k, p []byte) {
		v, err := decoders[b](k, p)
		if x, ok := v.(Extent); ok && err == nil {
			u := newUnits(x)
			if u.storedAt(u.count()) != x.Blocks*extent.BlockSize {
				t.Fatalf("units of %+v do not add up", x)
			}
			if again, err := decodeExtent(k, x.encode()); err != nil || !cmp.Equal(x, again) {
				t.Fatalf("%+v does not survive: %v", x, err)
			}
		}
		if x, ok := v.(Scrub); ok && err == nil {
			x.Error = x.Error[:min(len(x.Error), maxScrubText)]
			if again, err := decodeScrub(k, x.encode()); err != nil || !cmp.Equal(x, again, cmpopts.EquateEmpty()) {
				t.Fatalf("%+v does not survive: %v", x, err)
			}
		}
		if x, ok := v.(Finding); ok && err == nil {
			if again, err := decodeFinding(k, x.encode()); err != nil || x != again {
				t.Fatalf("%+v does not survive: %v", x, err)
			}
		}
		if n, ok := v.(Node); ok && err == nil {
			if _, err := decodeNode(k, n.encode()); err != nil {
				t.Fatalf("%+v does not survive: %v", n, err)
			}
		}
	})
}

func FuzzSuperblock(f *testing.F) { fuzzDecoder(f, bSuper) }
func FuzzDevice(f *testing.F)     { fuzzDecoder(f, bDevices) }
func FuzzBlockGroup(f *testing.F) { fuzzDecoder(f, bBlockGroups) }
func FuzzNode(f *testing.F)       { fuzzDecoder(f, bNodes) }
func FuzzName(f *testing.F)       { fuzzDecoder(f, bNames) }
func FuzzFileExtent(f *testing.F) { fuzzDecoder(f, bFileExtents) }
func FuzzExtent(f *testing.F)     { fuzzDecoder(f, bExtents) }
func FuzzBackRef(f *testing.F)    { fuzzDecoder(f, bBackRefs) }
func FuzzChecksums(f *testing.F)  { fuzzDecoder(f, bChecksums) }
func FuzzOrphan(f *testing.F)     { fuzzDecoder(f, bOrphans) }
func FuzzScrub(f *testing.F)      { fuzzDecoder(f, bScrubState) }
func FuzzFinding(f *testing.F)    { fuzzDecoder(f, bScrubFindings) }
