package engine

import (
	"context"
	"errors"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

// cloneBatch bounds the file extents that one transaction clones, so that a file of a million does
// not hold up every Sync. Each is two records, so a batch takes some tens of milliseconds.
const cloneBatch = 1024

// CloneRequest makes a file with the content of another, sharing what is stored.
type CloneRequest struct {
	Name, NewName string
	// Replace takes the place of an existing file; else AlreadyExists.
	Replace      bool
	If, IfTarget Preconditions
	// RequestID makes a retry safe: an existing NewName made by the same id is the answer.
	RequestID string
}

// Clone makes NewName a file with the content that Name has at one moment of the call, durably,
// without copying it. All that was received of the source is in the same transaction or an earlier
// one, and writes to it wait until the clone is made. Parents are made on demand. It needs no data
// space. After a crash the name stands for the old file or the whole clone.
//
// Errors: NotFound, AlreadyExists, Precondition (also NOT_A_FILE), InvalidArgument, NoSpace /
// METADATA_SPACE, Device / SYNC_FAILED if the source has bytes that cannot be made durable.
func (e *Engine) Clone(ctx context.Context, r CloneRequest) (File, Freed, error) {
	const op = "engine.Clone"
	if err := CheckName(r.Name); err != nil {
		return File{}, Freed{}, err
	}
	if err := CheckName(r.NewName); err != nil {
		return File{}, Freed{}, err
	}
	if r.Name == r.NewName {
		return File{}, Freed{}, errdefs.Invalid(op, "new_name", "a file cannot be cloned to its own name")
	}
	if err := e.writable(op); err != nil {
		return File{}, Freed{}, err
	}
	for {
		c := &cloning{e: e, r: r}
		// Before the source is asked for: of a retry it may be gone by now.
		err := e.st.View(c.checkTarget)
		if err == nil && !c.done {
			err = c.run(ctx)
		}
		switch {
		case errors.Is(err, errMoved):
			continue
		case err != nil:
			return File{}, Freed{}, err
		}
		return c.out, e.forget(c.gone), nil
	}
}

// cloning is a clone in the making. While it takes more than one transaction it is a deleted file
// that is open (docs/format.md 2.10), and if it is given up it stays one.
type cloning struct {
	e     *Engine
	r     CloneRequest
	src   *file
	id    uint64
	at    int64 // what lies below it in the source is cloned, in transactions that are committed
	begun bool  // a committed transaction has made the clone's record, without a name
	mem   *file // holds the nameless clone open

	// Set by each transaction, which may run twice.
	next     int64
	done     bool
	answered bool // by what an earlier call with the request id made
	out      File
	gone     store.Node // the file that was replaced
}

// run makes the clone. With the source's write token nothing is received, cut or punched from the
// first transaction to the last: all of them see the content of one moment.
func (c *cloning) run(ctx context.Context) (err error) {
	e := c.e
	if c.src, err = e.openRef(Ref{Name: c.r.Name}); err != nil {
		return err
	}
	defer e.release(c.src)
	if err := c.src.lockWrite(ctx); err != nil {
		return err
	}
	defer c.src.unlockWrite()
	c.id = e.newID()
	for err = e.commitWith(ctx, c.src, c.step); err == nil && !c.done; err = e.commit(ctx, c.step) {
		c.at, c.begun = c.next, true
	}
	if c.begun && (err != nil || c.answered) {
		e.orphans.Add(1) // it has no name, and is freed when we let go of it
	}
	if c.mem != nil {
		e.release(c.mem)
	}
	return err
}

// step is one transaction: the next part of the source's mapping, and with the last one the name.
func (c *cloning) step(tx *store.Tx) error {
	e := c.e
	if err := c.checkTarget(tx); err != nil || c.answered {
		return err
	}
	n, err := c.record(tx)
	if err != nil {
		return err
	}
	if err := e.metadataRoom(c.recordBytes(n)); err != nil {
		return err // the room that is left is promised to data that was received
	}
	// No further than the size: a truncate that failed half way may have left more.
	d, last, next, err := tx.CloneRange(c.src.id, c.id, c.at, n.Size, cloneBatch)
	if err != nil {
		return err
	}
	if err := e.metadataRoom(int64(d.Cuts) * metadataPerBlock); err != nil {
		return err
	}
	n.Add(d)
	n.Generation, n.Updated = uint64(e.nextGeneration()), e.o.Now().UnixNano()
	if c.mem == nil && !last {
		// From its first record on it must be open, or it would be freed as it is made.
		c.mem = e.loadedFile(n)
		e.files.add(c.mem)
	}
	if c.mem != nil {
		c.mem.mu.Lock()
		c.mem.mu.generation, c.mem.mu.updated = int64(n.Generation), timeOf(n.Updated)
		c.mem.mu.Unlock()
	}
	c.next, c.done = next, last
	if !last {
		if err := e.extendIDs(tx); err != nil {
			return err
		}
		if err := tx.AddOrphan(c.id, store.OrphanDeleted, e.o.Now()); err != nil {
			return err
		}
		return tx.PutNode(n)
	}
	if c.gone.ID != 0 {
		if err := e.unlink(tx, c.gone); err != nil {
			return err
		}
	}
	if c.begun {
		if err := tx.RemoveOrphan(c.id); err != nil {
			return err
		}
	}
	if err := e.link(tx, c.r.NewName, &n); err != nil {
		return err
	}
	c.out = e.fileOf(n, c.r.NewName)
	return nil
}

// checkTarget says why the clone cannot take its name, or is done if it has it already.
func (c *cloning) checkTarget(tx *store.Tx) error {
	const op = "engine.Clone"
	c.done, c.answered, c.out, c.gone = false, false, File{}, store.Node{}
	old, err := tx.Resolve(c.r.NewName)
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		return checkAbsent(op, c.r.NewName, c.r.IfTarget)
	case err != nil:
		return err
	case old.Kind == store.File && c.r.RequestID != "" && old.RequestID == c.r.RequestID:
		c.done, c.answered, c.out = true, true, c.e.fileOf(old, c.r.NewName)
		return nil
	case old.Kind == store.Directory:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, op, "directory "+c.r.NewName, "is a directory")
	case !c.r.Replace:
		return errdefs.New(errdefs.AlreadyExists, "", op, "file "+c.r.NewName, "exists already; ask to replace it")
	}
	c.gone = old
	return checkIf(op, c.r.IfTarget, c.e.fileOf(old, c.r.NewName))
}

// record returns the clone's record as far as it has come. The first transaction makes it from the
// source's, and is the moment at which the name stands for the source and its preconditions hold.
func (c *cloning) record(tx *store.Tx) (store.Node, error) {
	if c.begun {
		return tx.Node(c.id)
	}
	n, err := tx.Resolve(c.r.Name)
	if err != nil {
		return n, err
	}
	if n.ID != c.src.id {
		return n, errMoved
	}
	if err := checkIf("engine.Clone", c.r.If, c.e.fileOf(n, c.r.Name)); err != nil {
		return n, err
	}
	n.ID, n.Parent, n.Name, n.RequestID = c.id, 0, "", c.r.RequestID
	n.Created = c.e.o.Now().UnixNano()
	n.StoredBytes, n.AllocatedBytes = 0, 0
	if n.Inline != nil {
		n.AllocatedBytes = n.Inline.RawLen
	}
	return n, nil
}

// recordBytes is what the clone's record and name may cost in the metadata.
func (c *cloning) recordBytes(n store.Node) int64 {
	b := recordBytes(CreateRequest{Name: c.r.NewName, Attributes: n.Attributes})
	if n.Inline != nil {
		b += metadataPerInline
	}
	return b
}
