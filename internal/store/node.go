package store

import (
	"fmt"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// RootID is the node id of the root directory.
const RootID = 1

// NodeKind says what a node is; values are on media.
type NodeKind uint8

// The kinds of nodes.
const (
	File      NodeKind = 1
	Directory NodeKind = 2
)

// Inline is small file data kept in the node: the file's first RawLen bytes.
type Inline struct {
	Codec  extent.Codec
	RawLen int64  // bytes of file data, 1..extent.MaxFrameSize
	Data   []byte // stored form, at most extent.MaxCutInlineSize
}

// Node is a file or directory (docs/format.md 2.4). Times are ns since 1970. Pointers are
// nil where the value is absent.
type Node struct {
	ID         uint64
	Kind       NodeKind
	Parent     uint64 // 0: has no name (the root, orphans)
	Name       string
	Size       int64 // bytes
	Generation uint64
	Mode       *uint32
	UID, GID   uint32
	Created    int64
	Updated    int64
	MTime      int64 // the client's; 0: not given
	Attributes map[string]string
	// Compression is the file's own; nil: the store's default.
	Compression *extent.Codec
	Inline      *Inline
	ContentCRC  *uint32 // crc32c of the whole file; nil: unknown
	RequestID   string
	// StoredBytes counts the device bytes that this file refers to: each block or frame once
	// for every place in the file that it was written for. Inline data is not counted.
	StoredBytes int64
	// AllocatedBytes counts the file's bytes that are mapped or inline.
	AllocatedBytes int64
	WriteID        string // of an unfinished replace
}

// Add applies the byte counts of d to the node; it does not write it.
func (n *Node) Add(d Delta) {
	n.StoredBytes += d.Stored
	n.AllocatedBytes += d.Allocated
}

// maxText bounds the strings and attributes that a decoder believes.
const maxText = 1 << 20

func (n *Node) encode() []byte {
	var b []byte
	b = putUint(b, 1, uint64(n.Kind))
	b = putUint(b, 2, n.Parent)
	b = putString(b, 3, n.Name)
	b = putUint(b, 4, uint64(n.Size))
	b = putUint(b, 5, n.Generation)
	if n.Mode != nil {
		b = putUint(b, 6, uint64(*n.Mode)+1)
	}
	b = putUint(b, 7, uint64(n.UID))
	b = putUint(b, 8, uint64(n.GID))
	b = putUint(b, 9, uint64(n.Created))
	b = putUint(b, 10, uint64(n.Updated))
	b = putUint(b, 11, uint64(n.MTime))
	keys := make([]string, 0, len(n.Attributes))
	for k := range n.Attributes {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		m := putString(putString(nil, 1, k), 2, n.Attributes[k])
		if len(m) > 0 {
			b = putBytes(b, 12, m)
		}
	}
	if n.Compression != nil {
		b = putUint(b, 13, uint64(*n.Compression)+1)
	}
	if in := n.Inline; in != nil {
		b = putBytes(b, 14, putBytes(putUint(putUint(nil, 1, uint64(in.Codec)), 2, uint64(in.RawLen)), 3, in.Data))
	}
	if n.ContentCRC != nil {
		b = putUint(b, 15, uint64(*n.ContentCRC)+1)
	}
	b = putString(b, 16, n.RequestID)
	b = putUint(b, 17, uint64(n.StoredBytes))
	b = putUint(b, 18, uint64(n.AllocatedBytes))
	return putString(b, 19, n.WriteID)
}

// plusOne decodes a field that holds a value + 1.
func plusOne[T ~uint8 | ~uint32](f field, dst **T, most uint64) error {
	var v uint64
	if err := number(f, &v, most+1); err != nil {
		return err
	}
	if v > 0 {
		t := T(v - 1)
		*dst = &t
	}
	return nil
}

func decodeNode(key, p []byte) (n Node, err error) {
	id, ok := splitKey64(key, 1)
	if !ok {
		return n, errWire
	}
	n.ID = id[0]
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &n.Kind, max8)
		case 2:
			return number(f, &n.Parent, max64)
		case 3:
			return text(f, &n.Name, maxText)
		case 4:
			return number(f, &n.Size, maxPos)
		case 5:
			return number(f, &n.Generation, max64)
		case 6:
			return plusOne(f, &n.Mode, max32)
		case 7:
			return number(f, &n.UID, max32)
		case 8:
			return number(f, &n.GID, max32)
		case 9:
			return number(f, &n.Created, max64)
		case 10:
			return number(f, &n.Updated, max64)
		case 11:
			return number(f, &n.MTime, max64)
		case 12:
			return n.decodeAttribute(f)
		case 13:
			return plusOne(f, &n.Compression, max8)
		case 14:
			return n.decodeInline(f)
		case 15:
			return plusOne(f, &n.ContentCRC, max32)
		case 16:
			return text(f, &n.RequestID, maxText)
		case 17:
			return number(f, &n.StoredBytes, max63)
		case 18:
			return number(f, &n.AllocatedBytes, max63)
		case 19:
			return text(f, &n.WriteID, maxText)
		}
		return nil
	})
	if err == nil && n.Kind != File && n.Kind != Directory {
		err = fmt.Errorf("node kind %d: %w", n.Kind, errWire)
	}
	return n, err
}

func (n *Node) decodeAttribute(f field) error {
	b, err := f.bytes(maxText)
	if err != nil {
		return err
	}
	var k, v string
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			return text(f, &k, maxText)
		case 2:
			return text(f, &v, maxText)
		}
		return nil
	})
	if n.Attributes == nil {
		n.Attributes = map[string]string{}
	}
	n.Attributes[k] = v
	return err
}

func (n *Node) decodeInline(f field) error {
	b, err := f.bytes(maxText)
	if err != nil {
		return err
	}
	in := &Inline{}
	n.Inline = in
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &in.Codec, max8)
		case 2:
			return number(f, &in.RawLen, extent.MaxFrameSize)
		case 3:
			d, err := f.bytes(extent.MaxCutInlineSize)
			in.Data = slices.Clone(d)
			return err
		}
		return nil
	})
	return err
}

func nodeObject(id uint64) string { return fmt.Sprintf("node %d", id) }

// Node returns the record of node id. Errors: NotFound, Corruption.
func (tx *Tx) Node(id uint64) (Node, error) {
	n, ok, err := tx.node(id)
	if err != nil {
		return n, err
	}
	if !ok {
		tx.noted = notedFile{id: id}
		return n, notFound("store.Node", nodeObject(id))
	}
	tx.note(&n)
	return n, nil
}

// node reads the record of node id; ok is false and n empty if there is none.
func (tx *Tx) node(id uint64) (n Node, ok bool, err error) {
	key := key64(id)
	p, ok, err := tx.get(bNodes, key)
	if err != nil || !ok {
		return n, false, err
	}
	n, err = decodeNode(key, p)
	return n, err == nil, badRecord(bNodes, key, err)
}

// PutNode writes n as it is under its id, and counts it in the totals in place of what was
// there; it touches no names. InvalidArgument if the record could not be read back; Corruption
// if what was there is damaged.
func (tx *Tx) PutNode(n Node) error {
	const op = "store.PutNode"
	switch {
	case n.ID == 0 || n.Kind != File && n.Kind != Directory:
		return errdefs.Invalid(op, "node", "has no id or kind")
	case n.Size < 0 || n.Size > extent.MaxFileSize:
		return errdefs.Invalid(op, "size", "is out of range")
	case n.StoredBytes < 0 || n.AllocatedBytes < 0:
		return internal(op, nodeObject(n.ID), "byte counts fell below zero")
	case n.Inline != nil && (n.Inline.RawLen < 1 || n.Inline.RawLen > extent.MaxFrameSize || len(n.Inline.Data) > extent.MaxCutInlineSize):
		return errdefs.Invalid(op, "inline", "is out of range")
	}
	b := n.encode()
	if len(b) > maxText {
		return errdefs.Invalid(op, "attributes", "are too large")
	}
	old, err := tx.recorded(n.ID)
	if err != nil {
		return err
	}
	if err := tx.put(bNodes, key64(n.ID), b); err != nil {
		return err
	}
	tx.super.Totals.replace(old, n.totals())
	tx.note(&n)
	return nil
}

// Nodes calls fn for every node with an id > after in id order until it returns false.
func (tx *Tx) Nodes(after uint64, fn func(Node) bool) error {
	if after == max64 {
		return nil
	}
	c := tx.cursor(bNodes)
	for k, p, err := c.seek(key64(after + 1)); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		n, err := decodeNode(k, p)
		if err != nil {
			return badRecord(bNodes, k, err)
		}
		if !fn(n) {
			return nil
		}
	}
	return nil
}

// DeleteNode removes the record of a node for good. Precondition if it still has a name,
// extents (drop them first) or children (DIRECTORY_NOT_EMPTY); NotFound. It checks before it
// changes anything.
func (tx *Tx) DeleteNode(id uint64) error {
	const op = "store.DeleteNode"
	n, err := tx.Node(id)
	if err != nil {
		return err
	}
	if n.Parent != 0 || id == RootID {
		return errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, op, nodeObject(id), "the node still has a name")
	}
	if n.Kind == Directory {
		empty, err := tx.Empty(id)
		if err != nil {
			return err
		}
		if !empty {
			return errdefs.New(errdefs.Precondition, errdefs.ReasonDirNotEmpty, op, nodeObject(id), "the directory is not empty")
		}
	}
	mapped := false
	if err := tx.FileExtents(id, 0, extent.MaxFileSize, func(FileExtent) bool { mapped = true; return false }); err != nil {
		return err
	}
	if mapped {
		return errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, op, nodeObject(id), "the file still has extents")
	}
	if err := tx.del(bNodes, key64(id)); err != nil {
		return err
	}
	tx.super.Totals.replace(n.totals(), Totals{})
	tx.noted = notedFile{}
	return nil
}
