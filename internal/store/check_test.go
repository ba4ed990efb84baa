package store

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shingle-store/shingle/internal/extent"
)

// sabotage runs one line of testdata/check:
//
//	put BUCKET KEY field=value ...   a record with those varint fields; KEY is numbers or "parent:name"
//	del BUCKET KEY
//	flip BUCKET KEY                  a bit of the record
//	live SLOT BYTES | alloc SLOT OFFSET | unshare ADDRESS | clone SOURCE TARGET
//	node ID stored|size|inline|parent VALUE | unlink ID
//	totals FILES LOGICAL STORED INLINE EXTENTS    as the superblock keeps them
func sabotage(tx *Tx, line string) error {
	w := strings.Fields(line)
	bucket := func() bucketID {
		for i, n := range bucketNames {
			if n == w[1] {
				return bucketID(i)
			}
		}
		panic("no bucket " + w[1])
	}
	num := func(s string) (v uint64) {
		if _, err := fmt.Sscanf(s, "%v", &v); err != nil {
			panic(err)
		}
		return v
	}
	key := func() []byte {
		if parent, name, ok := strings.Cut(w[2], ":"); ok {
			return nameKey(num(parent), name)
		}
		var k []byte
		for _, p := range strings.Split(w[2], ",") {
			if b := bucket(); b == bDevices || b == bBlockGroups {
				k = append(k, key32(uint32(num(p)))...)
			} else {
				k = append(k, key64(num(p))...)
			}
		}
		return k
	}
	switch w[0] {
	case "put":
		var p []byte
		for _, f := range w[3:] {
			n, v, _ := strings.Cut(f, "=")
			if v == "sums" {
				p = putBytes(p, 1, make([]byte, 8))
				continue
			}
			p = putUint(p, protowire.Number(num(n)), num(v))
		}
		return tx.put(bucket(), key(), p)
	case "del":
		return tx.del(bucket(), key())
	case "flip":
		v := append([]byte(nil), tx.bucket(bucket()).Get(key())...)
		if len(v) == 0 {
			return errors.New("no such record: " + line)
		}
		v[0] ^= 1
		return tx.bucket(bucket()).Put(key(), v)
	case "live":
		return tx.addLive(uint32(num(w[1])), int64(num(w[2])), 0)
	case "alloc":
		g, err := tx.BlockGroup(uint32(num(w[1])))
		g.AllocOffset = int64(num(w[2]))
		return errors.Join(err, tx.PutBlockGroup(g))
	case "unshare":
		u, err := tx.extentAt(extent.Addr(num(w[1])))
		if err != nil {
			return err
		}
		u.Shared = false
		return tx.putExtent(&u.Extent)
	case "clone":
		src, err := tx.Node(num(w[1]))
		if err != nil {
			return err
		}
		n, err := tx.Node(num(w[2]))
		if err != nil {
			return err
		}
		d, _, _, err := tx.CloneRange(src.ID, n.ID, 0, extent.MaxFileSize, 0)
		n.Add(d)
		n.Size = src.Size
		return errors.Join(err, tx.PutNode(n))
	case "node":
		n, err := tx.Node(num(w[1]))
		if err != nil {
			return err
		}
		v := int64(num(w[3]))
		switch w[2] {
		case "stored":
			n.StoredBytes = v
		case "size":
			n.Size = v
		case "parent":
			n.Parent = uint64(v)
		case "inline":
			n.Inline = &Inline{RawLen: v, Data: []byte("x")}
		}
		return tx.PutNode(n)
	case "totals":
		t := &tx.super.Totals
		for i, n := range []*int64{&t.Files, &t.Logical, &t.Stored, &t.Inline, &t.Extents} {
			*n = int64(num(w[i+1]))
		}
		return nil
	case "unlink":
		n, err := tx.Node(num(w[1]))
		if err != nil {
			return err
		}
		return tx.Unlink(n)
	}
	return errors.New("unknown: " + line)
}

// TestCheckFindsEachInconsistency makes a small store, breaks it as each case of
// testdata/check says, and shows what Check reports.
func TestCheckFindsEachInconsistency(t *testing.T) {
	datadriven.RunTest(t, "testdata/check", func(t *testing.T, d *datadriven.TestData) string {
		s := newStore(t)
		update(t, s, func(tx *Tx) error {
			for i, path := range []string{"dir/a", "dir/b", "c"} {
				if err := addFile(tx, uint64(10+i), path); err != nil {
					return err
				}
			}
			// File 10: a raw extent of 3 blocks at 0x1000. File 11: 2 frames at 0x100000, then
			// the same extent again at 100000.
			if _, _, err := write(tx, 10, 0, rawExtent(0x1000, 12000)); err != nil {
				return err
			}
			f := extent.Frame{Raw: 10000, Stored: 5000, Codec: extent.CodecZstd}
			if _, _, err := write(tx, 11, 0, framedExtent(testZone, f, f)); err != nil {
				return err
			}
			return clone(tx, 11, 11, 0, 20000, 100000)
		})
		wantSound(t, s)
		update(t, s, func(tx *Tx) error {
			for _, line := range strings.Split(d.Input, "\n") {
				if err := sabotage(tx, line); err != nil {
					return err
				}
			}
			return nil
		})
		ps := problems(t, s)
		sort.Strings(ps)
		if len(ps) == 0 {
			return "sound"
		}
		return strings.Join(ps, "\n")
	})
}

func TestCheckStopsWhenAsked(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Check(ctx, func(Problem) {}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
