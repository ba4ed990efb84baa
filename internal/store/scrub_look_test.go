package store

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shingle-store/shingle/internal/extent"
)

// lookStore makes a store with raw and compressed extents, written in several commits, overwritten,
// punched and cloned. It answers the commit sequence half way.
func lookStore(t fataler, s *Store, seed uint64) (half uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	at := extent.Addr(0x1000)
	place := func(blocks int64) extent.Addr {
		if _, off := int64(at)/testZone, int64(at)%testZone; off+blocks*extent.BlockSize > testZone-2*extent.BlockSize {
			at = extent.Addr((int64(at)/testZone + 1) * testZone)
		}
		a := at
		at += extent.Addr((blocks + r.Int64N(3)) * extent.BlockSize)
		return a
	}
	update(t, s, func(tx *Tx) error {
		for id := uint64(10); id < 14; id++ {
			if err := addFile(tx, id, fmt.Sprint(id)); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range 40 {
		update(t, s, func(tx *Tx) error {
			if i == 20 {
				half = tx.CommitSequence()
			}
			file, off := uint64(10+r.IntN(3)), r.Int64N(60)*3000
			switch r.IntN(5) {
			case 0:
				_, err := drop(tx, file, off, off+1+r.Int64N(9000))
				return err
			case 1, 2:
				n := 1 + r.Int64N(9)
				_, _, err := write(tx, file, off, rawExtent(place(n), n*extent.BlockSize-r.Int64N(4096)))
				return err
			}
			var frames []extent.Frame
			blocks := int64(0)
			for range 1 + r.IntN(4) {
				f := extent.Frame{Raw: uint32(1 + r.IntN(20000)), Stored: uint32(1 + r.IntN(9000)), Codec: extent.CodecZstd}
				frames, blocks = append(frames, f), blocks+f.Blocks()
			}
			_, _, err := write(tx, file, off, framedExtent(place(blocks), frames...))
			return err
		})
	}
	update(t, s, func(tx *Tx) error { return clone(tx, 10, 13, 0, 200000, 0) })
	wantSound(t, s)
	return half
}

// blocksOf adds up what looks found: each block once, with the checksum it was given.
func blocksOf(t fataler, into map[extent.Addr]bool, look LiveLook) {
	t.Helper()
	n := int64(0)
	for _, run := range look.Runs {
		for i, sum := range run.Sums {
			a := run.Addr + extent.Addr(i*extent.BlockSize)
			if into[a] {
				t.Fatalf("block %#x is there twice", uint64(a))
			}
			if sum != testSum(a) {
				t.Fatalf("block %#x has another's checksum", uint64(a))
			}
			into[a] = true
			n++
		}
	}
	if n+look.NoSums != look.Blocks {
		t.Fatalf("%d blocks with and %d without a checksum are not %d", n, look.NoSums, look.Blocks)
	}
}

// TestLooksFindEveryBlockOnce looks in steps of all sizes, over all addresses and file by file, and
// holds what that finds against the extents and mappings one by one.
func TestLooksFindEveryBlockOnce(t *testing.T) {
	for seed := range uint64(12) {
		s := newStore(t)
		half := lookStore(t, s, seed)
		r := rand.New(rand.NewPCG(seed, 2))
		for _, placement := range []uint64{half, max64} {
			want, perFile := map[extent.Addr]bool{}, map[uint64]map[extent.Addr]bool{}
			extents := int64(0)
			view(t, s, func(tx *Tx) error {
				err := tx.Extents(0, func(x Extent) bool {
					if x.Placement <= placement {
						extents++
						for a := x.Addr; a < x.End(); a += extent.BlockSize {
							want[a] = true
						}
					}
					return true
				})
				for id := uint64(10); id < 14 && err == nil; id++ {
					var ps []Piece
					perFile[id] = map[extent.Addr]bool{}
					ps, err = tx.Map(id, 0, extent.MaxFileSize)
					for _, p := range ps {
						for i := range p.Blocks {
							if a := p.Addr + extent.Addr(i*extent.BlockSize); want[a] {
								perFile[id][a] = true
							}
						}
					}
					if n, nerr := tx.Node(id); placement == max64 && (nerr != nil || n.StoredBytes != int64(len(perFile[id]))*extent.BlockSize) {
						t.Fatalf("file %d stores %d bytes, %d blocks were mapped, %v", id, n.StoredBytes, len(perFile[id]), nerr)
					}
				}
				return err
			})
			for range 4 {
				room := 1 + r.Int64N(40)
				got, n, steps, lookups := map[extent.Addr]bool{}, int64(0), uint64(0), uint64(0)
				for at := int64(0); at < testZone*testGroups; steps++ {
					view(t, s, func(tx *Tx) error {
						look, err := tx.LookLive(extent.Addr(at), testZone*testGroups, room, placement)
						blocksOf(t, got, look)
						if look.Blocks > room || look.Next <= at || look.NoSums+look.LooseSums != 0 || look.Damaged != nil {
							t.Fatalf("look at %#x: %+v", at, look)
						}
						at, n, lookups = look.Next, n+look.Extents, lookups+look.ExtentLookups
						return err
					})
				}
				if d := cmp.Diff(want, got); d != "" || n != extents || lookups != steps {
					t.Fatalf("seed %d, placement %d, room %d: %d extents of %d, %d searches in %d looks: %s", seed, placement, room, n, extents, lookups, steps, d)
				}
				for id := uint64(10); id < 14; id++ {
					got := map[extent.Addr]bool{}
					for at := int64(0); at < extent.MaxFileSize; {
						view(t, s, func(tx *Tx) error {
							look, err := tx.LookFile(id, at, room, placement)
							blocksOf(t, got, look)
							if look.Next <= at && look.Blocks == 0 || look.Next < at {
								t.Fatalf("look at %d of file %d does not get on: %+v", at, id, look)
							}
							at = look.Next
							return err
						})
					}
					if d := cmp.Diff(perFile[id], got); d != "" {
						t.Fatalf("seed %d, placement %d, room %d, file %d: %s", seed, placement, room, id, d)
					}
				}
			}
		}
	}
}

// TestLookInABigExtent does one search of each tree for many megabytes that lie together.
func TestLookInABigExtent(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "f"); err != nil {
			return err
		}
		for i := range int64(2) {
			if _, _, err := write(tx, 10, i<<18, rawExtent(extent.Addr(4096+i<<18), 1<<18)); err != nil {
				return err
			}
		}
		return nil
	})
	view(t, s, func(tx *Tx) error {
		look, err := tx.LookLive(0, testZone, 120, max64)
		if len(look.Runs) != 1 || look.Blocks != 120 || look.ExtentLookups != 1 || look.SumLookups != 1 || look.Extents != 2 {
			t.Errorf("%d runs, %d blocks, %d and %d searches", len(look.Runs), look.Blocks, look.ExtentLookups, look.SumLookups)
		}
		return err
	})
}

// TestLookAtDamage goes round damaged records, and counts what they leave without its other half.
func TestLookAtDamage(t *testing.T) {
	for name, c := range map[string]struct {
		do                         func(tx *Tx) error
		blocks, noSums, loose, bad int64
	}{
		"nothing": {func(*Tx) error { return nil }, 12, 0, 0, 0},
		"a lost checksum record": {func(tx *Tx) error {
			return tx.del(bChecksums, key64(0x5000))
		}, 12, 4, 0, 0},
		"a damaged checksum record": {func(tx *Tx) error {
			return tx.bucket(bChecksums).Put(key64(0x5000), []byte("damaged"))
		}, 12, 4, 0, 1},
		"a lost extent": {func(tx *Tx) error { return tx.del(bExtents, key64(0x5000)) }, 8, 0, 4, 0},
		"a damaged extent": {func(tx *Tx) error {
			return tx.bucket(bExtents).Put(key64(0x5000), []byte("damaged"))
		}, 8, 0, 0, 1},
		"an extent that makes no sense": {func(tx *Tx) error { return tx.put(bExtents, key64(0x5000), nil) }, 8, 0, 0, 1},
		"checksums of nothing": {func(tx *Tx) error {
			return cmpErr(tx.putSums(0x20000, []uint32{1, 2, 3}), tx.putSums(0x40000, []uint32{1}))
		}, 12, 0, 4, 0},
	} {
		for _, room := range []int64{1, 5, 100} {
			t.Run(fmt.Sprintf("%s/%d", name, room), func(t *testing.T) {
				s := newStore(t)
				update(t, s, func(tx *Tx) error {
					if err := addFile(tx, 10, "f"); err != nil {
						return err
					}
					for i := range int64(3) {
						if _, _, err := write(tx, 10, i<<14, rawExtent(extent.Addr(0x1000+i<<14), 1<<14)); err != nil {
							return err
						}
					}
					return c.do(tx)
				})
				var blocks, noSums, loose, bad int64
				for at := int64(0); at < testZone; {
					view(t, s, func(tx *Tx) error {
						look, err := tx.LookLive(extent.Addr(at), testZone, room, max64)
						blocks, noSums, loose = blocks+look.Blocks, noSums+look.NoSums, loose+look.LooseSums
						bad += int64(len(look.Damaged))
						at = look.Next
						return err
					})
				}
				if blocks != c.blocks || noSums != c.noSums || loose != c.loose {
					t.Errorf("%d blocks, %d without checksum, %d loose", blocks, noSums, loose)
				}
				if bad < c.bad || room == 100 && bad != c.bad {
					t.Errorf("%d damaged records, want %d", bad, c.bad)
				}
			})
		}
	}
}

func TestLiveBlock(t *testing.T) {
	s := newStore(t)
	var seq uint64
	update(t, s, func(tx *Tx) error {
		seq = tx.CommitSequence()
		if err := addFile(tx, 10, "f"); err != nil {
			return err
		}
		_, _, err := write(tx, 10, 0, rawExtent(0x1000, 12000))
		return err
	})
	update(t, s, func(tx *Tx) error { return tx.bucket(bChecksums).Put(key64(0x9000), nil) })
	view(t, s, func(tx *Tx) error {
		for _, c := range []struct {
			a         extent.Addr
			placement uint64
			want      bool
		}{{0, seq, false}, {0x1000, seq, true}, {0x3000, seq + 5, true}, {0x2000, seq - 1, false}, {0x4000, seq, false}} {
			sum, ok, err := tx.LiveBlock(c.a, c.placement)
			if ok != c.want || err != nil || ok && sum != testSum(c.a) {
				t.Errorf("%+v: %t, %v", c, ok, err)
			}
		}
		return nil
	})
}
