package store

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// DamagedRecord is a record whose checksum does not match, or that cannot be decoded.
type DamagedRecord struct {
	Bucket           string
	Key              []byte // at most its first 24 bytes; nil: the pages of the bucket are damaged
	Expected, Actual uint32 // crc32c; both 0 where it was not that
}

// RecordScan is what ScanRecords found.
type RecordScan struct {
	Records, Bytes uint64 // keys and values
	Damaged        []DamagedRecord
	// Bucket and Key are where the next scan begins; Bucket "": there is nothing left.
	Bucket string
	Key    []byte
}

// ScanRecords holds records against their checksums: from the key on in the bucket ("": the first
// one), at most about n of them, in one bucket. Where the pages of a bucket are damaged, the rest of it
// is left out and named. Errors: InvalidArgument for a bucket that there is not.
func (tx *Tx) ScanRecords(bucket string, key []byte, n int) (RecordScan, error) {
	b := bucketID(max(0, slices.Index(bucketNames[:], bucket)))
	if bucket != "" && b.String() != bucket {
		return RecordScan{}, errdefs.Invalid("store.ScanRecords", "bucket", "there is no bucket "+bucket)
	}
	var s RecordScan
	more, err := tx.scan(b, key, n, &s)
	switch {
	case err != nil:
		s.Damaged = append(s.Damaged, DamagedRecord{Bucket: b.String()})
	case more:
		s.Bucket = b.String()
		return s, nil
	}
	if s.Key = nil; b+1 < numBuckets {
		s.Bucket = (b + 1).String()
	}
	return s, nil
}

func (tx *Tx) scan(b bucketID, key []byte, n int, s *RecordScan) (more bool, err error) {
	defer tx.guard(b, &err)
	bk := tx.bucket(b)
	if bk == nil {
		return false, nil
	}
	c := bk.Cursor()
	for k, v := c.Seek(key); k != nil; k, v = c.Next() {
		if s.Records >= uint64(n) && len(k) <= maxKey {
			s.Key = bytes.Clone(k)
			return true, nil
		}
		s.Records++
		if _, err := unseal(b, k, v); err != nil {
			// Lengths that no record has are not followed.
			d := DamagedRecord{Bucket: b.String(), Key: bytes.Clone(k[:min(len(k), maxKeyShown)])}
			if len(k) <= maxKey && len(v) <= maxValue && len(v) >= sumSize {
				p := v[:len(v)-sumSize]
				d.Expected, d.Actual = binary.LittleEndian.Uint32(v[len(p):]), recordSum(b, k, p)
			}
			s.Damaged = append(s.Damaged, d)
			continue
		}
		s.Bytes += uint64(len(k) + len(v))
	}
	return false, nil
}
