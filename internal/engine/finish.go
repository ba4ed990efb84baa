package engine

import (
	"context"
	"fmt"
	"io"
	"maps"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// Finish ends the write. Replace: the content takes the name, whole and durable, when it returns;
// contentCRC, unless nil, is checked against the content first. InPlace: checks ExpectedSize
// only. Finishing a finished write again answers the same, so a lost answer can be asked for.
func (w *Writer) Finish(ctx context.Context, contentCRC *uint32) (File, error) {
	const op = "engine.Finish"
	w.mu.Lock()
	finished, sequential, crc := w.mu.finished, w.mu.sequential, w.mu.crc
	if w.mu.fenced {
		defer w.mu.Unlock()
		return File{}, w.check()
	}
	done := make(chan struct{})
	w.mu.finishing = done // nobody takes the write over before it is known whether it has the name
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.mu.finishing = nil
		w.mu.Unlock()
		close(done)
	}()
	if finished {
		return w.e.describe(w.f)
	}
	w.f.mu.Lock()
	size := w.f.mu.size
	w.f.mu.Unlock()
	if want := w.o.ExpectedSize; want != nil && *want != size {
		err := errdefs.New(errdefs.Precondition, errdefs.ReasonSizeMismatch, op, "file "+w.o.Name, fmt.Sprintf("the size is %d, %d was expected", size, *want))
		err.Meta = map[string]string{"size": fmt.Sprint(size), "expected_size": fmt.Sprint(*want)}
		return File{}, err
	}
	if w.o.Mode != Replace {
		w.end()
		return w.e.describe(w.f)
	}
	if !sequential {
		var err error
		if crc, err = w.e.contentCRC(ctx, w.f); err != nil {
			return File{}, err
		}
	}
	if contentCRC != nil && *contentCRC != crc {
		return File{}, payloadChecksum(0, *contentCRC, crc)
	}
	out, err := w.publish(ctx, crc)
	if err != nil {
		return File{}, err
	}
	w.end()
	return out, nil
}

// publish gives the staged file its name in the transaction of its data or a later one.
func (w *Writer) publish(ctx context.Context, crc uint32) (File, error) {
	e, f, o := w.e, w.f, w.o
	var out File
	var gone store.Node
	var generation int64
	err := e.commitWith(ctx, f, func(tx *store.Tx) error {
		gone = store.Node{}
		n, err := tx.Node(f.id)
		if errdefs.Is(err, errdefs.NotFound) {
			n = store.Node{ID: f.id, Kind: store.File, Compression: &f.codec}
		} else if err != nil {
			return err
		}
		old, err := tx.Resolve(o.Name)
		switch {
		case err == nil && old.Kind == store.Directory:
			return errdefs.New(errdefs.Precondition, errdefs.ReasonNotAFile, "engine.Finish", "directory "+o.Name, "is a directory")
		case err == nil:
			if err := checkIf("engine.Finish", o.If, e.fileOf(old, o.Name)); err != nil {
				return err
			}
			gone = old
		case errdefs.Is(err, errdefs.NotFound):
			if err := checkAbsent("engine.Finish", o.Name, o.If); err != nil {
				return err
			}
		default:
			return err
		}
		if gone.ID != 0 {
			if err := e.unlink(tx, gone); err != nil {
				return err
			}
		}
		if err := tx.RemoveOrphan(f.id); err != nil {
			return err
		}
		now := e.o.Now().UnixNano()
		n.Created, n.Updated, n.MTime = now, now, nanos(o.Mtime)
		n.Mode, n.Attributes, n.WriteID, n.ContentCRC = o.FileMode, maps.Clone(o.Attributes), "", &crc
		if o.Compression == nil {
			n.Compression = nil // follows the store's default
		}
		generation = e.nextGeneration()
		n.Generation = uint64(generation)
		if err := e.link(tx, o.Name, &n); err != nil {
			return err
		}
		out = e.fileOf(n, o.Name)
		out.ContentCRC = &crc
		return nil
	})
	if err != nil {
		return File{}, err
	}
	// Not in the transaction, which may come to nothing: without a record of the file its data
	// would be taken for that of one that is gone.
	f.mu.Lock()
	f.mu.staged, f.mu.persisted = false, true
	if f.mu.generation < generation { // else it has been written to under its name already
		f.mu.generation, f.mu.contentValid = generation, true
	}
	f.mu.Unlock()
	e.forget(gone)
	return out, nil
}

// contentCRC reads the whole file for its checksum: for content that did not come in order.
func (e *Engine) contentCRC(ctx context.Context, f *file) (crc uint32, err error) {
	r := &Reader{e: e, f: f, end: extent.MaxFileSize, memory: newHoldings(e.reads)}
	defer r.drop() // the file is the Writer's
	for {
		p, err := r.Next(ctx)
		switch {
		case err == io.EOF:
			return crc, nil
		case err != nil:
			return 0, err
		}
		crc = csum.Combine(crc, p.CRC, int64(len(p.Data)))
	}
}

func (w *Writer) hasFinished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.finished
}

func (w *Writer) end() {
	w.mu.Lock()
	w.mu.finished = true
	w.mu.state = Finished
	w.mu.Unlock()
	w.f.wake()
}
