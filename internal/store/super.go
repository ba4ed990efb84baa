package store

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// FormatVersion is the version of docs/format.md that this package reads and writes.
const FormatVersion = 1

// Feature flags that this version knows. A set bit outside these masks is unknown.
const (
	knownReadOnlyCompatible uint64 = 0
	// knownIncompatible: bits 0 (SEGMENT_SUMMARIES) and 1 (LOG) are set aside, but this
	// version can read neither, so they count as unknown.
	knownIncompatible = FeatureConventional | FeatureDevices
)

// FeatureConventional is the incompatible flag CONVENTIONAL: there are conventional block groups.
const FeatureConventional uint64 = 1 << 2

// FeatureDevices is the incompatible flag DEVICES: there is or was more than one device, or more than one
// copy.
const FeatureDevices uint64 = 1 << 3

// Superblock is the record that describes the store (docs/format.md 2.1).
type Superblock struct {
	FormatVersion      uint32
	Compatible         uint64 // feature bits that any engine may ignore
	ReadOnlyCompatible uint64 // an engine that does not know one may read only
	Incompatible       uint64 // an engine that does not know one must refuse the store
	StoreUUID          [16]byte
	ZoneSize           int64 // bytes; a multiple of extent.BlockSize; never changes
	Created            int64 // ns since 1970
	StartCounter       uint64
	NodeIDLimit        uint64 // node ids below it may have been given out
	CommitSequence     uint64 // kept by Update; + 1 a commit
	DefaultCompression extent.Codec
	RelocationReserve  int64 // bytes
	Clean              bool  // the store was closed in order
	Totals             Totals
	Copies             uint32 // of data; 0: 1
	NextDevice         uint32 // device numbers below it have been given out; 0: 1
}

func (s *Superblock) encode() []byte {
	var b []byte
	b = putUint(b, 1, uint64(s.FormatVersion))
	b = putUint(b, 2, s.Compatible)
	b = putUint(b, 3, s.ReadOnlyCompatible)
	b = putUint(b, 4, s.Incompatible)
	b = putBytes(b, 5, s.StoreUUID[:])
	b = putUint(b, 6, uint64(s.ZoneSize))
	b = putUint(b, 7, uint64(s.Created))
	b = putUint(b, 8, s.StartCounter)
	b = putUint(b, 9, s.NodeIDLimit)
	b = putUint(b, 10, s.CommitSequence)
	b = putUint(b, 11, uint64(s.DefaultCompression))
	b = putUint(b, 12, uint64(s.RelocationReserve))
	if s.Clean {
		b = putUint(b, 13, 1)
	}
	t := &s.Totals
	for i, n := range []int64{t.Files, t.Logical, t.Stored, t.Inline, t.Extents} {
		b = putUint(b, protowire.Number(14+i), uint64(n))
	}
	b = putUint(b, 19, uint64(s.Copies))
	return putUint(b, 20, uint64(s.NextDevice))
}

func decodeSuperblock(p []byte) (s Superblock, err error) {
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &s.FormatVersion, max32)
		case 2:
			return number(f, &s.Compatible, max64)
		case 3:
			return number(f, &s.ReadOnlyCompatible, max64)
		case 4:
			return number(f, &s.Incompatible, max64)
		case 5:
			return id16(f, &s.StoreUUID)
		case 6:
			return number(f, &s.ZoneSize, max63)
		case 7:
			return number(f, &s.Created, max63)
		case 8:
			return number(f, &s.StartCounter, max64)
		case 9:
			return number(f, &s.NodeIDLimit, max64)
		case 10:
			return number(f, &s.CommitSequence, max64)
		case 11:
			return number(f, &s.DefaultCompression, max8)
		case 12:
			return number(f, &s.RelocationReserve, max63)
		case 13:
			var clean uint8
			err := number(f, &clean, 1)
			s.Clean = clean == 1
			return err
		case 14:
			return number(f, &s.Totals.Files, max64)
		case 15:
			return number(f, &s.Totals.Logical, max64)
		case 16:
			return number(f, &s.Totals.Stored, max64)
		case 17:
			return number(f, &s.Totals.Inline, max64)
		case 18:
			return number(f, &s.Totals.Extents, max64)
		case 19:
			return number(f, &s.Copies, max8)
		case 20:
			return number(f, &s.NextDevice, max32)
		}
		return nil
	})
	if err == nil && (s.ZoneSize <= 0 || s.ZoneSize%extent.BlockSize != 0) {
		err = fmt.Errorf("zone size %d is not a positive multiple of the block: %w", s.ZoneSize, errWire)
	}
	return s, err
}

// features decides by the feature flags and the format version whether the store can be
// opened, and whether for reading only. The error says in a sentence what is unknown.
func (s *Superblock) features() (readOnly bool, err error) {
	if s.FormatVersion > FormatVersion || s.FormatVersion == 0 {
		return false, errdefs.New(errdefs.Precondition, errdefs.ReasonUnknownFeature, "store.Open", "superblock",
			fmt.Sprintf("the store has format version %d and this engine reads up to version %d", s.FormatVersion, FormatVersion))
	}
	if u := s.Incompatible &^ knownIncompatible; u != 0 {
		return false, errdefs.New(errdefs.Precondition, errdefs.ReasonUnknownFeature, "store.Open", "superblock",
			fmt.Sprintf("the store uses incompatible features %#x that this engine does not know; open it with a newer engine", u))
	}
	return s.ReadOnlyCompatible&^knownReadOnlyCompatible != 0, nil
}

var superKey = []byte("super")

// Superblock returns the superblock as this transaction sees it.
func (tx *Tx) Superblock() Superblock { return tx.super }

// SetSuperblock changes the superblock in this transaction. Changes to CommitSequence, Totals
// and ZoneSize are undone: the first belongs to Update, the second follows the records, the
// third never changes.
func (tx *Tx) SetSuperblock(fn func(*Superblock)) {
	seq, totals, zs := tx.super.CommitSequence, tx.super.Totals, tx.super.ZoneSize
	fn(&tx.super)
	tx.super.CommitSequence, tx.super.Totals, tx.super.ZoneSize = seq, totals, zs
	tx.mutations++
}

// CommitSequence returns the sequence number of the commit that this transaction will be,
// or, in a View, of the last commit that it sees.
func (tx *Tx) CommitSequence() uint64 { return tx.super.CommitSequence }
