package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/shingle-store/shingle/api/client"
)

// errUnmeasured is what has no size before its end, such as a pipe.
var errUnmeasured = errors.New("its size is not known")

// sourcesSize adds up the files that are named here, and those of folders.
func sourcesSize(ctx context.Context, srcs []string) (total int64, err error) {
	for _, src := range srcs {
		st, err := os.Stat(src)
		switch {
		case src == "-" || err == nil && st.Mode()&fs.ModeNamedPipe != 0:
			return 0, errUnmeasured
		case err != nil:
			continue // it will not be moved either
		case !st.IsDir():
			total += st.Size()
			continue
		}
		if real, err := filepath.EvalSymlinks(src); err == nil {
			src = real
		}
		n, err := localSize(ctx, src)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// localSize adds up the files of a folder.
func localSize(ctx context.Context, dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if d.Type().IsRegular() {
			st, err := d.Info()
			if err != nil {
				return err
			}
			n += st.Size()
		}
		return nil
	})
	return n, err
}

// storedSize adds up the files that are named in the store, and those of directories.
func (a *app) storedSize(ctx context.Context, srcs []string) (total int64, err error) {
	for _, src := range srcs {
		name, _ := storeName(src)
		if name != "" {
			f, err := a.c.Stat(ctx, name)
			switch {
			case client.IsNotFound(err):
				continue
			case err != nil:
				return 0, err
			case !isDirectory(f):
				total += f.GetSize()
				continue
			}
		}
		for f, err := range a.c.List(ctx, name, client.ListOptions{Recursive: true}) {
			if err != nil {
				return 0, err
			}
			total += f.GetSize()
		}
	}
	return total, nil
}
