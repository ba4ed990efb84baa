package engine

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
)

// Limits of names and attributes, in bytes.
const (
	MaxNameBytes      = 4096
	MaxComponentBytes = 255
	MaxAttributeBytes = 64 << 10
)

// CheckName says why a path cannot be a name: components of 1 to 255 bytes of UTF-8, not "."
// or "..", with no NUL, no slash at either end.
func CheckName(name string) error {
	bad := func(msg string) error { return errdefs.Invalid("engine.CheckName", "name", msg) }
	switch {
	case name == "":
		return bad("a name must not be empty")
	case len(name) > MaxNameBytes:
		return bad(fmt.Sprintf("a name has at most %d bytes", MaxNameBytes))
	case !utf8.ValidString(name):
		return bad("a name must be UTF-8")
	case strings.IndexByte(name, 0) >= 0:
		return bad("a name must not hold NUL")
	}
	for c := range strings.SplitSeq(name, "/") {
		switch {
		case c == "":
			return bad("a name must not begin or end with a slash or hold two in a row")
		case c == "." || c == "..":
			return bad(`a component must not be "." or ".."`)
		case len(c) > MaxComponentBytes:
			return bad(fmt.Sprintf("a component has at most %d bytes", MaxComponentBytes))
		}
	}
	return nil
}

// resolve returns the id that the name has now.
func (e *Engine) resolve(name string) (id uint64, err error) {
	if err := CheckName(name); err != nil {
		return 0, err
	}
	err = e.st.View(func(tx *store.Tx) error {
		n, err := tx.Resolve(name)
		id = n.ID
		return err
	})
	return id, err
}

// openRef opens a file by id or name.
func (e *Engine) openRef(r Ref) (*file, error) {
	id := r.ID
	if id == 0 {
		var err error
		if id, err = e.resolve(r.Name); err != nil {
			return nil, err
		}
	}
	return e.openFile(id)
}

// nameOf returns the path of a node for messages; an unnamed one is "#id".
func (e *Engine) nameOf(id uint64) string {
	name := ""
	err := e.st.View(func(tx *store.Tx) (err error) {
		name, err = tx.Path(id)
		return err
	})
	if err != nil || name == "" {
		return fmt.Sprintf("#%d", id)
	}
	return name
}

// checkIf compares preconditions with what the file is.
func checkIf(op string, c Preconditions, f File) error {
	var miss []string
	if c.Generation != nil && *c.Generation != f.Generation {
		miss = append(miss, fmt.Sprintf("generation is %d, not %d", f.Generation, *c.Generation))
	}
	if c.FileID != nil && *c.FileID != f.ID {
		miss = append(miss, fmt.Sprintf("file id is %d, not %d", f.ID, *c.FileID))
	}
	if c.Size != nil && *c.Size != f.Size {
		miss = append(miss, fmt.Sprintf("size is %d, not %d", f.Size, *c.Size))
	}
	if miss == nil {
		return nil
	}
	err := errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, op, "file "+f.Name, strings.Join(miss, ", "))
	err.Meta = map[string]string{"generation": fmt.Sprint(f.Generation), "file_id": fmt.Sprint(f.ID), "size": fmt.Sprint(f.Size)}
	return err
}

// checkAbsent is checkIf for a name that does not exist.
func checkAbsent(op, name string, c Preconditions) error {
	if c.Generation != nil && *c.Generation != 0 || c.FileID != nil || c.Size != nil {
		err := errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, op, "file "+name, "does not exist")
		err.Meta = map[string]string{"generation": "0"}
		return err
	}
	return nil
}

// fileOf describes a node with what is in memory of it.
func (e *Engine) fileOf(n store.Node, name string) File {
	f := File{
		Name: name, Directory: n.Kind == store.Directory, ID: n.ID, Generation: int64(n.Generation),
		Size: n.Size, Allocated: n.AllocatedBytes, Stored: n.StoredBytes, Created: timeOf(n.Created), Updated: timeOf(n.Updated),
		Mtime: timeOf(n.MTime), Mode: n.Mode, Attributes: n.Attributes, Compression: e.codecOf(n),
		ContentCRC: n.ContentCRC, RequestID: n.RequestID,
	}
	if n.Inline != nil {
		f.Stored += int64(len(n.Inline.Data))
	}
	e.files.mu.Lock()
	m := e.files.byID[n.ID]
	e.files.mu.Unlock()
	if m == nil {
		return f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f.Size = m.mu.size
	f.Generation = max(f.Generation, m.mu.generation)
	if m.mu.updated.After(f.Updated) {
		f.Updated = m.mu.updated
	}
	f.Dirty = m.dirtyBytesLocked()
	f.SyncFailed = len(m.mu.failed) > 0
	if !m.mu.contentValid {
		f.ContentCRC = nil
	}
	return f
}

// describe returns what an open file is now. A staged one without a record has no name.
func (e *Engine) describe(f *file) (File, error) {
	var out File
	err := e.st.View(func(tx *store.Tx) error {
		n, err := tx.Node(f.id)
		if errdefs.Is(err, errdefs.NotFound) {
			n = store.Node{ID: f.id, Kind: store.File}
		} else if err != nil {
			return err
		}
		name := ""
		if n.Parent != 0 {
			if name, err = tx.Path(f.id); err != nil {
				return err
			}
		}
		out = e.fileOf(n, name)
		return nil
	})
	return out, err
}

// Get returns what a file or directory is now. Errors: NotFound, InvalidArgument.
func (e *Engine) Get(ctx context.Context, r Ref) (File, error) {
	if r.ID == 0 {
		if err := CheckName(r.Name); err != nil {
			return File{}, err
		}
	}
	var out File
	err := e.st.View(func(tx *store.Tx) error {
		var n store.Node
		var err error
		name := r.Name
		if r.ID != 0 {
			if n, err = tx.Node(r.ID); err == nil && n.ID != store.RootID {
				if n.Parent == 0 {
					return errdefs.New(errdefs.NotFound, "", "engine.Get", fmt.Sprintf("file #%d", r.ID), "has no name any more")
				}
				name, err = tx.Path(r.ID)
			}
		} else {
			n, err = tx.Resolve(name)
		}
		if err != nil {
			return err
		}
		out = e.fileOf(n, name)
		return nil
	})
	return out, err
}

// List returns entries below a directory in byte order of whole paths, and where to go on ("" at
// the end). An entry present throughout a paged listing appears in it exactly once.
func (e *Engine) List(ctx context.Context, r ListRequest) (files []File, next string, err error) {
	if r.Directory != "" {
		if err := CheckName(r.Directory); err != nil {
			return nil, "", err
		}
	}
	limit := r.Limit
	if limit <= 0 {
		limit = 1000
	}
	err = e.st.View(func(tx *store.Tx) error {
		files = files[:0]
		next, err = tx.List(r.Directory, r.StartAfter, r.Recursive, limit, func(path string, n store.Node) error {
			files = append(files, e.fileOf(n, path))
			return nil
		})
		return err
	})
	return files, next, err
}

// mkParent returns what makes the records of missing parents.
func (e *Engine) mkParent() func() (store.Node, error) {
	return func() (store.Node, error) {
		now := e.o.Now().UnixNano()
		return store.Node{ID: e.newID(), Kind: store.Directory, Created: now, Updated: now, Generation: uint64(e.nextGeneration())}, nil
	}
}

// Create makes a file or directory; it is durable when it returns.
// Errors: AlreadyExists (Exclusive, or of the other kind), InvalidArgument, Precondition.
func (e *Engine) Create(ctx context.Context, r CreateRequest) (File, error) {
	const op = "engine.Create"
	if err := CheckName(r.Name); err != nil {
		return File{}, err
	}
	var out File
	id := e.newID()
	err := e.commit(ctx, func(tx *store.Tx) error {
		old, err := tx.Resolve(r.Name)
		if err == nil {
			if r.Exclusive && (r.RequestID == "" || old.RequestID != r.RequestID) || (old.Kind == store.Directory) != r.Directory {
				return errdefs.New(errdefs.AlreadyExists, "", op, "file "+r.Name, "exists already")
			}
			out = e.fileOf(old, r.Name)
			return nil
		} else if !errdefs.Is(err, errdefs.NotFound) {
			return err
		}
		if err := e.metadataRoom(recordBytes(r)); err != nil {
			return err // the room that is left is promised to data that was received
		}
		now := e.o.Now().UnixNano()
		n := store.Node{
			ID: id, Kind: store.File, Created: now, Updated: now, MTime: nanos(r.Mtime), Mode: r.Mode,
			Attributes: maps.Clone(r.Attributes), Compression: r.Compression, RequestID: r.RequestID, Generation: uint64(e.nextGeneration()),
		}
		if r.Directory {
			n.Kind = store.Directory
		}
		if err := e.link(tx, r.Name, &n); err != nil {
			return err
		}
		out = e.fileOf(n, r.Name)
		return nil
	})
	return out, err
}

// recordBytes is what making the file may cost in the metadata.
func recordBytes(r CreateRequest) int64 {
	n := int64(metadataPerBlock + 2*len(r.Name))
	for k, v := range r.Attributes {
		n += int64(len(k) + len(v))
	}
	return n
}

// link gives the node a name, making missing parents.
func (e *Engine) link(tx *store.Tx, name string, n *store.Node) error {
	if err := e.extendIDs(tx); err != nil {
		return err
	}
	parent, leaf, err := tx.MakeParents(name, e.mkParent())
	if err != nil {
		return err
	}
	if err := tx.Link(parent, leaf, *n); err != nil {
		return err
	}
	n.Parent, n.Name = parent, leaf
	return nil
}

// timeOf turns the record's nanoseconds into a time; 0 is the zero time.
func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
