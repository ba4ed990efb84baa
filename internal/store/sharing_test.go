package store

import (
	"fmt"
	"math/bits"
	"math/rand"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// makeClones makes n clones of file src, with ids from first on, in one transaction.
func makeClones(tx *Tx, src, first uint64, n int) error {
	from, err := tx.Node(src)
	if err != nil {
		return err
	}
	for i := range n {
		id := first + uint64(i)
		if err := addFile(tx, id, fmt.Sprintf("clones/%d", id)); err != nil {
			return err
		}
		c, err := tx.Node(id)
		if err != nil {
			return err
		}
		d, _, _, err := tx.CloneRange(src, id, 0, extent.MaxFileSize, 0)
		if err != nil {
			return err
		}
		c.Add(d)
		c.Size = from.Size
		if err := tx.PutNode(c); err != nil {
			return err
		}
	}
	return nil
}

// TestOverwritesOfManyClones: a block shared by n clones does not make each overwrite read n
// references, in whatever order they come. Only who lets go of it last has to read all.
func TestOverwritesOfManyClones(t *testing.T) {
	const firstClone = 100
	clones := 10_000
	if testing.Short() {
		clones = 1000
	}
	const block = extent.BlockSize
	for _, c := range []struct {
		name   string
		n      int
		order  func(n int) []int
		most   int // reads of each but the last
		prefix bool
	}{
		{"by id", clones / 4, func(n int) []int { return ascending(n) }, 6, false},
		{"by id, backwards", clones / 4, func(n int) []int { o := ascending(n); slices.Reverse(o); return o }, 6, false},
		{"from the middle out", clones / 4, fromTheMiddle, 9, false},
		{"random", clones, func(n int) []int { return rand.New(rand.NewSource(1)).Perm(n) }, 3 * clones, false},
		// What comes before the block in the extent is let go first, clone by clone, so that
		// references begin all over the extent.
		{"random, each cut elsewhere before", clones / 4, func(n int) []int { return rand.New(rand.NewSource(2)).Perm(n) }, 3 * clones, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			var total, worst uint64
			update(t, s, func(tx *Tx) error {
				if err := addFile(tx, 10, "source"); err != nil {
					return err
				}
				if _, _, err := write(tx, 10, 0, rawExtent(block, 64*block)); err != nil {
					return err
				}
				if err := makeClones(tx, 10, firstClone, c.n); err != nil {
					return err
				}
				if c.prefix {
					for i := range c.n {
						at := int64(i%30) * block
						if _, err := drop(tx, firstClone+uint64(i), at, at+block); err != nil {
							return err
						}
					}
				}
				if _, err := drop(tx, 10, 40*block, 41*block); err != nil {
					return err
				}
				for i, k := range c.order(c.n) {
					before := tx.refsRead
					d, err := drop(tx, firstClone+uint64(k), 40*block, 41*block)
					if err != nil {
						return err
					}
					reads := tx.refsRead - before
					total += reads
					if last := i == c.n-1; last != (d.FreedBytes == block) {
						return fmt.Errorf("overwrite %d freed %d bytes", i, d.FreedBytes)
					} else if !last {
						worst = max(worst, reads)
					}
				}
				return nil
			})
			wantSound(t, s)
			t.Logf("%d clones: %d references read, at most %d by one overwrite that was not the last", c.n, total, worst)
			if worst > uint64(c.most) {
				t.Errorf("one overwrite read %d references, want at most %d", worst, c.most)
			}
			if bound := uint64(3*c.n*bits.Len(uint(c.n)) + 3*c.n); total > bound {
				t.Errorf("all overwrites read %d references, want at most %d", total, bound)
			}
		})
	}
}

func ascending(n int) []int {
	o := make([]int, n)
	for i := range o {
		o[i] = i
	}
	return o
}

func fromTheMiddle(n int) (o []int) {
	for i := range n {
		o = append(o, n/2+(i+1)/2*(1-i%2*2))
	}
	for i, k := range o {
		o[i] = (k + n) % n
	}
	return o
}

// TestOverwritesOfACutFileWithAClone: a file cut to pieces beside one whole clone finds that clone
// from the start of the extent, not through its own pieces.
func TestOverwritesOfACutFileWithAClone(t *testing.T) {
	const block, blocks = extent.BlockSize, 200
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "source"); err != nil {
			return err
		}
		if _, _, err := write(tx, 10, 0, rawExtent(block, blocks*block)); err != nil {
			return err
		}
		if err := makeClones(tx, 10, 100, 1); err != nil {
			return err
		}
		for i := int64(0); i < blocks; i += 2 {
			before := tx.refsRead
			if _, err := drop(tx, 10, i*block, (i+1)*block); err != nil {
				return err
			}
			if n := tx.refsRead - before; n > 4 {
				return fmt.Errorf("the cut at block %d read %d references", i, n)
			}
		}
		for i := int64(blocks) - 1; i > 0; i -= 2 {
			before := tx.refsRead
			if _, err := drop(tx, 10, i*block, (i+1)*block); err != nil {
				return err
			}
			if n := tx.refsRead - before; n > 4 {
				return fmt.Errorf("the cut at block %d read %d references", i, n)
			}
		}
		return nil
	})
	wantSound(t, s)
}

// TestReferrers: each back-reference of the range exactly once, from wherever it is asked; and
// fn's wish to stop, and its error, are heard.
func TestReferrers(t *testing.T) {
	s := newStore(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "references")
		from, to := extent.Addr(4*extent.BlockSize), extent.Addr(12*extent.BlockSize)
		want := map[BackRef]bool{}
		failed := fmt.Errorf("thrown away")
		err := s.Update(func(tx *Tx) error {
			for range n {
				r := BackRef{
					Addr: extent.Addr(rapid.IntRange(1, 15).Draw(t, "address") * extent.BlockSize),
					File: uint64(rapid.IntRange(1, 4).Draw(t, "file")), Off: int64(rapid.IntRange(0, 3).Draw(t, "offset")), Stored: extent.BlockSize,
				}
				if err := tx.put(bBackRefs, key64(uint64(r.Addr), r.File, uint64(r.Off)), putUint(nil, 1, uint64(r.Stored))); err != nil {
					return err
				}
				if r.Addr >= from && r.Addr < to {
					want[r] = true
				}
			}
			near := key64(uint64(rapid.IntRange(4, 11).Draw(t, "near")*extent.BlockSize), uint64(rapid.IntRange(1, 4).Draw(t, "near file")), 1)
			for stop := 0; stop <= len(want); stop++ {
				got := map[BackRef]bool{}
				if err := tx.referrers(from, to, near, func(r BackRef) (bool, error) {
					if got[r] || !want[r] {
						return false, fmt.Errorf("%+v comes twice or should not", r)
					}
					got[r] = true
					return len(got) != stop, nil
				}); err != nil {
					return err
				}
				if stop > 0 && len(got) != stop || stop == 0 && len(got) != len(want) {
					return fmt.Errorf("%d references read of %d, stop at %d", len(got), len(want), stop)
				}
			}
			calls := 0
			err := tx.referrers(from, to, near, func(BackRef) (bool, error) { calls++; return true, errBad })
			if len(want) > 0 && (err != errBad || calls != 1) {
				return fmt.Errorf("an error ends it: %v after %d calls", err, calls)
			}
			return failed
		})
		if err != failed {
			t.Fatal(err)
		}
	})
}

func TestUnitSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, 300).Draw(t, "from")
		r := unitRange{from, from + rapid.IntRange(1, 300).Draw(t, "units")}
		s, model := newUnitSet(r), map[int]bool{}
		for i := r.from; i < r.to; i++ {
			model[i] = true
		}
		for range rapid.IntRange(0, 8).Draw(t, "removals") {
			a := rapid.IntRange(0, 650).Draw(t, "a")
			b := rapid.IntRange(0, 650).Draw(t, "b")
			s.remove(unitRange{a, b})
			for i := a; i < b; i++ {
				delete(model, i)
			}
		}
		var want []unitRange
		for i := r.from; i < r.to; i++ {
			switch {
			case !model[i]:
			case len(want) > 0 && want[len(want)-1].to == i:
				want[len(want)-1].to++
			default:
				want = append(want, unitRange{i, i + 1})
			}
		}
		if got := s.runs(); !slices.Equal(got, want) || s.n != len(model) {
			t.Fatalf("%v with %d units, want %v with %d", got, s.n, want, len(model))
		}
	})
}

// TestADamagedReferenceStopsTheCut: what refers to an extent must be known before it dies.
func TestADamagedReferenceStopsTheCut(t *testing.T) {
	const block = extent.BlockSize
	for _, c := range []struct{ name, line string }{
		{"its checksum", "flip back_references 4096,100,0"},
		{"its length", "put back_references 4096,100,0 1=5000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			update(t, s, func(tx *Tx) error {
				if err := addFile(tx, 10, "source"); err != nil {
					return err
				}
				if _, _, err := write(tx, 10, 0, rawExtent(block, 4*block)); err != nil {
					return err
				}
				return makeClones(tx, 10, 100, 1)
			})
			update(t, s, func(tx *Tx) error { return sabotage(tx, c.line) })
			err := s.Update(func(tx *Tx) error {
				_, err := drop(tx, 10, 0, block)
				return err
			})
			wantKind(t, err, errdefs.Corruption, errdefs.ReasonCorruption)
		})
	}
}
