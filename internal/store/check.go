package store

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Problem is something that Check found wrong.
type Problem struct {
	Bucket string
	Key    string // in hex
	Msg    string
}

// String returns the problem in one line.
func (p Problem) String() string { return p.Bucket + " " + p.Key + ": " + p.Msg }

// Check reads every record and holds every cross-reference against its other side: names and
// nodes, parents, orphans, file extents, back-references, extents, checksums, block groups,
// byte counts, totals, bitmaps, what was trimmed, findings and scrubs. It calls report for each problem, in no stated order, and goes on; one damage
// may be reported from several sides. The error is for a check that could not be finished:
// ctx's, or Corruption when the superblock cannot be read.
//
// It is one read transaction, so pages freed meanwhile are not used again before it ends.
// Memory: the block groups, and for nothing else more than a file's extents in one frame.
func (s *Store) Check(ctx context.Context, report func(Problem)) error {
	return s.View(func(tx *Tx) error {
		c := &checker{tx: tx, ctx: ctx, report: report, groups: map[uint32]*checkedGroup{}}
		for _, step := range []func() error{c.small, c.extents, c.trimmed, c.nodes, c.totals, c.names, c.orphans, c.scrubs} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

type checker struct {
	tx     *Tx
	ctx    context.Context
	report func(Problem)
	groups map[uint32]*checkedGroup
	found  Totals // of the records read so far
}

type checkedGroup struct {
	BlockGroup
	live, end int64 // found in the extents
}

func (c *checker) problem(b bucketID, key []byte, format string, args ...any) {
	c.report(Problem{Bucket: b.String(), Key: hex.EncodeToString(key), Msg: fmt.Sprintf(format, args...)})
}

// stream walks a bucket and reports damaged records instead of returning them.
type stream struct {
	c    *checker
	cur  *cursor
	k, p []byte
	n    int
}

func (c *checker) stream(b bucketID) (*stream, error) {
	s := &stream{c: c, cur: c.tx.cursor(b)}
	k, p, err := s.cur.seek(nil)
	return s, s.settle(k, p, err)
}

func (s *stream) next() error {
	if s.n++; s.n%256 == 0 {
		if err := s.c.ctx.Err(); err != nil {
			return err
		}
	}
	return s.settle(s.cur.next())
}

// settle passes over damaged records. When bbolt itself failed the rest of the bucket is
// out of reach.
func (s *stream) settle(k, p []byte, err error) error {
	for err != nil {
		s.c.problem(s.cur.b, s.cur.at, "%v", err)
		if s.cur.at == nil {
			break
		}
		k, p, err = s.cur.next()
	}
	s.k, s.p = k, p
	return s.c.ctx.Err()
}

// each calls fn for every sound record of a bucket.
func (c *checker) each(b bucketID, fn func(k, p []byte)) error {
	s, err := c.stream(b)
	for ; err == nil && s.k != nil; err = s.next() {
		fn(s.k, s.p)
	}
	return err
}

// small checks devices and block groups, and that the superblock is alone.
func (c *checker) small() error {
	super := c.tx.super
	if err := c.each(bSuper, func(k, _ []byte) {
		if string(k) != string(superKey) {
			c.problem(bSuper, k, "a record that does not belong here")
		}
	}); err != nil {
		return err
	}
	if err := c.each(bDevices, func(k, p []byte) {
		d, err := decodeDevice(k, p)
		switch {
		case err != nil:
			c.problem(bDevices, k, "%v", err)
		case d.ZoneSize != super.ZoneSize:
			c.problem(bDevices, k, "zone size %d is not the store's %d", d.ZoneSize, super.ZoneSize)
		case d.UUID != super.StoreUUID:
			c.problem(bDevices, k, "the uuid is not the store's")
		}
	}); err != nil {
		return err
	}
	return c.each(bBlockGroups, func(k, p []byte) {
		g, err := decodeBlockGroup(k, p)
		if err != nil {
			c.problem(bBlockGroups, k, "%v", err)
			return
		}
		c.groups[g.Slot] = &checkedGroup{BlockGroup: g}
		if g.Capacity < 0 || g.Capacity > super.ZoneSize || (g.Capacity == 0) != (len(g.Places) == 0) {
			c.problem(bBlockGroups, k, "capacity %d is not in 1..%d, or 0 without a place", g.Capacity, super.ZoneSize)
		}
		if g.AllocOffset > g.Capacity {
			c.problem(bBlockGroups, k, "alloc_offset %d is above the capacity %d", g.AllocOffset, g.Capacity)
		}
		if g.Kind != KindSequential && (g.Kind != KindConventional || super.Incompatible&FeatureConventional == 0) {
			c.problem(bBlockGroups, k, "kind %d is not known, or not one that the store's features allow", g.Kind)
		}
		if g.Kind == KindConventional && g.AllocOffset != 0 {
			c.problem(bBlockGroups, k, "a conventional block group has the alloc_offset %d", g.AllocOffset)
		}
	})
}

// names checks that every name points to a node that says the same of itself.
func (c *checker) names() error {
	return c.each(bNames, func(k, p []byte) {
		id, err := decodeName(p)
		if err != nil || len(k) < 9 {
			c.problem(bNames, k, "malformed record")
			return
		}
		n, err := c.tx.Node(id)
		if err != nil {
			c.problem(bNames, k, "its node: %v", err)
			return
		}
		if want := nameKey(n.Parent, KeyForm(n.Name, n.Kind == Directory)); string(want) != string(k) {
			c.problem(bNames, k, "points to node %d, which is named %q in node %d", id, n.Name, n.Parent)
			return
		}
		if err := CheckName(n.Name); err != nil {
			c.problem(bNames, k, "%v", err)
		}
		if n.Kind == Directory {
			if _, both, _ := c.tx.nameAt(n.Parent, n.Name); both {
				c.problem(bNames, k, "there is a file of the same name")
			}
		}
	})
}

func (c *checker) orphans() error {
	return c.each(bOrphans, func(k, p []byte) {
		kind, _, err := decodeOrphan(p)
		if err != nil || len(k) != 8 {
			c.problem(bOrphans, k, "malformed record")
			return
		}
		id, _ := splitKey64(k, 1)
		n, err := c.tx.Node(id[0])
		switch {
		case err != nil:
			c.problem(bOrphans, k, "its node: %v", err)
		case n.Parent != 0 && kind != OrphanCut:
			c.problem(bOrphans, k, "its node has the name %q in node %d", n.Name, n.Parent)
		}
	})
}

// nodes walks the nodes and, in step, the file extents, which have the same order.
func (c *checker) nodes() error {
	nodes, err := c.stream(bNodes)
	if err != nil {
		return err
	}
	fes, err := c.stream(bFileExtents)
	if err != nil {
		return err
	}
	fc := &fileCheck{checker: c, fes: fes}
	sawRoot := false
	for ; err == nil && nodes.k != nil; err = nodes.next() {
		n, derr := decodeNode(nodes.k, nodes.p)
		if derr != nil {
			c.problem(bNodes, nodes.k, "%v", derr)
			continue
		}
		sawRoot = sawRoot || n.ID == RootID
		c.found.replace(Totals{}, n.totals())
		c.node(nodes.k, &n)
		if err := fc.file(nodes.k, &n); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if !sawRoot {
		c.problem(bNodes, key64(RootID), "there is no root directory")
	}
	return fc.file(nil, nil)
}

// node checks what a node says of itself and its way to the root.
func (c *checker) node(k []byte, n *Node) {
	if n.ID >= c.tx.super.NodeIDLimit {
		c.problem(bNodes, k, "the id is not below the limit %d", c.tx.super.NodeIDLimit)
	}
	if n.Kind == Directory && (n.Inline != nil || n.Size != 0) {
		c.problem(bNodes, k, "a directory has data")
	}
	if n.Inline != nil && n.Inline.RawLen > n.Size {
		c.problem(bNodes, k, "inline data of %d bytes in a file of %d", n.Inline.RawLen, n.Size)
	}
	_, _, oerr := c.tx.Orphan(n.ID)
	orphan := oerr == nil
	switch {
	case n.ID == RootID:
		if n.Kind != Directory || n.Parent != 0 || orphan {
			c.problem(bNodes, k, "the root is no root directory")
		}
	case n.Parent == 0:
		if !orphan {
			c.problem(bNodes, k, "has no name and is no orphan")
		}
	default:
		if id, ok, err := c.tx.nameAt(n.Parent, KeyForm(n.Name, n.Kind == Directory)); err == nil && (!ok || id != n.ID) {
			c.problem(bNodes, k, "its name %q in node %d does not point to it", n.Name, n.Parent)
		}
		c.way(k, n)
	}
}

func (c *checker) way(k []byte, n *Node) {
	if n.Kind == File { // the way on from its directory is checked there
		p, err := c.tx.Node(n.Parent)
		if err != nil {
			c.problem(bNodes, k, "its parent: %v", err)
		} else if p.Kind != Directory {
			c.problem(bNodes, k, "its parent %d is no directory", n.Parent)
		}
		return
	}
	up, err := c.tx.ancestors(n.ID)
	if err != nil {
		c.problem(bNodes, k, "its parents: %v", err)
		return
	}
	if top := up[len(up)-1]; top.ID != RootID {
		c.problem(bNodes, k, "its parents end at node %d, not at the root", top.ID)
	}
	if up[1].Kind != Directory {
		c.problem(bNodes, k, "its parent %d is no directory", n.Parent)
	}
}

// fileCheck holds a file's extents against its node.
type fileCheck struct {
	*checker
	fes *stream
	u   *units
	// open holds the last units of the file extents before, as far as a later one of the
	// same mapping may use them too. A unit is told by its address and the file offset that
	// it was written for.
	open []openUnit
}

type openUnit struct {
	addr    extent.Addr
	off     int64
	fileEnd int64
}

// file checks the file extents of n and reports those of lower ids as ownerless; with n nil
// all that are left.
func (c *fileCheck) file(k []byte, n *Node) error {
	var end, stored, allocated int64
	c.open = c.open[:0]
	cutting := false
	if n != nil {
		kind, _, err := c.tx.Orphan(n.ID)
		cutting = err == nil && kind == OrphanCut
	}
	if n != nil && n.Inline != nil {
		end, allocated = n.Inline.RawLen, n.Inline.RawLen
	}
	for c.fes.k != nil {
		fk := c.fes.k
		e, err := decodeFileExtent(fk, c.fes.p)
		switch {
		case err != nil:
			c.problem(bFileExtents, fk, "%v", err)
		case n == nil || e.File < n.ID:
			c.problem(bFileExtents, fk, "file %d does not exist", e.File)
		case e.File > n.ID:
			return c.counts(k, n, stored, allocated)
		default:
			if n.Kind != File {
				c.problem(bFileExtents, fk, "node %d is no file", n.ID)
			}
			if e.Off < end {
				c.problem(bFileExtents, fk, "overlaps what is mapped up to %d", end)
			}
			if e.End() > n.Size && !cutting {
				c.problem(bFileExtents, fk, "passes the end of the file, %d", n.Size)
			}
			end = max(end, e.End())
			allocated += e.Len
			stored += c.mapping(fk, &e)
		}
		if err := c.fes.next(); err != nil {
			return err
		}
	}
	if n == nil {
		return nil
	}
	return c.counts(k, n, stored, allocated)
}

// counts compares byte counts, except of deleted files, which are going away in steps.
func (c *fileCheck) counts(k []byte, n *Node, stored, allocated int64) error {
	kind, _, err := c.tx.Orphan(n.ID)
	if err == nil && kind == OrphanDeleted {
		return nil
	}
	if err != nil && !errdefs.Is(err, errdefs.NotFound) {
		return nil // reported by orphans
	}
	if n.StoredBytes != stored || n.AllocatedBytes != allocated {
		c.problem(bNodes, k, "counts %d stored and %d allocated bytes, and has %d and %d",
			n.StoredBytes, n.AllocatedBytes, stored, allocated)
	}
	return nil
}

// mapping checks a file extent against its extent and its back-reference, and returns the
// stored bytes that it adds to its file.
func (c *fileCheck) mapping(k []byte, e *FileExtent) int64 {
	if c.u == nil || e.Addr < c.u.Addr || e.Addr >= c.u.End() {
		var err error
		if c.u, err = c.tx.extentAt(e.Addr); err != nil {
			c.u = nil
			c.problem(bFileExtents, k, "%v", err)
			return 0
		}
	}
	s, err := c.u.place(e)
	if err != nil {
		c.problem(bFileExtents, k, "%v", err)
		return 0
	}
	if _, ok, err := c.tx.get(bBackRefs, key64(uint64(e.Addr), e.File, uint64(e.Off))); err == nil && !ok {
		c.problem(bFileExtents, k, "has no back-reference")
	}
	line := s.from - e.Off
	unit := func(i int) openUnit {
		return openUnit{c.u.Addr + extent.Addr(c.u.storedAt(i)), c.u.decodedAt(i) - line, c.u.decodedAt(i+1) - line}
	}
	first, last := c.u.touched(s)
	stored := c.u.storedLen(s)
	keep := c.open[:0]
	for _, o := range c.open {
		if o == unit(first) {
			stored -= c.u.storedAt(first+1) - c.u.storedAt(first)
		} else if o.fileEnd > e.Off {
			keep = append(keep, o)
		}
	}
	c.open = append(keep, unit(last))
	return stored
}
