package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

type bucketID uint8

const (
	bSuper bucketID = iota
	bDevices
	bBlockGroups
	bNodes
	bNames
	bFileExtents
	bExtents
	bBackRefs
	bChecksums
	bOrphans
	bBitmaps
	bTrimState
	bScrubState
	bScrubFindings
	numBuckets
)

// bucketNames are on media, in the checksum of every record too.
var bucketNames = [numBuckets]string{
	"super", "devices", "block_groups", "nodes", "names",
	"file_extents", "extents", "back_references", "checksums", "orphans",
	"bitmaps", "trim_state", "scrub_state", "scrub_findings",
}

// filledInOrder marks the buckets whose new keys mostly follow the greatest one. bbolt then
// leaves 10 % of a split page empty in place of half of it.
var filledInOrder = [numBuckets]bool{
	bNodes: true, bFileExtents: true, bExtents: true, bBackRefs: true, bChecksums: true,
	bBitmaps: true, bTrimState: true, bScrubFindings: true,
}

func (b bucketID) String() string { return bucketNames[b] }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// bucketSums are the checksums of the bucket names: the start of every record's checksum.
var bucketSums = func() (s [numBuckets]uint32) {
	for i, n := range bucketNames {
		s[i] = crc32.Checksum([]byte(n), castagnoli)
	}
	return s
}()

const sumSize = 4

func recordSum(b bucketID, key, payload []byte) uint32 {
	return crc32.Update(crc32.Update(bucketSums[b], castagnoli, key), castagnoli, payload)
}

// seal appends the record's checksum to payload (docs/format.md section 2).
func seal(b bucketID, key, payload []byte) []byte {
	return binary.LittleEndian.AppendUint32(payload, recordSum(b, key, payload))
}

// The longest key (a name) and value (a node) that are written. Lengths come from bbolt's
// pages, which have no checksum: a wild one would have gigabytes of memory read.
const (
	maxKey   = 8 + MaxNameLen + 1
	maxValue = maxText + sumSize
)

// unseal returns the payload inside value. It aliases value.
func unseal(b bucketID, key, value []byte) ([]byte, error) {
	if len(key) > maxKey || len(value) > maxValue {
		return nil, corrupt("store.unseal", b.object(key), "key or record is too long")
	}
	if len(value) < sumSize {
		return nil, corrupt("store.unseal", b.object(key), "record is shorter than its checksum")
	}
	payload := value[:len(value)-sumSize]
	if binary.LittleEndian.Uint32(value[len(payload):]) != recordSum(b, key, payload) {
		return nil, corrupt("store.unseal", b.object(key), "record checksum does not match")
	}
	return payload, nil
}

// maxKeyShown bounds how much of a key, which may be damaged, errors show.
const maxKeyShown = 24

// object names a record in an error: bucket and key in hex.
func (b bucketID) object(key []byte) string {
	return fmt.Sprintf("%s %x", b, key[:min(len(key), maxKeyShown)])
}

func corrupt(op, object, msg string) error {
	return errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, op, object, msg)
}

func notFound(op, object string) error {
	return errdefs.New(errdefs.NotFound, "", op, object, "does not exist")
}

func internal(op, object, msg string) error {
	return errdefs.New(errdefs.Internal, "", op, object, msg)
}

// Keys.

func key32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func key64(vs ...uint64) []byte {
	k := make([]byte, 0, 24)
	for _, v := range vs {
		k = binary.BigEndian.AppendUint64(k, v)
	}
	return k
}

func splitKey64(k []byte, n int) (v [3]uint64, ok bool) {
	if len(k) != n*8 {
		return v, false
	}
	for i := range n {
		v[i] = binary.BigEndian.Uint64(k[i*8:])
	}
	return v, true
}

// Payloads.

var errWire = errors.New("malformed record")

func putUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func putBytes(b []byte, num protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func putString(b []byte, num protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// field is one decoded field: v if it is a varint, b (aliasing the record) if it is bytes.
type field struct {
	num     protowire.Number
	isBytes bool
	v       uint64
	b       []byte
}

// eachField calls fn for every varint and bytes field of p in order and passes over others.
func eachField(p []byte, fn func(f field) error) error {
	for len(p) > 0 {
		num, typ, n := protowire.ConsumeTag(p)
		if n < 0 {
			return errWire
		}
		p = p[n:]
		f := field{num: num}
		switch typ {
		case protowire.VarintType:
			f.v, n = protowire.ConsumeVarint(p)
		case protowire.BytesType:
			f.isBytes = true
			f.b, n = protowire.ConsumeBytes(p)
		default:
			n = protowire.ConsumeFieldValue(num, typ, p)
			f.num = 0
		}
		if n < 0 {
			return errWire
		}
		p = p[n:]
		if f.num == 0 {
			continue
		}
		if err := fn(f); err != nil {
			return err
		}
	}
	return nil
}

// number stores a varint field of at most most into dst.
func number[T ~uint8 | ~uint32 | ~uint64 | ~int64](f field, dst *T, most uint64) error {
	if f.isBytes || f.v > most {
		return fmt.Errorf("field %d: value is out of range: %w", f.num, errWire)
	}
	*dst = T(f.v)
	return nil
}

const (
	max8   = math.MaxUint8
	max32  = math.MaxUint32
	max63  = math.MaxInt64
	max64  = math.MaxUint64
	maxPos = extent.MaxFileSize // bounds file offsets and lengths
)

func (f field) bytes(most int) ([]byte, error) {
	if !f.isBytes || len(f.b) > most {
		return nil, fmt.Errorf("field %d: bytes are out of range: %w", f.num, errWire)
	}
	return f.b, nil
}

func text(f field, dst *string, most int) error {
	b, err := f.bytes(most)
	*dst = string(b)
	return err
}

func id16(f field, dst *[16]byte) error {
	b, err := f.bytes(16)
	if err != nil || len(b) != 16 {
		return fmt.Errorf("field %d: not 16 bytes: %w", f.num, errWire)
	}
	copy(dst[:], b)
	return nil
}

// badRecord turns a decoder's complaint into a Corruption error; nil stays nil.
func badRecord(b bucketID, key []byte, err error) error {
	return errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, "store.decode", b.object(key), err)
}
