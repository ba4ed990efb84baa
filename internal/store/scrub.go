package store

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Scrub is the record of a scrub (docs/format.md 2.14). What its numbers mean is the engine's; the
// store keeps them. Times are ns since 1970, sizes are bytes.
type Scrub struct {
	ID        uint64
	State     uint8
	Scope     uint8
	File      string // of the scope
	FileID    uint64
	Slot      uint32
	Device    string
	ReadOnly  bool
	Limit     int64
	RequestID string
	Started   int64
	Ended     int64
	Active    int64 // ns
	// Total is fixed at the start; MetadataTotal is a part of it.
	Total, MetadataTotal int64
	Placement            uint64 // greatest placement generation that it covers
	Phase                uint8
	Bucket               string // in the metadata: where it goes on
	Key                  []byte // at most a key's length; nil: from the start
	At                   uint64 // in the data: where it goes on
	Span                 int64
	Marks                []int64 // at most MaxScrubMarks
	InMark               int64
	Done, Skipped        int64
	Counters             []uint64 // at most maxScrubCounters
	Findings             uint64   // how many; the sequence of the last one
	Error                string   // at most maxScrubText bytes are kept
}

const (
	// MaxScrubMarks bounds Scrub.Marks, and with them a record that is written with every group.
	MaxScrubMarks    = 256
	maxScrubCounters = 64
	maxScrubText     = 1 << 10
)

func putVarints[T ~int64 | ~uint64](b []byte, num protowire.Number, vs []T) []byte {
	var p []byte
	for _, v := range vs {
		p = protowire.AppendVarint(p, uint64(v))
	}
	return putBytes(b, num, p)
}

// varints decodes packed varints, at most n, each at most most.
func varints[T ~int64 | ~uint64](f field, dst *[]T, n int, most uint64) error {
	p, err := f.bytes(n * 10)
	if err != nil {
		return err
	}
	var out []T
	for len(p) > 0 {
		v, used := protowire.ConsumeVarint(p)
		if used < 0 || v > most || len(out) == n {
			return fmt.Errorf("field %d: packed numbers are out of range: %w", f.num, errWire)
		}
		out, p = append(out, T(v)), p[used:]
	}
	*dst = out
	return nil
}

func oneBit(f field, dst *bool) error {
	var v uint8
	err := number(f, &v, 1)
	*dst = v == 1
	return err
}

func (s *Scrub) encode() []byte {
	b := putUint(nil, 1, uint64(s.State))
	b = putUint(b, 2, uint64(s.Scope))
	b = putString(b, 3, s.File)
	b = putUint(b, 4, s.FileID)
	b = putUint(b, 5, uint64(s.Slot))
	b = putString(b, 6, s.Device)
	if s.ReadOnly {
		b = putUint(b, 7, 1)
	}
	b = putUint(b, 8, uint64(s.Limit))
	b = putString(b, 9, s.RequestID)
	b = putUint(b, 10, uint64(s.Started))
	b = putUint(b, 11, uint64(s.Ended))
	b = putUint(b, 12, uint64(s.Active))
	b = putUint(b, 13, uint64(s.Total))
	b = putUint(b, 14, uint64(s.MetadataTotal))
	b = putUint(b, 15, s.Placement)
	b = putUint(b, 16, uint64(s.Phase))
	b = putString(b, 17, s.Bucket)
	b = putBytes(b, 18, s.Key)
	b = putUint(b, 19, s.At)
	b = putUint(b, 20, uint64(s.Span))
	b = putVarints(b, 21, s.Marks)
	b = putUint(b, 22, uint64(s.InMark))
	b = putUint(b, 23, uint64(s.Done))
	b = putUint(b, 24, uint64(s.Skipped))
	b = putVarints(b, 25, s.Counters)
	b = putUint(b, 26, s.Findings)
	return putString(b, 27, s.Error[:min(len(s.Error), maxScrubText)])
}

func decodeScrub(key, p []byte) (s Scrub, err error) {
	k, ok := splitKey64(key, 1)
	if !ok || k[0] == 0 {
		return s, errWire
	}
	s.ID = k[0]
	err = eachField(p, func(f field) error { return s.set(f) })
	return s, err
}

func (s *Scrub) set(f field) error {
	switch f.num {
	case 1:
		return number(f, &s.State, max8)
	case 2:
		return number(f, &s.Scope, max8)
	case 3:
		return text(f, &s.File, maxText)
	case 4:
		return number(f, &s.FileID, max64)
	case 5:
		return number(f, &s.Slot, max32)
	case 6:
		return text(f, &s.Device, maxText)
	case 7:
		return oneBit(f, &s.ReadOnly)
	case 8:
		return number(f, &s.Limit, max63)
	case 9:
		return text(f, &s.RequestID, maxText)
	case 10:
		return number(f, &s.Started, max63)
	case 11:
		return number(f, &s.Ended, max63)
	case 12:
		return number(f, &s.Active, max63)
	case 13:
		return number(f, &s.Total, max63)
	case 14:
		return number(f, &s.MetadataTotal, max63)
	case 15:
		return number(f, &s.Placement, max64)
	case 16:
		return number(f, &s.Phase, max8)
	case 17:
		return text(f, &s.Bucket, maxText)
	case 18:
		b, err := f.bytes(maxKey)
		s.Key = append([]byte(nil), b...)
		return err
	case 19:
		return number(f, &s.At, max63)
	case 20:
		return number(f, &s.Span, max63)
	case 21:
		return varints(f, &s.Marks, MaxScrubMarks, max63)
	case 22:
		return number(f, &s.InMark, max63)
	case 23:
		return number(f, &s.Done, max63)
	case 24:
		return number(f, &s.Skipped, max63)
	case 25:
		return varints(f, &s.Counters, maxScrubCounters, max64)
	case 26:
		return number(f, &s.Findings, max64)
	case 27:
		return text(f, &s.Error, maxText)
	}
	return nil
}

// PutScrub writes the record of a scrub.
func (tx *Tx) PutScrub(s Scrub) error { return tx.put(bScrubState, key64(s.ID), s.encode()) }

// Scrub returns the record of a scrub, or NotFound.
func (tx *Tx) Scrub(id uint64) (Scrub, error) {
	key := key64(id)
	p, ok, err := tx.get(bScrubState, key)
	if err != nil {
		return Scrub{}, err
	}
	if !ok {
		return Scrub{}, notFound("store.Scrub", fmt.Sprintf("scrub %d", id))
	}
	s, err := decodeScrub(key, p)
	return s, badRecord(bScrubState, key, err)
}

// ScrubIDs returns the ids of the scrubs on record in ascending order, those of damaged records
// among them.
func (tx *Tx) ScrubIDs() (ids []uint64, err error) {
	c := tx.cursor(bScrubState)
	for k, _, err := c.seek(nil); k != nil || err != nil; k, _, err = c.next() {
		if err != nil {
			if k = c.at; k == nil {
				return nil, err
			}
		}
		if id, ok := splitKey64(k, 1); ok {
			ids = append(ids, id[0])
		}
	}
	return ids, nil
}

// DropScrub deletes at most n findings of a scrub, and its record when none are left; done: it is
// gone.
func (tx *Tx) DropScrub(id uint64, n int) (done bool, err error) {
	var gone [][]byte
	done = true
	c := tx.cursor(bScrubFindings)
	for k, _, err := c.seek(key64(id, 0)); k != nil || err != nil; k, _, err = c.next() {
		if err != nil {
			if k = c.at; k == nil {
				return false, err
			}
		}
		at, ok := splitKey64(k, 2)
		if ok && at[0] != id {
			break
		}
		if len(gone) == n {
			done = false
			break
		}
		gone = append(gone, append([]byte(nil), k...))
	}
	for _, k := range gone {
		if err := tx.del(bScrubFindings, k); err != nil {
			return false, err
		}
	}
	if done {
		err = tx.del(bScrubState, key64(id))
	}
	return done, err
}
