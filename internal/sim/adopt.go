package sim

import (
	"bytes"
	"context"
	"errors"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// cutRange is the range that a truncate or punch of the file was working on when the life ended.
func (o *op) cutRange(mine bool) extent.Range {
	if mine && (o.what == "truncate" || o.what == "punch") {
		return extent.Range{Off: o.off, End: o.end}
	}
	return extent.Range{}
}

// prefixOf reports whether got, read of a file of the given size, is what want would look like.
func prefixOf(got, want []byte, size int64) bool {
	return size == int64(len(want)) && len(got) <= len(want) && bytes.Equal(got, want[:len(got)])
}

func asNotSynced(err error, to **notSynced) bool { return errors.As(err, to) }

// list returns the files under a directory.
func (r *run) list(dir string) (names []string) {
	var files []engine.File
	var err error
	r.await("list", func() {
		files, _, err = r.life.e.List(context.Background(), engine.ListRequest{Directory: dir, Recursive: true, Limit: 10_000})
	}, false)
	if err != nil && !errdefs.Is(err, errdefs.NotFound) {
		r.failf("list %s: %v", dir, err)
	}
	for _, f := range files {
		if !f.Directory {
			names = append(names, f.Name)
		}
	}
	return names
}

// adoptShared holds the shared files against the registers, as after a crash, and goes on from what
// they hold.
func (r *run) adoptShared() {
	if !r.cfg.Shared || r.failed() {
		return
	}
	begun := r.regs.tick()
	for _, name := range sharedNames {
		got, _, err := r.readAll(name)
		o := &op{client: r.clients[0], what: "shared read", name: name, got: got, tick: begun, err: err}
		whole := err == nil
		switch {
		case errdefs.Is(err, errdefs.NotFound):
			whole = true
		case err != nil:
			r.clients[0].checkCorruption(o)
		}
		r.clients[0].checkShared(o, 0, sharedBlocks, whole, true)
		if r.failed() {
			return
		}
		if !whole { // what the rest of it is, nobody can say any more
			got = nil
			r.await("delete", func() {
				_, err = r.life.e.Delete(context.Background(), engine.DeleteRequest{Name: name})
			}, false)
			if err != nil {
				r.failf("delete %s, which has a bad block: %v", name, err)
				return
			}
		}
		for b := range sharedBlocks {
			at := b * extent.BlockSize
			r.regs.adopt(name, b, got[min(at, len(got)):min(at+extent.BlockSize, len(got))])
		}
	}
	r.regs.adopted()
}
