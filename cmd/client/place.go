package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shingle-store/shingle/api/client"
)

// place is a folder here that get writes into. All goes through root, so no name and no symbolic link leads
// out of it.
type place struct {
	root        *os.Root
	directories []placed // in the order in which they were made
}

// placed is a directory that was made, and what it is to be like in the end.
type placed struct {
	rel   string
	mode  *uint32
	mtime time.Time // zero: not known
}

// openPlace makes dir, and what it lies in, if it is missing.
func openPlace(dir string) (*place, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &place{root: root}, nil
}

// directory notes what rel is to be like when all that is in it has been made; f may be nil.
func (p *place) directory(rel string, f *client.File) {
	d := placed{rel: rel}
	if f != nil {
		d.mode = f.Mode
	}
	if t := f.GetMtime(); t != nil {
		d.mtime = t.AsTime()
	}
	if d.mode != nil || !d.mtime.IsZero() {
		p.directories = append(p.directories, d)
	}
}

// finish gives directories their modes and times, the deepest first, and closes the place.
func (p *place) finish(fail func(what string, err error)) {
	defer p.root.Close()
	for _, d := range slices.Backward(p.directories) {
		what := filepath.Join(p.root.Name(), d.rel)
		if !d.mtime.IsZero() {
			fail(what, pathless(p.root.Chtimes(d.rel, time.Time{}, d.mtime)))
		}
		if d.mode != nil {
			fail(what, pathless(p.root.Chmod(d.rel, fs.FileMode(*d.mode).Perm())))
		}
	}
}

// at names what an error of package os is about as people do, without temporary names.
func (p *place) at(rel string, err error) error {
	return fmt.Errorf("%s: %w", filepath.Join(p.root.Name(), rel), pathless(err))
}

// file fetches one file to rel in p.
func (g *getter) file(ctx context.Context, name string, p *place, rel string) (err error) {
	r, err := g.a.c.Read(ctx, name, client.ReadOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	if dir := filepath.Dir(rel); dir != "." {
		if err := p.root.MkdirAll(dir, 0o777); err != nil {
			return p.at(dir, err)
		}
	}
	// Not os.CreateTemp, which ignores the umask.
	tmp := filepath.Join(filepath.Dir(rel), ".shingle-"+rand.Text()[:12]+".tmp")
	f, err := p.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return p.at(rel, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = p.root.Remove(tmp)
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
		if err := p.root.Chtimes(tmp, time.Time{}, t.AsTime()); err != nil {
			return err
		}
	}
	if err := p.root.Rename(tmp, rel); err != nil {
		return p.at(rel, err)
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
