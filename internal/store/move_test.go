package store

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// move copies what is live in a block group, cut at borders of units with some left out, lets the
// files change, and moves what is still there in steps.
func (m *extentModel) move(t *rapid.T) {
	slot := rapid.Uint32Range(0, uint32(m.next/testZone)).Draw(t, "slot")
	var moves []Move
	view(t, m.s, func(tx *Tx) error {
		return tx.Extents(extent.Addr(slot)*testZone, func(x Extent) bool {
			if x.Addr >= extent.Addr(slot+1)*testZone {
				return false
			}
			u := newUnits(x)
			for i := 0; i < u.count(); {
				n := rapid.IntRange(1, u.count()-i).Draw(t, "units")
				part := u.part(unitRange{i, i + n}, u.address(i))
				i += n
				if rapid.IntRange(0, 4).Draw(t, "bad") == 0 {
					continue
				}
				to, ok := m.alloc(part.Blocks)
				if !ok {
					return false
				}
				moves = append(moves, Move{From: part.Addr, To: to, Blocks: part.Blocks})
			}
			return true
		})
	})
	for _, mv := range moves {
		for i := range extent.Addr(mv.Blocks) {
			m.moved[mv.To+i*extent.BlockSize] = m.written(mv.From + i*extent.BlockSize)
		}
	}
	if rapid.Bool().Draw(t, "race") {
		m.cut(t)
	}
	limit := rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "limit")
	for steps := 0; len(moves) > 0; steps++ {
		var d Delta
		before := m.storedBytes(t)
		update(t, m.s, func(tx *Tx) (err error) {
			d, moves, err = tx.MoveExtents(moves, limit)
			return err
		})
		var added int64
		for _, n := range d.Added {
			added += n
		}
		after := m.storedBytes(t)
		if after-before != added-d.FreedBytes || d.Allocated != 0 || d.Stored != 0 {
			t.Fatalf("%d bytes stored became %d: %+v", before, after, d)
		}
		if limit == 0 && len(moves) > 0 {
			t.Fatalf("without a limit %d moves are left", len(moves))
		}
		if steps > 10_000 {
			t.Fatal("it does not get on")
		}
		m.checkStore(t, 0, 0, -1, after) // between two steps a unit may be in both places
		if len(moves) > 0 && rapid.IntRange(0, 9).Draw(t, "clone") == 0 {
			m.clone(t)
		}
	}
}

func (m *extentModel) storedBytes(t *rapid.T) (n int64) {
	view(t, m.s, func(tx *Tx) error { n = tx.Superblock().Totals.Stored; return nil })
	return n
}

// layout shows the records of a store, addresses and sizes in blocks, checksums by the block they
// were made of.
func layout(t fataler, s *Store) string {
	t.Helper()
	var b strings.Builder
	const blk = extent.BlockSize
	of := map[uint32]int64{}
	for i := range int64(testGroups * testZone / blk) {
		of[testSum(extent.Addr(i*blk))] = i
	}
	view(t, s, func(tx *Tx) error {
		err := tx.Extents(0, func(x Extent) bool {
			fmt.Fprintf(&b, "extent %d+%d", x.Addr/blk, x.Blocks)
			if x.Shared {
				b.WriteString(" shared")
			}
			sums, err := tx.Checksums(x.Addr, x.Blocks)
			if err != nil {
				t.Fatalf("%v", err)
			}
			b.WriteString(" of")
			for _, s := range sums {
				fmt.Fprintf(&b, " %d", of[s])
			}
			b.WriteString("\n")
			return true
		})
		if err != nil {
			return err
		}
		for id := uint64(10); id < 14; id++ {
			err := tx.FileExtents(id, 0, extent.MaxFileSize, func(e FileExtent) bool {
				fmt.Fprintf(&b, "file %d: %d+%d at %d", id, e.Off, e.Len, e.Addr/blk)
				if e.Skip > 0 {
					fmt.Fprintf(&b, " skip %d", e.Skip)
				}
				b.WriteString("\n")
				return true
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return b.String()
}

// moved runs a case: files 10 to 13 are there; setup fills the store.
func moved(t *testing.T, setup func(tx *Tx) error, moves []Move, limit int) (got []string) {
	t.Helper()
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		for id := uint64(10); id < 14; id++ {
			if err := addFile(tx, id, fmt.Sprint("f", id)); err != nil {
				return err
			}
		}
		return nil
	})
	update(t, s, setup)
	wantSound(t, s)
	for len(moves) > 0 {
		update(t, s, func(tx *Tx) (err error) {
			_, moves, err = tx.MoveExtents(moves, limit)
			return err
		})
		wantSound(t, s)
		got = append(got, layout(t, s))
	}
	return got
}

func TestMoveExtents(t *testing.T) {
	const blk = extent.BlockSize
	raw := func(tx *Tx, file uint64, off int64, at, length int64) error {
		_, _, err := write(tx, file, off, rawExtent(extent.Addr(at*blk), length))
		return err
	}
	to := func(from, to, blocks int64) Move {
		return Move{From: extent.Addr(from * blk), To: extent.Addr(to * blk), Blocks: blocks}
	}
	zstd := func(raw, stored uint32) extent.Frame {
		return extent.Frame{Raw: raw, Stored: stored, Codec: extent.CodecZstd}
	}
	for _, c := range []struct {
		name  string
		setup func(tx *Tx) error
		moves []Move
		limit int
		want  []string // after each transaction
	}{
		{
			name:  "whole",
			setup: func(tx *Tx) error { return raw(tx, 10, 0, 1, 3*blk-5) },
			moves: []Move{to(1, 300, 3)},
			want:  []string{"extent 300+3 of 1 2 3\nfile 10: 0+12283 at 300\n"},
		},
		{
			name:  "a bad block in the middle stays, and splits the mapping",
			setup: func(tx *Tx) error { return raw(tx, 10, 100, 1, 4*blk) },
			moves: []Move{to(1, 300, 1), to(3, 301, 2)},
			want: []string{"extent 2+1 of 2\nextent 300+1 of 1\nextent 301+2 of 3 4\n" +
				"file 10: 100+4096 at 300\nfile 10: 4196+4096 at 2\nfile 10: 8292+8192 at 301\n"},
		},
		{
			name: "what died meanwhile has no record in the new place",
			setup: func(tx *Tx) error {
				if err := raw(tx, 10, 0, 1, 4*blk); err != nil {
					return err
				}
				_, err := drop(tx, 10, blk, 3*blk-1)
				return err
			},
			moves: []Move{to(1, 300, 4)},
			want: []string{"extent 300+1 of 1\nextent 302+2 of 3 4\n" +
				"file 10: 0+4096 at 300\nfile 10: 12287+4097 at 302 skip 4095\n"},
		},
		{
			name: "all died meanwhile",
			setup: func(tx *Tx) error {
				if err := raw(tx, 10, 0, 1, 4*blk); err != nil {
					return err
				}
				_, err := drop(tx, 10, 0, 4*blk)
				return err
			},
			moves: []Move{to(1, 300, 4)},
			want:  []string{""},
		},
		{
			name: "frames, one in two parts of the file, one half cut",
			setup: func(tx *Tx) error {
				x := framedExtent(1*blk, zstd(9000, 5000), zstd(9000, 4000), zstd(500, 100))
				if _, _, err := write(tx, 10, 0, x); err != nil {
					return err
				}
				_, err := drop(tx, 10, 3000, 4000)
				return err
			},
			moves: []Move{to(1, 300, 2), to(3, 400, 2)},
			want: []string{"extent 300+2 of 1 2\nextent 400+2 of 3 4\n" +
				"file 10: 0+3000 at 300\nfile 10: 4000+5000 at 300 skip 4000\nfile 10: 9000+9500 at 400\n"},
		},
		{
			name: "a clone moves with what it shares, reference by reference",
			setup: func(tx *Tx) error {
				if err := raw(tx, 10, 0, 1, 4*blk); err != nil {
					return err
				}
				if err := clone(tx, 10, 11, 0, 4*blk, 0); err != nil {
					return err
				}
				return clone(tx, 10, 12, blk, 2*blk, 7*blk)
			},
			moves: []Move{to(1, 300, 4)},
			limit: 1,
			want: []string{
				"extent 1+4 shared of 1 2 3 4\nextent 300+4 shared of 1 2 3 4\n" +
					"file 10: 0+16384 at 300\nfile 11: 0+16384 at 1\nfile 12: 32768+4096 at 2\n",
				"extent 2+1 shared of 2\nextent 300+4 shared of 1 2 3 4\n" +
					"file 10: 0+16384 at 300\nfile 11: 0+16384 at 300\nfile 12: 32768+4096 at 2\n",
				"extent 300+4 shared of 1 2 3 4\n" +
					"file 10: 0+16384 at 300\nfile 11: 0+16384 at 300\nfile 12: 32768+4096 at 301\n",
			},
		},
		{
			name: "a clone of a part goes first and is met again by the whole",
			setup: func(tx *Tx) error {
				if err := raw(tx, 12, 0, 1, 4*blk); err != nil {
					return err
				}
				if err := clone(tx, 12, 10, 0, blk, 0); err != nil {
					return err
				}
				return clone(tx, 12, 11, 2*blk, 3*blk, 0)
			},
			moves: []Move{to(1, 300, 4)},
			limit: 2,
			want: []string{
				"extent 3+1 shared of 3\nextent 300+4 shared of 1 2 3 4\n" +
					"file 10: 0+4096 at 300\nfile 11: 8192+4096 at 3\nfile 12: 0+16384 at 300\n",
				"extent 300+4 shared of 1 2 3 4\n" +
					"file 10: 0+4096 at 300\nfile 11: 8192+4096 at 302\nfile 12: 0+16384 at 300\n",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := moved(t, c.setup, c.moves, c.limit)
			if len(got) != len(c.want) {
				t.Fatalf("%d transactions: %q", len(got), got)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("after transaction %d\n%swant\n%s", i, got[i], c.want[i])
				}
			}
		})
	}
}

// TestMoveKeepsBirth says that a move changes where data lies and not when it was written.
func TestMoveKeepsBirth(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "f"); err != nil {
			return err
		}
		_, _, err := write(tx, 10, 0, rawExtent(extent.BlockSize, 9000))
		return err
	})
	born := s.CommitSequence()
	update(t, s, func(tx *Tx) error { return addFile(tx, 11, "g") })
	update(t, s, func(tx *Tx) error {
		_, _, err := tx.MoveExtents([]Move{{From: extent.BlockSize, To: testZone + 5*extent.BlockSize, Blocks: 3}}, 0)
		return err
	})
	view(t, s, func(tx *Tx) error {
		err := tx.Extents(0, func(x Extent) bool {
			if x.Birth != born || x.Placement != s.CommitSequence() {
				t.Errorf("born in %d, placed in %d: %+v", born, s.CommitSequence(), x)
			}
			return true
		})
		if g, gerr := tx.BlockGroup(1); gerr != nil || g.AllocOffset != 8*extent.BlockSize || g.LiveBytes != 3*extent.BlockSize {
			t.Errorf("%+v %v", g, gerr)
		}
		return err
	})
}

// TestMoveRefuses meets records that do not agree, and changes nothing then.
func TestMoveRefuses(t *testing.T) {
	const blk = extent.BlockSize
	for _, c := range []struct {
		name  string
		spoil func(tx *Tx) error
		move  Move
		kind  errdefs.Kind
	}{
		{"a border inside a frame", nil, Move{blk, testZone, 1}, errdefs.Corruption},
		{"nothing", nil, Move{blk, testZone, 0}, errdefs.InvalidArgument},
		{"half a block", nil, Move{blk, testZone + 1, 2}, errdefs.InvalidArgument},
		{"a file extent is missing", func(tx *Tx) error { return tx.del(bFileExtents, key64(10, 0)) }, Move{blk, testZone, 2}, errdefs.Corruption},
		{"checksums are missing", func(tx *Tx) error { return tx.del(bChecksums, key64(blk)) }, Move{blk, testZone, 2}, errdefs.Corruption},
		{"no such block group", nil, Move{blk, 99 * testZone, 2}, errdefs.Corruption},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			update(t, s, func(tx *Tx) error {
				if err := addFile(tx, 10, "f"); err != nil {
					return err
				}
				_, _, err := write(tx, 10, 0, framedExtent(blk, extent.Frame{Raw: 9000, Stored: 8000, Codec: extent.CodecZstd}))
				if err == nil && c.spoil != nil {
					err = c.spoil(tx)
				}
				return err
			})
			before := contents(t, s)
			err := s.Update(func(tx *Tx) error {
				_, _, err := tx.MoveExtents([]Move{c.move}, 0)
				return err
			})
			if !errdefs.Is(err, c.kind) {
				t.Fatalf("got %v, want %v", err, c.kind)
			}
			if after := contents(t, s); after != before {
				t.Errorf("the store holds\n%s\nafter\n%s", after, before)
			}
		})
	}
}

// A file that takes one part of a frame from a file whose reference has moved, and another from one
// whose has not, counts two frames until the move is over, and one then.
func TestMovedCopiesCountOnce(t *testing.T) {
	s := newStoreAt(t, filepath.Join(t.TempDir(), "meta"), testOptions)
	defer s.Close()
	const from, to = extent.Addr(extent.BlockSize), extent.Addr(testZone + extent.BlockSize)
	frame := extent.Frame{Raw: 3 * extent.BlockSize, Stored: 2*extent.BlockSize - 100, Codec: extent.CodecZstd}
	stored := func(file uint64, want int64) {
		t.Helper()
		view(t, s, func(tx *Tx) error {
			n, err := tx.Node(file)
			if err == nil && n.StoredBytes != want {
				t.Errorf("file %d counts %d stored bytes, want %d", file, n.StoredBytes, want)
			}
			return err
		})
		wantSound(t, s)
	}
	update(t, s, func(tx *Tx) error {
		for i := range 3 {
			if err := addFile(tx, uint64(10+i), fmt.Sprint("f", i)); err != nil {
				return err
			}
		}
		if _, _, err := write(tx, 10, 0, framedExtent(from, frame)); err != nil {
			return err
		}
		return clone(tx, 10, 11, 0, 3*extent.BlockSize, 0)
	})
	var rest []Move
	update(t, s, func(tx *Tx) (err error) {
		_, rest, err = tx.MoveExtents([]Move{{From: from, To: to, Blocks: frame.Blocks()}}, 1)
		return err
	})
	if len(rest) != 1 {
		t.Fatalf("left to move: %v", rest)
	}
	update(t, s, func(tx *Tx) error {
		if err := clone(tx, 10, 12, 0, 1000, 0); err != nil {
			return err
		}
		return clone(tx, 11, 12, 1000, 3000, 0)
	})
	stored(12, 2*frame.Blocks()*extent.BlockSize)
	for len(rest) > 0 {
		update(t, s, func(tx *Tx) (err error) { _, rest, err = tx.MoveExtents(rest, 1); return err })
	}
	for file := uint64(10); file < 13; file++ {
		stored(file, frame.Blocks()*extent.BlockSize)
	}
}
