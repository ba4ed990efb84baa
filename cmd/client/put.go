package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

const putHelp = `put SRC... DST copies files from here into the store.

Each file is replaced whole: until it is complete and durable the old one stays. When put
exits with 0 everything is durable. Modification times and modes are kept, those of folders where the
directory is new in the store. A file that changes while it is read is not put. SRC may be "-" for standard input; then DST names the file.

If DST ends with "/" or is a directory in the store, things go into it under their own
names; otherwise DST is the new name itself, of the file or, with -r, of the folder:
  put -r photos backup/    makes backup/photos/...
  put -r photos backup     makes backup/photos/... if backup is there, else backup/...

With -r, symbolic links and special files inside a folder are skipped, told of and counted.
The transfer goes on after a restart of the engine.`

func (a *app) putCommand() *cobra.Command {
	var o putOptions
	cmd := &cobra.Command{
		Use:   "put SRC... DST",
		Short: "copy files into the store",
		Long:  putHelp,
		Args:  usageArgs(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			return a.put(cmd.Context(), args[:last], args[last], o)
		},
	}
	o.flags(cmd, "folders")
	o.match.flag(cmd, "there must be no such file")
	return cmd
}

// putMemory bounds what all writers of pipes of one put hold together, in bytes, besides a message
// each. Of files nothing is held.
const putMemory = 512 << 20

// putOptions are the flags of put.
type putOptions struct {
	transferOptions
	match matchFlag
}

// putter carries out one put.
type putter struct {
	transfer
	window  int64                 // of each writer of a pipe
	ifMatch *client.Preconditions // of the only file; nil: nothing is asked
}

func (a *app) put(ctx context.Context, srcs []string, dst string, o putOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	ifMatch, err := o.match.of(o.single(srcs) && !o.dry)
	if err != nil {
		return err
	}
	name, into, err := a.target(ctx, dst)
	if err != nil {
		return err
	}
	if len(srcs) > 1 && !into {
		return usagef("%q is not a directory; end it with / to put several things into it", dst)
	}
	window := int64(putMemory / o.jobs)
	if o.single(srcs) {
		window = 0
	}
	p := putter{transfer: a.transfer(ctx, srcs, o.transferOptions), window: window, ifMatch: ifMatch}
	p.expect(p.ctx, func(ctx context.Context) (int64, error) { return sourcesSize(ctx, srcs) })
	for _, src := range srcs {
		p.source(ctx, src, name, into, o.transferOptions)
	}
	return p.end(ctx, "put")
}

// source starts on one argument. Named on the command line, a link stands for what it
// points to.
func (p *putter) source(ctx context.Context, src, dst string, into bool, o transferOptions) {
	if src == "-" {
		if into {
			p.fail("-", usagef("standard input needs a file name, not a directory"))
			return
		}
		if p.dry {
			p.would("-", dst, 0)
			return
		}
		p.do(dst, func(ctx context.Context) error {
			return p.pipe(ctx, p.a.in, dst, client.WriteOptions{Mode: client.Replace, IfMatch: p.ifMatch})
		})
		return
	}
	st, err := os.Stat(src)
	if err != nil {
		p.fail(src, pathless(err))
		return
	}
	if into {
		abs, err := filepath.Abs(src)
		if err != nil {
			p.fail(src, err)
			return
		}
		dst = join(dst, filepath.Base(abs))
	}
	switch {
	case st.IsDir() && !o.recursive:
		p.fail(src, errors.New("is a folder; use -r"))
	case st.IsDir():
		p.folder(ctx, src, dst)
	case !st.Mode().IsRegular() && st.Mode()&fs.ModeNamedPipe == 0:
		p.fail(src, errors.New("is neither a file nor a folder"))
	case p.dry:
		p.would(src, dst, st.Size())
	default:
		p.do(src, func(ctx context.Context) error { return p.file(ctx, src, dst) })
	}
}

// folder starts on everything under src.
func (p *putter) folder(ctx context.Context, src, dst string) {
	// A link that was named stands for its folder, and WalkDir does not follow it.
	if real, err := filepath.EvalSymlinks(src); err == nil {
		src = real
	}
	made := map[string]chan struct{}{} // of each folder here: closed when its directory is there
	err := filepath.WalkDir(src, func(file string, d fs.DirEntry, err error) error {
		if p.ctx.Err() != nil {
			return fs.SkipAll
		}
		if err != nil {
			p.fail(file, pathless(err))
			return nil
		}
		rel, err := filepath.Rel(src, file)
		if err != nil {
			return err
		}
		name := join(dst, filepath.ToSlash(rel))
		// What is in a directory would make it too, without its mode and time. It was begun before.
		above := made[filepath.Dir(file)]
		switch {
		case d.IsDir():
			if name == "" {
				return nil
			}
			p.directories.Add(1)
			if p.dry {
				return nil
			}
			ready := make(chan struct{})
			made[file] = ready
			p.do(file, func(ctx context.Context) error {
				defer close(ready)
				if err := await(ctx, above); err != nil {
					return err
				}
				return p.directory(ctx, file, name)
			})
		case d.Type().IsRegular() && p.dry:
			st, err := d.Info()
			if err != nil {
				p.fail(file, pathless(err))
				return nil
			}
			p.would(file, name, st.Size())
		case d.Type().IsRegular():
			p.do(file, func(ctx context.Context) error {
				if err := await(ctx, above); err != nil {
					return err
				}
				return p.file(ctx, file, name)
			})
		default:
			p.skipped.Add(1)
			p.a.warn("%s: skipped: it is neither a file nor a folder", file)
		}
		return nil
	})
	p.fail(src, err)
}

// await waits until ready is closed; nil is.
func await(ctx context.Context, ready <-chan struct{}) error {
	if ready == nil {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// directory makes a directory, so that an empty one is not lost, like the folder src.
func (p *putter) directory(ctx context.Context, src, name string) error {
	st, err := os.Stat(src)
	if err != nil {
		return pathless(err)
	}
	mode := uint32(st.Mode().Perm())
	_, err = p.a.c.Create(ctx, name, client.CreateOptions{Directory: true, Mode: &mode, Mtime: st.ModTime()})
	return err
}

// file sends one file.
func (p *putter) file(ctx context.Context, src, dst string) error {
	f, err := os.Open(src)
	if err != nil {
		return pathless(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return pathless(err)
	}
	mode := uint32(st.Mode().Perm())
	o := client.WriteOptions{Mode: client.Replace, IfMatch: p.ifMatch, Mtime: st.ModTime(), ModeBits: &mode}
	// Files of /proc have a size of 0 and content, and cannot be asked for the same again.
	if !st.Mode().IsRegular() || st.Size() == 0 {
		return p.pipe(ctx, f, dst, o)
	}
	from := &countingFile{File: f, p: p.progress}
	if _, err = p.a.c.WriteFrom(ctx, dst, from, st.Size(), o); err != nil {
		from.forget()
		return pathless(err)
	}
	p.files.Add(1)
	return nil
}

// pipe writes everything from r, which can be read once, as dst.
func (p *putter) pipe(ctx context.Context, r io.Reader, dst string, o client.WriteOptions) error {
	o.Window = p.window
	w, err := p.a.c.Write(ctx, dst, o)
	if err != nil {
		return err
	}
	from := &counting{Reader: r, p: p.progress}
	if _, err := w.ReadFrom(from); err != nil {
		from.forget()
		w.Abort()
		return pathless(err)
	}
	if err := w.Close(); err != nil {
		from.forget()
		return err
	}
	p.files.Add(1)
	return nil
}

// pathless takes the path out of an error of package os, where the caller adds it.
func pathless(err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		return pe.Err
	case errors.As(err, &le):
		return le.Err
	}
	return err
}
