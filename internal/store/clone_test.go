package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// cloneOf makes file dst a clone of what src maps in [off, end), limit file extents a transaction.
func cloneOf(t fataler, s *Store, src, dst uint64, off, end int64, limit int) (sum Delta, steps int) {
	t.Helper()
	for at, done := off, false; !done; steps++ {
		update(t, s, func(tx *Tx) error {
			n, err := tx.Node(dst)
			if err != nil {
				return err
			}
			var d Delta
			if d, done, at, err = tx.CloneRange(src, dst, at, end, limit); err != nil {
				return err
			}
			from, err := tx.Node(src)
			if err != nil {
				return err
			}
			sum.Merge(d)
			n.Add(d)
			n.Size = max(n.Size, from.Size)
			return tx.PutNode(n)
		})
	}
	return sum, steps
}

// TestLivesOfAClone takes one source through what can become of it and its clone. Live bytes are
// those of the blocks and frames that are referred to, each once.
func TestLivesOfAClone(t *testing.T) {
	const block = extent.BlockSize
	frame := extent.Frame{Raw: 10000, Stored: 5000, Codec: extent.CodecZstd} // two blocks
	raw := []NewExtent{rawExtent(block, 10*block)}
	framed := []NewExtent{framedExtent(block, frame, frame, frame)}
	both := []NewExtent{rawExtent(block, 10*block), framedExtent(testZone, frame, frame, frame), rawExtent(2*testZone, 3*block)}
	type step struct {
		file     uint64 // 10 the source, 20 the clone
		off, end int64
		freed    int64 // blocks that die
	}
	const all = extent.MaxFileSize
	for _, c := range []struct {
		name   string
		source []NewExtent
		before []step // cuts of the source before it is cloned
		live   int64  // blocks after the clone
		steps  []step
	}{
		{"delete the source, then the clone", raw, nil, 10, []step{{10, 0, all, 0}, {20, 0, all, 10}}},
		{"delete the clone, then the source", raw, nil, 10, []step{{20, 0, all, 0}, {10, 0, all, 10}}},
		{"the same block on both sides", raw, nil, 10, []step{{10, 3 * block, 4 * block, 0}, {20, 3 * block, 4 * block, 1}}},
		{"different blocks", raw, nil, 10, []step{{10, 3 * block, 4 * block, 0}, {20, 5 * block, 6 * block, 0}, {10, 5 * block, 6 * block, 1}}},
		{"half a block each, which dies when both are gone everywhere", raw, nil, 10, []step{
			{10, 3 * block, 3*block + 2048, 0}, {20, 3*block + 2048, 4 * block, 0}, {10, 3*block + 2048, 4 * block, 0}, {20, 3 * block, 3*block + 2048, 1},
		}},
		{"truncate both", raw, nil, 10, []step{{20, 2*block + 1, all, 0}, {10, 6*block + 5, all, 3}, {10, 0, all, 4}, {20, 0, all, 3}}},
		{"a source with a hole", raw, []step{{10, block, 9 * block, 8}}, 2, []step{{10, 0, block, 0}, {20, 0, 5 * block, 1}, {20, 0, all, 0}, {10, 0, all, 1}}},
		{"a source cut inside a block", raw, []step{{10, 4*block + 100, 4*block + 200, 0}}, 10, []step{{10, 4 * block, 5 * block, 0}, {20, 4 * block, 5 * block, 1}}},
		{"frames", framed, nil, 6, []step{{10, 10000, 20000, 0}, {20, 9999, 20001, 2}, {20, 0, all, 0}, {10, 0, all, 4}}},
		{"a byte of a frame keeps it", framed, nil, 6, []step{{10, 0, all, 0}, {20, 0, 19999, 2}, {20, 20000, all, 2}, {20, 0, all, 2}}},
		{"several extents", both, nil, 19, []step{{10, 9 * block, 10*block + 10001, 0}, {20, 0, all, 3}, {10, 0, all, 16}}},
	} {
		for _, limit := range []int{0, 1, 2} {
			t.Run(fmt.Sprintf("%s, %d at a time", c.name, limit), func(t *testing.T) {
				s := newStore(t)
				do := func(st step) {
					t.Helper()
					update(t, s, func(tx *Tx) error {
						d, err := drop(tx, st.file, st.off, st.end)
						if err == nil && d.FreedBytes != st.freed*block {
							t.Errorf("%+v freed %d blocks", st, d.FreedBytes/block)
						}
						return err
					})
					wantSound(t, s)
				}
				update(t, s, func(tx *Tx) error {
					if err := addFile(tx, 10, "source"); err != nil {
						return err
					}
					if err := addFile(tx, 20, "clone"); err != nil {
						return err
					}
					_, _, err := write(tx, 10, 0, c.source...)
					return err
				})
				for _, st := range c.before {
					do(st)
				}
				sum, steps := cloneOf(t, s, 10, 20, 0, extent.MaxFileSize, limit)
				wantSound(t, s)
				view(t, s, func(tx *Tx) error {
					src, err := tx.Node(10)
					if err != nil {
						return err
					}
					dst, err := tx.Node(20)
					if err != nil {
						return err
					}
					if dst.StoredBytes != src.StoredBytes || dst.AllocatedBytes != src.AllocatedBytes || sum.Stored != src.StoredBytes {
						t.Errorf("the clone counts %d stored and %d allocated bytes, its source %d and %d", dst.StoredBytes, dst.AllocatedBytes, src.StoredBytes, src.AllocatedBytes)
					}
					if limit == 1 && len(c.source) > 1 && steps < len(c.source) {
						t.Errorf("cloned in %d steps", steps)
					}
					return nil
				})
				if sum := totalsOf(t, s); sum.Stored != c.live*block {
					t.Errorf("%d blocks are stored, want %d", sum.Stored/block, c.live)
				}
				for _, st := range c.steps {
					do(st)
				}
				for _, id := range []uint64{20, 10} {
					update(t, s, func(tx *Tx) error { _, err := drop(tx, id, 0, all); return err })
				}
				wantSound(t, s)
				if sum := totalsOf(t, s); sum.Stored != 0 || sum.Extents != 0 {
					t.Errorf("something stays: %+v", sum)
				}
			})
		}
	}
}

// TestAClonedFileIsMarkedAsShared: the mark goes on in the transaction that makes the clone, on
// the extents of the range only, and stays with the parts of a split.
func TestAClonedFileIsMarkedAsShared(t *testing.T) {
	const block = extent.BlockSize
	s := newStore(t)
	shared := func(want ...bool) {
		t.Helper()
		view(t, s, func(tx *Tx) error {
			var got []bool
			err := tx.Extents(0, func(x Extent) bool { got = append(got, x.Shared); return true })
			if len(got) != len(want) {
				t.Fatalf("%v, want %v", got, want)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("extents are shared: %v, want %v", got, want)
				}
			}
			return err
		})
	}
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "source"); err != nil {
			return err
		}
		if err := addFile(tx, 20, "clone"); err != nil {
			return err
		}
		_, _, err := write(tx, 10, 0, rawExtent(block, 4*block), rawExtent(testZone, 4*block))
		return err
	})
	shared(false, false)
	cloneOf(t, s, 10, 20, 0, 2*block, 0)
	shared(true, false)
	for _, id := range []uint64{10, 20} {
		update(t, s, func(tx *Tx) error { _, err := drop(tx, id, block, 2*block); return err })
	}
	shared(true, true, false)
	wantSound(t, s)
}

func TestACloneWantsRoomInTheMap(t *testing.T) {
	const block = extent.BlockSize
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		for i, name := range []string{"source", "clone"} {
			id := uint64(10 + 10*i)
			if err := addFile(tx, id, name); err != nil {
				return err
			}
			if _, _, err := write(tx, id, int64(i)*2*block, rawExtent(extent.Addr(block+i*testZone), 4*block)); err != nil {
				return err
			}
		}
		return nil
	})
	err := s.Update(func(tx *Tx) error {
		_, _, _, err := tx.CloneRange(10, 20, 0, extent.MaxFileSize, 0)
		if tx.Mutated() {
			t.Error("it changed something before it was refused")
		}
		return err
	})
	wantKind(t, err, errdefs.Internal, "")
	if !strings.Contains(err.Error(), "file 20 offset 8192") {
		t.Error(err)
	}
	if _, steps := cloneOf(t, s, 10, 20, 0, 2*block, 0); steps != 1 {
		t.Error(steps)
	}
	if sum, _ := cloneOf(t, s, 10, 20, 100*block, 200*block, 3); sum.Allocated != 0 {
		t.Errorf("a clone of a hole: %+v", sum)
	}
	wantSound(t, s)
}

// TestMappedWithoutABudget: a range that may be shared is said to be when there is no looking.
func TestMappedWithoutABudget(t *testing.T) {
	const block = extent.BlockSize
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "source"); err != nil {
			return err
		}
		if _, _, err := write(tx, 10, 0, rawExtent(block, 8*block), rawExtent(testZone, 8*block)); err != nil {
			return err
		}
		return makeClones(tx, 10, 100, 1)
	})
	update(t, s, func(tx *Tx) error { _, err := drop(tx, 100, 0, extent.MaxFileSize); return err })
	for _, c := range []struct {
		budget, left int
		shared       bool
	}{{100, 99, false}, {1, 0, false}, {0, -1, true}, {-1, -2, true}} {
		view(t, s, func(tx *Tx) error {
			budget := c.budget
			m, ok, err := tx.Mapped(10, 3*block+5, 5*block, &budget)
			want := Mapped{Off: 3*block + 5, Len: 2*block - 5, Addr: 4 * block, Skip: 5, Stored: 2 * block, Shared: c.shared}
			if !ok || m != want || budget != c.left {
				t.Errorf("%+v %v with %d of %d left, want %+v with %d", m, ok, budget, c.budget, want, c.left)
			}
			return err
		})
	}
	view(t, s, func(tx *Tx) error {
		budget := 10
		if m, ok, err := tx.Mapped(10, 16*block, 99*block, &budget); ok || err != nil {
			t.Errorf("%+v %v", m, err)
		}
		return nil
	})
}
