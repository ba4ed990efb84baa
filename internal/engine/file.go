package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/shingle-store/shingle/internal/delalloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// file is a file that somebody has open or that has data in memory. There is at most one a
// file id, so its fields are the truth about what is received and not yet durable.
type file struct {
	id    uint64
	codec extent.Codec // for new data

	// write is a token: who holds it is the only one to write, truncate or punch. It is a
	// channel because it is held over device I/O and a wait for it must end with its context.
	write chan struct{}
	// cut is held shared (1) by a read for one window and alone (cutAlone) by truncate and punch,
	// so that no read sees a range half cut away. First come, first served; waits end with their
	// context.
	cut *semaphore.Weighted

	// dirty holds what has no place yet; pending holds what has been taken for writeback or
	// placed by nodelalloc and is not committed. Newer data lies in dirty over pending.
	dirty   *delalloc.Index
	pending *delalloc.Index

	mu struct {
		sync.Mutex
		size       int64
		durable    int64 // the size on record
		generation int64
		updated    time.Time
		seq        uint64     // of the last write
		committed  uint64     // every write up to this one is durable
		marks      []sizeMark // how size grew since the last commit, by seq
		queue      []*ordered // taken and not committed, in the order of taking
		// cutLow is the lowest sequence of what a cut under way has dropped from memory; 0: nothing.
		// Until the cut is durable, that data is neither durable nor gone.
		cutLow    uint64
		draining  bool       // a cut waits until nothing is in memory but what has failed
		inBatch   int        // the first so many of queue are in the transaction under way
		failed    []*ordered // could not be made durable; sticky
		commitErr error      // of the last try to commit, while it lasts
		inline    bool       // the record holds inline data, or will with the range in queue
		inlineLen int64      // of the inline data, in bytes of the file
		// inlineRecord is how long inline data is on record: longer than 0 also while the same
		// bytes are dirty, until the commit that replaces it.
		inlineRecord int64
		changed      chan struct{}
		// staged: has no name yet (an unfinished replace); persisted: has a record.
		staged, persisted bool
		writeID           string
		deleted           bool
		contentValid      bool // the record's whole-file checksum still holds
	}

	refs int  // guarded by fileTable.mu
	busy bool // guarded by fileTable.mu: has one reference for its data in memory
}

// cutAlone is the whole of a file's cut lock.
const cutAlone = 1 << 30

// sizeMark says that the file had the size after the write seq.
type sizeMark struct {
	seq  uint64
	size int64
}

// fileTable holds the open files by id.
type fileTable struct {
	load sync.Mutex // held while a record is read; taken before mu
	mu   sync.Mutex
	byID map[uint64]*file
}

func (e *Engine) newFile(id uint64, codec extent.Codec) *file {
	f := &file{id: id, codec: codec, write: make(chan struct{}, 1), cut: semaphore.NewWeighted(cutAlone)}
	f.dirty = delalloc.NewIndex(e.mode)
	f.pending = delalloc.NewIndex(e.pendingMode)
	f.mu.changed = make(chan struct{})
	return f
}

// openFile returns the file with the id with one more reference; release gives it back.
// NotFound if there is no such node or it was deleted, Precondition / NOT_A_FILE if it is a
// directory.
func (e *Engine) openFile(id uint64) (*file, error) {
	t := &e.files
	if f := t.get(id); f != nil {
		return f, nil
	}
	// One load at a time, so that nobody can open, change and release the file between our
	// reading and our entry. Not under t.mu: that is taken inside transactions, and a
	// transaction may have to wait for this one to end.
	t.load.Lock()
	defer t.load.Unlock()
	if f := t.get(id); f != nil {
		return f, nil
	}
	var n store.Node
	err := e.st.View(func(tx *store.Tx) (err error) {
		n, err = tx.Node(id)
		return err
	})
	if err != nil {
		return nil, err
	}
	unnamed := n.Parent == 0 && id != store.RootID
	switch {
	case n.Kind != store.File:
		return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, "engine.openFile", n.Name, "is a directory")
	case unnamed && n.WriteID == "":
		return nil, errdefs.New(errdefs.NotFound, "", "engine.openFile", fmt.Sprintf("file #%d", id), "has been deleted")
	}
	f := e.loadedFile(n)
	f.mu.staged, f.mu.writeID = unnamed, n.WriteID
	t.add(f)
	return f, nil
}

// loadedFile returns the file of a record, with nothing in memory.
func (e *Engine) loadedFile(n store.Node) *file {
	f := e.newFile(n.ID, e.codecOf(n))
	f.mu.size, f.mu.durable = n.Size, n.Size
	f.mu.generation = int64(n.Generation)
	f.mu.updated = timeOf(n.Updated)
	if n.Inline != nil {
		f.mu.inline, f.mu.inlineLen, f.mu.inlineRecord = true, n.Inline.RawLen, n.Inline.RawLen
	}
	f.mu.persisted = true
	f.mu.contentValid = n.ContentCRC != nil
	return f
}

// get returns the file, if it is open, with one more reference.
func (t *fileTable) get(id uint64) *file {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.byID[id]
	if f != nil {
		f.refs++
	}
	return f
}

// add enters a new file with its first reference.
func (t *fileTable) add(f *file) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.refs = 1
	t.byID[f.id] = f
}

// release gives back one reference. The last one of a deleted file wakes the orphan worker.
func (e *Engine) release(f *file) {
	t := &e.files
	t.mu.Lock()
	f.refs--
	gone := f.refs == 0
	if gone {
		delete(t.byID, f.id)
	}
	t.mu.Unlock()
	if gone {
		e.orphanKick.set()
	}
}

// isOpen reports whether somebody holds the file.
func (e *Engine) isOpen(id uint64) bool {
	e.files.mu.Lock()
	defer e.files.mu.Unlock()
	return e.files.byID[id] != nil
}

// settle keeps one reference to the file for as long as it has data in memory.
func (e *Engine) settle(f *file) {
	f.mu.Lock()
	holds := f.dirty.Bytes() > 0 || len(f.mu.queue) > 0 || len(f.mu.failed) > 0 || f.mu.cutLow != 0
	e.files.mu.Lock()
	drop := f.busy && !holds
	if holds && !f.busy {
		f.refs++
	}
	f.busy = holds
	e.files.mu.Unlock()
	f.mu.Unlock()
	if drop {
		e.release(f)
	}
}

// busyFiles returns the files with data in memory by id, each with one more reference.
func (e *Engine) busyFiles() []*file {
	e.files.mu.Lock()
	defer e.files.mu.Unlock()
	var fs []*file
	for _, f := range e.files.byID {
		if f.busy {
			f.refs++
			fs = append(fs, f)
		}
	}
	slices.SortFunc(fs, func(a, b *file) int { return cmp.Compare(a.id, b.id) })
	return fs
}

// lockWrite takes the write token.
func (f *file) lockWrite(ctx context.Context) error {
	select {
	case f.write <- struct{}{}:
		return nil
	default:
	}
	select {
	case f.write <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *file) unlockWrite() { <-f.write }

// wakeLocked tells everybody who waits for a change of the file.
func (f *file) wakeLocked() {
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
}

func (f *file) wake() {
	f.mu.Lock()
	f.wakeLocked()
	f.mu.Unlock()
}

// uncommittedLocked returns the lowest sequence of a write that is not durable; ok is false
// if all are.
func (f *file) uncommittedLocked() (seq uint64, ok bool) {
	seq, ok = f.dirty.MinSeq()
	if low := f.mu.cutLow; low != 0 && (!ok || low < seq) {
		seq, ok = low, true
	}
	for _, list := range [][]*ordered{f.mu.queue, f.mu.failed} {
		for _, o := range list {
			if !ok || o.rng.MinSeq < seq {
				seq, ok = o.rng.MinSeq, true
			}
		}
	}
	return seq, ok
}

// refreshLocked recomputes the durable watermark and wakes who waits for it.
func (f *file) refreshLocked() {
	if seq, ok := f.uncommittedLocked(); ok {
		f.mu.committed = max(f.mu.committed, seq-1)
	} else {
		f.mu.committed = f.mu.seq
	}
	f.wakeLocked()
}

// sizeAtLocked returns the size that the writes up to seq gave the file.
func (f *file) sizeAtLocked(seq uint64) int64 {
	size := f.mu.durable
	for _, m := range f.mu.marks {
		if m.seq > seq {
			break
		}
		size = max(size, m.size)
	}
	return size
}

// growLocked notes that the write f.mu.seq reaches to end.
func (f *file) growLocked(end int64) {
	if end > f.mu.size {
		f.mu.size = end
		f.mu.marks = append(f.mu.marks, sizeMark{f.mu.seq, end})
	}
}

// pruneMarksLocked forgets what the durable size already says.
func (f *file) pruneMarksLocked() {
	i := 0
	for i < len(f.mu.marks) && f.mu.marks[i].size <= f.mu.durable {
		i++
	}
	f.mu.marks = f.mu.marks[i:]
}

// failedErrorLocked returns the sticky error of the file, or nil.
func (f *file) failedErrorLocked() error {
	if len(f.mu.failed) > 0 {
		return f.mu.failed[0].err
	}
	return nil
}

// dirtyBytesLocked counts what has been received and is not durable.
func (f *file) dirtyBytesLocked() int64 {
	n := f.dirty.Bytes()
	for _, o := range f.mu.queue {
		n += o.rng.Len()
	}
	for _, o := range f.mu.failed {
		n += o.rng.Len()
	}
	return n
}

// codecOf returns the codec for new data of a node.
func (e *Engine) codecOf(n store.Node) extent.Codec {
	if n.Compression != nil {
		return *n.Compression
	}
	return e.codec
}
