package store

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func totalsOf(t fataler, s *Store) (sum Totals) {
	t.Helper()
	view(t, s, func(tx *Tx) error {
		sum = tx.Superblock().Totals
		return nil
	})
	return sum
}

func wantTotals(t fataler, s *Store, want Totals) {
	t.Helper()
	if got := totalsOf(t, s); got != want {
		t.Fatalf("the totals are %+v, want %+v", got, want)
	}
	wantSound(t, s)
}

func inline(n int) *Inline { return &Inline{RawLen: int64(n), Data: make([]byte, n)} }

// TestTotalsFollowEachChange takes one file through its life; each step is a transaction.
func TestTotalsFollowEachChange(t *testing.T) {
	s := newStore(t)
	edit := func(fn func(n *Node)) func(*Tx) error {
		return func(tx *Tx) error {
			n, err := tx.Node(10)
			if err != nil {
				return err
			}
			fn(&n)
			return tx.PutNode(n)
		}
	}
	for _, step := range []struct {
		name string
		do   func(tx *Tx) error
		want Totals
	}{
		{"nothing", func(*Tx) error { return nil }, Totals{}},
		{"a file without a name", func(tx *Tx) error {
			n := Node{ID: 10, Kind: File, Size: 5, AllocatedBytes: 5, Inline: inline(5)}
			if err := tx.AddOrphan(10, OrphanUnfinished, time.Unix(1, 0)); err != nil {
				return err
			}
			return tx.PutNode(n)
		}, Totals{}},
		{"it is named, with a directory above", func(tx *Tx) error {
			parent, leaf, err := tx.MakeParents("d/f", func() (Node, error) { return Node{ID: 11}, nil })
			if err != nil {
				return err
			}
			n, err := tx.Node(10)
			if err != nil {
				return err
			}
			if err := tx.RemoveOrphan(10); err != nil {
				return err
			}
			return tx.Link(parent, leaf, n)
		}, Totals{Files: 1, Logical: 5, Inline: 5}},
		{"extents in place of inline data", func(tx *Tx) error {
			if err := edit(func(n *Node) { n.Inline, n.AllocatedBytes = nil, 0 })(tx); err != nil {
				return err
			}
			_, _, err := write(tx, 10, 0, rawExtent(extent.BlockSize, 10*extent.BlockSize), rawExtent(testZone, 5000))
			return err
		}, Totals{Files: 1, Logical: 10*extent.BlockSize + 5000, Stored: 12 * extent.BlockSize, Extents: 2}},
		{"a hole splits the first", func(tx *Tx) error {
			_, err := drop(tx, 10, 3*extent.BlockSize, 5*extent.BlockSize)
			return err
		}, Totals{Files: 1, Logical: 10*extent.BlockSize + 5000, Stored: 10 * extent.BlockSize, Extents: 3}},
		{"half a block frees nothing", func(tx *Tx) error {
			_, err := drop(tx, 10, 0, extent.BlockSize/2)
			return err
		}, Totals{Files: 1, Logical: 10*extent.BlockSize + 5000, Stored: 10 * extent.BlockSize, Extents: 3}},
		{"it grows without data, twice in one transaction", func(tx *Tx) error {
			if err := edit(func(n *Node) { n.Size = 1 << 40 })(tx); err != nil {
				return err
			}
			return edit(func(n *Node) { n.Size = 1 << 50 })(tx)
		}, Totals{Files: 1, Logical: 1 << 50, Stored: 10 * extent.BlockSize, Extents: 3}},
		{"it is renamed", func(tx *Tx) error {
			n, err := tx.Node(10)
			if err != nil {
				return err
			}
			if err := tx.Unlink(n); err != nil {
				return err
			}
			return tx.Link(RootID, "g", n)
		}, Totals{Files: 1, Logical: 1 << 50, Stored: 10 * extent.BlockSize, Extents: 3}},
		{"it is deleted, its extents stay", func(tx *Tx) error {
			n, err := tx.Resolve("g")
			if err != nil {
				return err
			}
			if err := tx.Unlink(n); err != nil {
				return err
			}
			return tx.AddOrphan(10, OrphanDeleted, time.Unix(1, 0))
		}, Totals{Stored: 10 * extent.BlockSize, Extents: 3}},
		{"part of them goes", func(tx *Tx) error {
			_, _, _, err := tx.DropRange(10, 0, extent.MaxFileSize, 1)
			return err
		}, Totals{Stored: 7 * extent.BlockSize, Extents: 2}},
		{"all goes, and the node with it", func(tx *Tx) error {
			if _, _, _, err := tx.DropRange(10, 0, extent.MaxFileSize, 0); err != nil {
				return err
			}
			if err := tx.DeleteNode(10); err != nil {
				return err
			}
			return tx.RemoveOrphan(10)
		}, Totals{}},
	} {
		t.Run(step.name, func(t *testing.T) {
			update(t, s, step.do)
			wantTotals(t, s, step.want)
		})
	}
}

func TestTotalsOfATransactionThatFails(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "f") })
	err := s.Update(func(tx *Tx) error {
		if _, _, err := write(tx, 10, 0, rawExtent(extent.BlockSize, 5000)); err != nil {
			return err
		}
		return errBad
	})
	if err != errBad {
		t.Fatal(err)
	}
	wantTotals(t, s, Totals{Files: 1})
}

// TestTotalsAreNobodysToSet: neither Create's nor SetSuperblock's caller decides them.
func TestTotalsAreNobodysToSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	in := testInit()
	in.Superblock.Totals.Files = 7
	if err := Create(path, in, testOptions); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "f"); err != nil {
			return err
		}
		tx.SetSuperblock(func(sb *Superblock) { sb.Totals = Totals{Logical: 3} })
		return nil
	})
	wantTotals(t, s, Totals{Files: 1})
}

// TestTotalsWrapAndComeBack: the sizes of 20 sparse files add up to more than 64 bits.
func TestTotalsWrapAndComeBack(t *testing.T) {
	s := newStore(t)
	size := func(id uint64, n int64) {
		update(t, s, func(tx *Tx) error {
			return tx.PutNode(Node{ID: id, Kind: File, Parent: RootID, Name: fmt.Sprint(id), Size: n})
		})
	}
	for id := uint64(10); id < 30; id++ {
		update(t, s, func(tx *Tx) error { return addFile(tx, id, fmt.Sprint(id)) })
		size(id, extent.MaxFileSize)
	}
	wantTotals(t, s, Totals{Files: 20, Logical: 4 * extent.MaxFileSize})
	for id := uint64(10); id < 22; id++ {
		size(id, 1)
	}
	wantTotals(t, s, Totals{Files: 20, Logical: -8*extent.MaxFileSize + 12})
	size(22, 0)
	wantTotals(t, s, Totals{Files: 20, Logical: 7*extent.MaxFileSize + 12})
}

// TestPutOverADamagedNode: what the damaged record counted for cannot be known.
func TestPutOverADamagedNode(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "f") })
	update(t, s, func(tx *Tx) error { return sabotage(tx, "flip nodes 10") })
	err := s.Update(func(tx *Tx) error { return tx.PutNode(Node{ID: 10, Kind: File, Parent: RootID, Name: "f"}) })
	wantKind(t, err, errdefs.Corruption, errdefs.ReasonCorruption)
}

// TestAPutAfterAReadReadsNoMore: the record that a put replaces is looked up only if it is not
// the file that was read or put last. The root and a directory between do not count.
func TestAPutAfterAReadReadsNoMore(t *testing.T) {
	s := newStore(t)
	noted := func(tx *Tx, id uint64, want Totals) {
		t.Helper()
		if tx.noted != (notedFile{id, want}) {
			t.Errorf("noted is %+v, want node %d with %+v", tx.noted, id, want)
		}
	}
	update(t, s, func(tx *Tx) error {
		noted(tx, 0, Totals{})
		if err := addFile(tx, 10, "d/f"); err != nil {
			return err
		}
		noted(tx, 10, Totals{Files: 1})
		return addFile(tx, 11, "d/g")
	})
	update(t, s, func(tx *Tx) error {
		n, err := tx.Resolve("d/f")
		if err != nil {
			return err
		}
		if _, err := tx.Resolve("d"); err != nil {
			return err
		}
		noted(tx, 10, Totals{Files: 1})
		n.Size = 1
		if err := tx.PutNode(n); err != nil {
			return err
		}
		noted(tx, 10, Totals{Files: 1, Logical: 1})
		if _, err := tx.Node(99); !errdefs.Is(err, errdefs.NotFound) {
			t.Errorf("node 99: %v", err)
		}
		noted(tx, 99, Totals{})
		if _, err := tx.Node(11); err != nil {
			return err
		}
		noted(tx, 11, Totals{Files: 1})
		n.Size = 2 // and now it must be looked up
		return tx.PutNode(n)
	})
	wantTotals(t, s, Totals{Files: 2, Logical: 2})
}

// nodeModel is nodes 10 to 14 as they should be: nil is not there.
type nodeModel struct {
	s     *Store
	nodes [5]*Node
}

// step draws one change of one node and makes it, in the model and in tx. Mostly
// callers read a node before they put it; here some do.
func (m *nodeModel) step(t *rapid.T, tx *Tx, nodes []*Node) error {
	i := rapid.IntRange(0, len(nodes)-1).Draw(t, "node")
	id := uint64(10 + i)
	name := fmt.Sprint(i)
	if rapid.Bool().Draw(t, "read") {
		if _, err := tx.Node(id); err != nil && !errdefs.Is(err, errdefs.NotFound) {
			return err
		}
	}
	old := nodes[i]
	n := Node{ID: id, Kind: File}
	if old != nil {
		n = *old
	} else if rapid.IntRange(0, 4).Draw(t, "directory") == 0 {
		n.Kind = Directory
	}
	switch what := rapid.SampledFrom([]string{"put", "put", "link", "unlink", "delete"}).Draw(t, "what"); {
	case what == "delete" && old != nil && n.Parent == 0:
		nodes[i] = nil
		if err := tx.RemoveOrphan(id); err != nil {
			return err
		}
		return tx.DeleteNode(id)
	case what == "unlink" && old != nil && n.Parent != 0:
		if err := tx.Unlink(n); err != nil {
			return err
		}
		n.Parent, n.Name = 0, ""
		nodes[i] = &n
		return tx.AddOrphan(id, OrphanDeleted, time.Unix(1, 0))
	case what == "link" && n.Parent == 0:
		if err := tx.RemoveOrphan(id); err != nil {
			return err
		}
		if err := tx.Link(RootID, name, n); err != nil {
			return err
		}
		n.Parent, n.Name = RootID, name
		nodes[i] = &n
		return nil
	case what == "put" && n.Kind == File:
		size := rapid.IntRange(0, 100).Draw(t, "size")
		n.Size, n.Inline, n.AllocatedBytes = int64(size), nil, 0
		if size > 0 && rapid.Bool().Draw(t, "inline") {
			n.Inline, n.AllocatedBytes = inline(size), int64(size)
		}
		nodes[i] = &n
		if old == nil {
			if err := tx.AddOrphan(id, OrphanUnfinished, time.Unix(1, 0)); err != nil {
				return err
			}
		}
		return tx.PutNode(n)
	}
	return nil
}

func (m *nodeModel) update(t *rapid.T) {
	nodes := slices.Clone(m.nodes[:])
	fail := rapid.IntRange(0, 5).Draw(t, "fail") == 0
	err := m.s.Update(func(tx *Tx) error {
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			if err := m.step(t, tx, nodes); err != nil {
				return err
			}
		}
		if fail {
			return errBad
		}
		return nil
	})
	if fail != (err == errBad) || !fail && err != nil {
		t.Fatal(err)
	}
	if !fail {
		copy(m.nodes[:], nodes)
	}
}

func (m *nodeModel) check(t *rapid.T) {
	var want Totals
	for _, n := range m.nodes {
		if n == nil || n.Kind != File || n.Parent == 0 {
			continue
		}
		want.Files++
		want.Logical += n.Size
		if n.Inline != nil {
			want.Inline += int64(len(n.Inline.Data))
		}
	}
	wantTotals(t, m.s, want)
}

func TestTotalsOfNodesAgainstModel(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		path := filepath.Join(dir, fmt.Sprint("meta", run))
		m := &nodeModel{s: newStoreAt(t, path, testOptions)}
		defer func() { m.s.Close() }()
		t.Repeat(map[string]func(*rapid.T){"update": m.update, "": m.check, "reopen": func(t *rapid.T) {
			if err := m.s.Close(); err != nil {
				t.Fatal(err)
			}
			var err error
			if m.s, err = Open(path, testOptions); err != nil {
				t.Fatal(err)
			}
		}})
	})
}
