package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// lockTries times lockPause is how long Open waits for another process to let go.
const (
	lockTries = 10
	lockPause = 50 * time.Millisecond
)

// lock takes the lock that bbolt takes too (a second time on the same descriptor is free):
// the pages may be looked at only while nobody writes them.
func lock(f *os.File) error {
	for try := 1; ; try++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return errdefs.Wrap(errdefs.Unavailable, "", "store.Open", f.Name(), err)
		case try == lockTries:
			return errdefs.New(errdefs.Unavailable, errdefs.ReasonInUse, "store.Open", f.Name(),
				"another process has the metadata file open")
		}
		time.Sleep(lockPause)
	}
}

// The page layout of bbolt format version 2 (internal/common of go.etcd.io/bbolt v1.5.0).
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	pageHeader     = 16 // id u64, flags u16, count u16, overflow u32
	elemSize       = 16 // branch: pos, ksize u32, page u64; leaf: flags, pos, ksize, vsize u32
	bucketHeader   = 16 // root u64, sequence u64
	flagBranch     = 0x01
	flagLeaf       = 0x02
	flagFreelist   = 0x10
	flagBucket     = 0x01 // of a leaf element
	noFreelist     = ^uint64(0)
	maxOverflow    = 1 << 14 // pages of one node that are believed: 64 MiB
	maxTreeDepth   = 32
	metaSumOffset  = 56
	freelistCounts = 0xFFFF
)

type boltMeta struct{ root, freelist, pages, txid uint64 }

func parseMeta(p []byte) (m boltMeta, ok bool) {
	b := p[pageHeader:]
	h := fnv.New64a()
	h.Write(b[:metaSumOffset])
	le := binary.LittleEndian
	if le.Uint32(b) != boltMagic || le.Uint32(b[4:]) != boltVersion || le.Uint32(b[8:]) != pageSize ||
		le.Uint64(b[metaSumOffset:]) != h.Sum64() {
		return m, false
	}
	return boltMeta{root: le.Uint64(b[16:]), freelist: le.Uint64(b[32:]), pages: le.Uint64(b[40:]), txid: le.Uint64(b[48:])}, true
}

// pageCheck walks the page tree with plain reads, before anything is mapped. bbolt believes
// every page number and length in its pages, so a cycle would overflow the stack and a wild
// length would fault, neither of which can be recovered from everywhere.
type pageCheck struct {
	f    *os.File
	m    boltMeta
	seen []uint64 // bit set of referenced pages
	full bool     // leaves are read too, as bbolt's scan for free pages will do
}

// checkPages checks the file's length, its meta pages, the free list and the page tree: all
// branch pages, and all leaf pages when the free list is missing. Errors are Corruption.
func checkPages(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return errdefs.Wrap(errdefs.Unavailable, "", "store.Open", f.Name(), err)
	}
	if fi.Size() < 4*pageSize {
		return corrupt("store.Open", f.Name(), fmt.Sprintf("the file has %d bytes, too few for a metadata file", fi.Size()))
	}
	buf := make([]byte, 2*pageSize)
	if _, err := f.ReadAt(buf, 0); err != nil {
		return errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, "store.Open", f.Name(), err)
	}
	m, ok := parseMeta(buf)
	if m1, ok1 := parseMeta(buf[pageSize:]); ok1 && (!ok || m1.txid > m.txid) {
		m, ok = m1, true
	}
	if !ok {
		return corrupt("store.Open", f.Name(), "not a metadata file, or both of its meta pages are damaged")
	}
	if m.pages < 4 || m.pages > uint64(fi.Size())/pageSize {
		return corrupt("store.Open", f.Name(),
			fmt.Sprintf("the file is cut short: it has %d pages and should have %d", fi.Size()/pageSize, m.pages))
	}
	c := pageCheck{f: f, m: m, seen: make([]uint64, m.pages/64+1), full: m.freelist == noFreelist}
	if err := c.run(); err != nil {
		return errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, "store.Open", f.Name(), err)
	}
	return nil
}

func (c *pageCheck) run() error {
	if !c.full {
		if err := c.freelist(); err != nil {
			return err
		}
	}
	var roots []uint64
	err := c.walk(c.m.root, func(p []byte) error {
		return eachLeaf(p, true, func(flags uint32, v []byte) error {
			if flags&flagBucket == 0 || len(v) < bucketHeader {
				return fmt.Errorf("the root holds something that is no bucket")
			}
			if root := binary.LittleEndian.Uint64(v); root != 0 {
				roots = append(roots, root)
				return nil
			}
			inline := v[bucketHeader:]
			if len(inline) < pageHeader || binary.LittleEndian.Uint16(inline[8:]) != flagLeaf {
				return fmt.Errorf("an inline bucket is no leaf page")
			}
			return eachLeaf(inline, false, nil)
		})
	})
	if err != nil {
		return err
	}
	var leaf func([]byte) error
	if c.full {
		leaf = func(p []byte) error { return eachLeaf(p, false, nil) }
	}
	for _, root := range roots {
		if err := c.walk(root, leaf); err != nil {
			return err
		}
	}
	return nil
}

// freelist checks that the free list names each page once and none outside the file.
func (c *pageCheck) freelist() error {
	p, err := c.read(c.m.freelist, 0)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	if le.Uint16(p[8:]) != flagFreelist {
		return fmt.Errorf("page %d is not a free list", c.m.freelist)
	}
	ids, n := p[pageHeader:], uint64(le.Uint16(p[10:]))
	if n == freelistCounts {
		n, ids = le.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids))/8 {
		return fmt.Errorf("the free list claims %d pages and has room for %d", n, len(ids)/8)
	}
	for last := uint64(1); n > 0; n, ids = n-1, ids[8:] {
		id := le.Uint64(ids)
		if id <= last || id >= c.m.pages {
			return fmt.Errorf("the free list is out of order at page %d", id)
		}
		last = id
		if err := c.mark(id, 1); err != nil {
			return err
		}
	}
	return nil
}

// mark notes that pages [id, id+n) are referenced; twice is an error.
func (c *pageCheck) mark(id, n uint64) error {
	if id < 2 || id >= c.m.pages || n > c.m.pages-id {
		return fmt.Errorf("page %d lies outside the file", id)
	}
	for ; n > 0; id, n = id+1, n-1 {
		if c.seen[id/64]>>(id%64)&1 == 1 {
			return fmt.Errorf("page %d is used twice", id)
		}
		c.seen[id/64] |= 1 << (id % 64)
	}
	return nil
}

// read returns page id with its overflow pages; marked of them are marked already.
func (c *pageCheck) read(id, marked uint64) ([]byte, error) {
	if id < 2 || id >= c.m.pages {
		return nil, fmt.Errorf("page %d lies outside the file", id)
	}
	p := make([]byte, pageSize)
	if _, err := c.f.ReadAt(p, int64(id)*pageSize); err != nil {
		return nil, err
	}
	over := uint64(binary.LittleEndian.Uint32(p[12:]))
	if got := binary.LittleEndian.Uint64(p); got != id {
		return nil, fmt.Errorf("page %d says it is page %d", id, got)
	}
	if over > maxOverflow {
		return nil, fmt.Errorf("page %d claims %d overflow pages", id, over)
	}
	if err := c.mark(id+marked, over+1-marked); err != nil {
		return nil, err
	}
	if over > 0 {
		p = append(p, make([]byte, over*pageSize)...)
		if _, err := c.f.ReadAt(p[pageSize:], int64(id+1)*pageSize); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// walk checks the tree under root. With leaf nil, leaves are known by their depth, the same
// everywhere in a tree, and not read.
func (c *pageCheck) walk(root uint64, leaf func([]byte) error) error {
	depth := 0 // of the leaves, learnt on the way to the first one; the root has 1
	var visit func(id uint64, level int) error
	visit = func(id uint64, level int) error {
		if level > maxTreeDepth {
			return fmt.Errorf("page %d: the tree is too deep", id)
		}
		if level == depth && leaf == nil {
			return c.mark(id, 1)
		}
		p, err := c.read(id, 0)
		if err != nil {
			return err
		}
		switch binary.LittleEndian.Uint16(p[8:]) {
		case flagLeaf:
			if depth == 0 {
				depth = level
			}
			if level != depth {
				return fmt.Errorf("page %d: a leaf is not at the depth of the others", id)
			}
			if leaf != nil {
				return leaf(p)
			}
			return nil
		case flagBranch:
			return eachBranch(p, func(child uint64) error { return visit(child, level+1) })
		}
		return fmt.Errorf("page %d is neither branch nor leaf", id)
	}
	return visit(root, 1)
}

func eachBranch(p []byte, fn func(child uint64) error) error {
	le := binary.LittleEndian
	id, n := le.Uint64(p), int(le.Uint16(p[10:]))
	if n == 0 || pageHeader+n*elemSize > len(p) {
		return fmt.Errorf("branch page %d claims %d elements", id, n)
	}
	var last []byte
	for i := range n {
		at := uint64(pageHeader + i*elemSize)
		e := p[at:]
		key, ok := part(p, at+uint64(le.Uint32(e)), uint64(le.Uint32(e[4:])))
		if !ok || i > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("branch page %d: element %d is damaged", id, i)
		}
		last = key
		if err := fn(le.Uint64(e[8:])); err != nil {
			return err
		}
	}
	return nil
}

// eachLeaf checks the elements of a leaf page and calls fn, unless nil, for each. Only the
// root tree may hold buckets.
func eachLeaf(p []byte, buckets bool, fn func(flags uint32, v []byte) error) error {
	le := binary.LittleEndian
	id, n := le.Uint64(p), int(le.Uint16(p[10:]))
	if pageHeader+n*elemSize > len(p) {
		return fmt.Errorf("leaf page %d claims %d elements", id, n)
	}
	var last []byte
	for i := range n {
		at := uint64(pageHeader + i*elemSize)
		e := p[at:]
		flags, pos, ksize, vsize := le.Uint32(e), at+uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		key, ok := part(p, pos, ksize)
		v, vok := part(p, pos+ksize, vsize)
		if !ok || !vok || i > 0 && bytes.Compare(last, key) >= 0 || flags != 0 && !buckets {
			return fmt.Errorf("leaf page %d: element %d is damaged", id, i)
		}
		last = key
		if fn != nil {
			if err := fn(flags, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func part(p []byte, pos, n uint64) ([]byte, bool) {
	if pos > uint64(len(p)) || n > uint64(len(p))-pos {
		return nil, false
	}
	return p[pos : pos+n], true
}
