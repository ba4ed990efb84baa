package store

import "github.com/shingle-store/shingle/internal/extent"

// Totals are sums over all records. They are kept in the superblock, changed in the transaction
// that changes the record, so reading them costs the same however much is stored (docs/format.md
// 2.1). Arithmetic wraps at 64 bits, which only Logical can reach: 8 sparse files of
// extent.MaxFileSize are below zero, and come back exactly when one of them goes.
//
// Files, Logical and Inline are of files that have a name: an unfinished replace and a deleted
// file whose space is not freed yet are not files. Stored and Extents are of all extents, theirs
// too: they are what the device and the metadata hold.
type Totals struct {
	Files   int64
	Logical int64 // sum of sizes, bytes
	Stored  int64 // bytes of the blocks of extents
	Inline  int64 // bytes of the stored form of inline data
	Extents int64
}

// replace takes old out of the totals and puts now in.
func (t *Totals) replace(old, now Totals) {
	t.Files += now.Files - old.Files
	t.Logical += now.Logical - old.Logical
	t.Stored += now.Stored - old.Stored
	t.Inline += now.Inline - old.Inline
	t.Extents += now.Extents - old.Extents
}

// totals returns what n adds to the totals.
func (n *Node) totals() Totals {
	if n.Kind != File || n.Parent == 0 {
		return Totals{}
	}
	t := Totals{Files: 1, Logical: n.Size}
	if n.Inline != nil {
		t.Inline = int64(len(n.Inline.Data))
	}
	return t
}

// totals returns what x adds to the totals.
func (x *Extent) totals() Totals {
	return Totals{Stored: x.Blocks * extent.BlockSize, Extents: 1}
}

// notedFile is what a record adds to the totals: that of the file that the transaction read or
// put last. Nearly every put follows a read of the same file, and then need not read again what
// it replaces. Directories add nothing and push out nobody: a file is put after the directories
// above it were read.
type notedFile struct {
	id     uint64 // 0: none
	totals Totals
}

// note notes n, whose record was just read or put.
func (tx *Tx) note(n *Node) {
	if n.Kind == File {
		tx.noted = notedFile{n.ID, n.totals()}
	}
}

// recorded returns what the record of node id adds to the totals; nothing if there is none.
func (tx *Tx) recorded(id uint64) (Totals, error) {
	if tx.noted.id == id {
		return tx.noted.totals, nil
	}
	n, _, err := tx.node(id)
	return n.totals(), err
}

// totals holds the superblock's totals against those of the records, which the steps before
// added up.
func (c *checker) totals() error {
	kept := c.tx.super.Totals
	for _, t := range []struct {
		what       string
		kept, have int64
	}{
		{"files", kept.Files, c.found.Files},
		{"bytes in files", kept.Logical, c.found.Logical},
		{"stored bytes", kept.Stored, c.found.Stored},
		{"inline bytes", kept.Inline, c.found.Inline},
		{"extents", kept.Extents, c.found.Extents},
	} {
		if t.kept != t.have {
			c.problem(bSuper, superKey, "counts %d %s, there are %d", t.kept, t.what, t.have)
		}
	}
	return nil
}
