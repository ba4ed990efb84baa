package store

import (
	"bytes"
	"fmt"
	"runtime/debug"

	"go.etcd.io/bbolt"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// Tx is a transaction: a consistent snapshot in a View, the one writer in an Update. It must
// not be used after the function it was given to returns, nor by another goroutine. Nothing
// it returns aliases the file: strings and slices are the caller's.
type Tx struct {
	b         *bbolt.Tx
	buckets   [numBuckets]*bbolt.Bucket // those that were looked for
	looked    [numBuckets]bool
	super     Superblock
	groups    map[uint32]*groupEntry
	chunks    map[uint64]*chunk // slot << 32 | chunk
	freed     []Run             // set by finish
	noted     notedFile
	mutations uint64
	refsRead  uint64 // back-references read by referrers; for tests
	broken    error  // bbolt panicked: the transaction must not be committed
}

// Mutated reports whether anything was changed in this transaction so far.
func (tx *Tx) Mutated() bool { return tx.mutations > 0 }

func newTx(b *bbolt.Tx) *Tx {
	return &Tx{b: b, groups: map[uint32]*groupEntry{}}
}

// bucket returns the bucket, nil where the file has none. It is opened when it is first asked for:
// most transactions need a few of them, and opening one copies it. It may panic, as bbolt does.
func (tx *Tx) bucket(b bucketID) *bbolt.Bucket {
	if tx.looked[b] {
		return tx.buckets[b]
	}
	bk := tx.b.Bucket([]byte(bucketNames[b]))
	tx.setBucket(b, bk)
	return bk
}

func (tx *Tx) setBucket(b bucketID, bk *bbolt.Bucket) {
	if bk != nil && filledInOrder[b] {
		bk.FillPercent = 0.9
	}
	tx.buckets[b], tx.looked[b] = bk, true
}

// load begins a transaction with the superblock.
func load(b *bbolt.Tx) (tx *Tx, err error) {
	defer guard("store.load", "metadata", &err)
	tx = newTx(b)
	p, ok, err := tx.get(bSuper, superKey)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, corrupt("store.load", "superblock", "the metadata has no superblock")
	}
	tx.super, err = decodeSuperblock(p)
	return tx, badRecord(bSuper, superKey, err)
}

// finish writes what the transaction kept in memory.
func (tx *Tx) finish() error {
	if err := tx.writeBitmaps(); err != nil {
		return err
	}
	if err := tx.writeGroups(); err != nil {
		return err
	}
	if err := tx.put(bSuper, superKey, tx.super.encode()); err != nil {
		return err
	}
	return tx.broken
}

// guard turns a panic of bbolt, or a fault in the mapped file, into a Corruption error. It
// must be deferred itself.
func guard(op, object string, err *error) {
	if p := recover(); p != nil {
		*err = errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, op, object, fmt.Errorf("bbolt: %v", p))
	}
}

func (tx *Tx) guard(b bucketID, err *error) {
	if p := recover(); p != nil {
		*err = errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, "store.Tx", "bucket "+b.String(), fmt.Errorf("bbolt: %v", p))
		tx.broken = *err
	}
}

// panicOnFault makes memory faults of this goroutine panics until the returned function is
// called. A file that shrank under its mapping faults.
func panicOnFault() (restore func()) {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}

// get returns the payload of a record; it aliases the mapped file. Absent buckets are empty.
func (tx *Tx) get(b bucketID, key []byte) (payload []byte, ok bool, err error) {
	defer tx.guard(b, &err)
	bk := tx.bucket(b)
	if bk == nil {
		return nil, false, nil
	}
	v := bk.Get(key)
	if v == nil {
		return nil, false, nil
	}
	payload, err = unseal(b, key, v)
	return payload, err == nil, err
}

// put seals payload, which becomes the transaction's, and writes it.
func (tx *Tx) put(b bucketID, key, payload []byte) (err error) {
	defer tx.guard(b, &err)
	bk := tx.bucket(b)
	if bk == nil {
		if bk, err = tx.b.CreateBucket([]byte(bucketNames[b])); err != nil {
			return putFailed(b, key, err)
		}
		tx.setBucket(b, bk)
	}
	tx.mutations++
	return putFailed(b, key, bk.Put(key, seal(b, key, payload)))
}

// del removes a record; removing one that is not there is no error.
func (tx *Tx) del(b bucketID, key []byte) (err error) {
	defer tx.guard(b, &err)
	bk := tx.bucket(b)
	if bk == nil {
		return nil
	}
	tx.mutations++
	return putFailed(b, key, bk.Delete(key))
}

func putFailed(b bucketID, key []byte, err error) error {
	return errdefs.Wrap(errdefs.Internal, "", "store.put", b.object(key), err)
}

// cursor walks a bucket in key order. After a change to the bucket it must seek again. Keys
// and payloads alias the mapped file. The end is a nil key; a damaged record is a nil key
// with an error, and next goes on behind it.
type cursor struct {
	tx *Tx
	b  bucketID
	c  *bbolt.Cursor // since the first move; nil where the bucket is absent
	// at is a copy of the key of the damaged record that the last move met; nil if it met
	// none and when bbolt failed.
	at []byte
}

func (tx *Tx) cursor(b bucketID) *cursor {
	return &cursor{tx: tx, b: b}
}

// ready reports whether there is a bucket to move in. Moves call it under their guard.
func (c *cursor) ready() bool {
	if c.c == nil {
		if bk := c.tx.bucket(c.b); bk != nil {
			c.c = bk.Cursor()
		}
	}
	return c.c != nil
}

func (c *cursor) open(k, v []byte) ([]byte, []byte, error) {
	if k == nil {
		return nil, nil, nil
	}
	p, err := unseal(c.b, k, v)
	if err != nil {
		// Not k itself: its length is as doubtful as the rest, so it may fault later.
		c.at = bytes.Clone(k[:min(len(k), maxKeyShown)])
		return nil, nil, err
	}
	return k, p, nil
}

// seek goes to the first record with a key >= key.
func (c *cursor) seek(key []byte) (k, p []byte, err error) {
	defer c.tx.guard(c.b, &err)
	if !c.ready() {
		return nil, nil, nil
	}
	c.at = nil
	return c.open(c.c.Seek(key))
}

func (c *cursor) next() (k, p []byte, err error) {
	defer c.tx.guard(c.b, &err)
	if !c.ready() {
		return nil, nil, nil
	}
	c.at = nil
	return c.open(c.c.Next())
}

// advance is seek when it is the first move and next when it is not.
func (c *cursor) advance(first bool, from []byte) (k, p []byte, err error) {
	if first {
		return c.seek(from)
	}
	return c.next()
}

// below goes to the last record with a key < key: from anywhere when it is the first move, and
// from the record with that key, where the last move went, when it is not.
func (c *cursor) below(first bool, key []byte) (k, p []byte, err error) {
	defer c.tx.guard(c.b, &err)
	if !c.ready() {
		return nil, nil, nil
	}
	c.at = nil
	if first {
		c.c.Seek(key)
	}
	return c.open(c.before(key))
}

// before moves back to the record before the one the cursor is at, which is the first with a key
// >= key, or past the end.
func (c *cursor) before(key []byte) (k, v []byte) {
	for {
		if k, v = c.c.Prev(); k != nil {
			return k, v
		}
		// bbolt's Prev stops with nil at a leaf that this transaction emptied, as it does at
		// the start of the bucket. Only the first key tells the two apart.
		first, _ := c.tx.bucket(c.b).Cursor().First()
		if first == nil || bytes.Compare(first, key) >= 0 {
			return nil, nil
		}
	}
}

// floor goes to the last record with a key <= key.
func (c *cursor) floor(key []byte) (k, p []byte, err error) {
	defer c.tx.guard(c.b, &err)
	if !c.ready() {
		return nil, nil, nil
	}
	rk, rv := c.c.Seek(key)
	if rk != nil && bytes.Equal(rk, key) {
		return c.open(rk, rv)
	}
	return c.open(c.before(key))
}
