package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

const getHelp = `get SRC... DST copies files from the store to here.

Each file is written beside its place under a temporary name and renamed when it is complete
and verified, so DST is the old or the new file, whole. Modification times and modes are
restored, and holes stay holes. DST may be "-" for standard output.

If DST ends with "/" or is a folder here, things go into it under their own names; otherwise
DST is the new name itself, of the file or, with -r, of the folder:
  get -r backup/photos here/    makes here/photos/...
  get -r backup/photos here     makes here/photos/... if here is there, else here/...`

func (a *app) getCommand() *cobra.Command {
	var o transferOptions
	cmd := &cobra.Command{
		Use:   "get SRC... DST",
		Short: "copy files from the store",
		Long:  getHelp,
		Args:  usageArgs(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			if args[last] == "-" {
				return a.cat(cmd.Context(), args[:last], client.ReadOptions{})
			}
			return a.get(cmd.Context(), args[:last], args[last], o)
		},
	}
	o.flags(cmd, "directories")
	return cmd
}

// getter carries out one get.
type getter struct{ transfer }

func (a *app) get(ctx context.Context, srcs []string, dst string, o transferOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	st, err := os.Stat(dst)
	into := os.IsPathSeparator(dst[len(dst)-1]) || err == nil && st.IsDir()
	if len(srcs) > 1 && !into {
		return usagef("%q is not a folder; end it with / to get several things into it", dst)
	}
	g := getter{a.transfer(ctx, srcs, o)}
	g.expect(g.ctx, func(ctx context.Context) (int64, error) { return a.storedSize(ctx, srcs) })
	for _, src := range srcs {
		g.source(ctx, src, dst, into, o)
	}
	return g.end(ctx, "got")
}

// source starts on one argument.
func (g *getter) source(ctx context.Context, src, dst string, into bool, o transferOptions) {
	name, _ := storeName(src)
	if into {
		dst = filepath.Join(dst, filepath.FromSlash(path.Base("/"+name)))
	}
	if name == "" {
		if !o.recursive {
			g.fail(src, errors.New("is a directory; use -r"))
			return
		}
		g.folder(ctx, name, dst)
		return
	}
	f, err := g.a.c.Stat(ctx, name)
	switch {
	case err != nil:
		g.fail(name, err)
	case isDirectory(f) && !o.recursive:
		g.fail(name, errors.New("is a directory; use -r"))
	case isDirectory(f):
		g.folder(ctx, name, dst)
	default:
		g.do(name, func(ctx context.Context) error { return g.file(ctx, name, dst) })
	}
}

// folder starts on everything under the directory src of the store.
func (g *getter) folder(ctx context.Context, src, dst string) {
	if err := os.MkdirAll(dst, 0o777); err != nil {
		g.fail(dst, pathless(err))
		return
	}
	for f, err := range g.a.c.List(g.ctx, src, client.ListOptions{Recursive: true}) {
		if err != nil {
			g.fail(src, err)
			return
		}
		name := f.GetName()
		rel := filepath.FromSlash(strings.TrimPrefix(strings.TrimPrefix(name, src), "/"))
		if !filepath.IsLocal(rel) {
			g.fail(name, errors.New("is no path for this machine"))
			continue
		}
		to := filepath.Join(dst, rel)
		if !isDirectory(f) {
			g.do(name, func(ctx context.Context) error { return g.file(ctx, name, to) })
			continue
		}
		// A directory comes before what is in it, so it is made here and not in turn.
		g.directories.Add(1)
		if err := os.MkdirAll(to, 0o777); err != nil {
			g.fail(to, pathless(err))
		}
	}
}

// file fetches one file.
func (g *getter) file(ctx context.Context, name, dst string) (err error) {
	r, err := g.a.c.Read(ctx, name, client.ReadOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := os.MkdirAll(filepath.Dir(dst), 0o777); err != nil {
		return err
	}
	// Not os.CreateTemp, which ignores the umask.
	tmp := filepath.Join(filepath.Dir(dst), ".shingle-"+rand.Text()[:12]+".tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(tmp)
		}
	}()
	n, err := r.WriteTo(&sparseFile{File: f, p: g.progress})
	if err != nil {
		return err
	}
	if want := r.File().GetSize(); n != want {
		return fmt.Errorf("changed while it was read: %d of %d bytes", n, want)
	}
	if err := f.Truncate(n); err != nil { // a hole at the end is no write
		return err
	}
	if m := r.File().Mode; m != nil {
		if err := f.Chmod(fs.FileMode(*m).Perm()); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if t := r.File().GetMtime(); t != nil {
		if err := os.Chtimes(tmp, time.Time{}, t.AsTime()); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, dst); err != nil {
		return err
	}
	g.files.Add(1)
	return nil
}

// sparseFile leaves holes out.
type sparseFile struct {
	*os.File
	p *progress
}

func (s *sparseFile) Write(b []byte) (int, error) {
	n, err := s.File.Write(b)
	s.p.bytes.Add(int64(n))
	return n, err
}

// WriteHole implements client.HoleWriter.
func (s *sparseFile) WriteHole(n int64) error {
	s.p.bytes.Add(n)
	_, err := s.Seek(n, io.SeekCurrent)
	return err
}

var _ client.HoleWriter = (*sparseFile)(nil)
