package main

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

const getHelp = `get SRC... DST copies files from the store to here.

Each file is written beside its place under a temporary name and renamed when it is complete
and verified, so DST is the old or the new file, whole. Modification times and modes are
restored, of directories too, and holes stay holes. DST may be "-" for standard output.

If DST ends with "/" or is a folder here, things go into it under their own names; otherwise
DST is the new name itself, of the file or, with -r, of the folder:
  get -r backup/photos here/    makes here/photos/...
  get -r backup/photos here     makes here/photos/... if here is there, else here/...

With -r nothing is written outside of the folder that is made: a symbolic link in it that leads out
of it is an error of the files behind it.`

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
				if o.dry {
					return usagef("--dry-run: standard output is no place to leave out")
				}
				return a.cat(cmd.Context(), args[:last], client.ReadOptions{})
			}
			return a.get(cmd.Context(), args[:last], args[last], o)
		},
	}
	o.flags(cmd, "directories")
	return cmd
}

// getter carries out one get.
type getter struct {
	transfer
	places []*place
}

func (a *app) get(ctx context.Context, srcs []string, dst string, o transferOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if dst == "" {
		return usagef("the target is empty; . is the present folder")
	}
	st, err := os.Stat(dst)
	into := os.IsPathSeparator(dst[len(dst)-1]) || err == nil && st.IsDir()
	if len(srcs) > 1 && !into {
		return usagef("%q is not a folder; end it with / to get several things into it", dst)
	}
	g := getter{transfer: a.transfer(ctx, srcs, o)}
	g.expect(g.ctx, func(ctx context.Context) (int64, error) { return a.storedSize(ctx, srcs) })
	for _, src := range srcs {
		g.source(ctx, src, dst, into, o)
	}
	_ = g.g.Wait() // what directories are like is set when nothing is made in them any more
	for _, p := range g.places {
		p.finish(g.fail)
	}
	return g.end(ctx, "got")
}

// source starts on one argument.
func (g *getter) source(ctx context.Context, src, dst string, into bool, o transferOptions) {
	name, _ := storeName(src)
	if name == "" {
		if !o.recursive {
			g.fail(src, errors.New("is a directory; use -r"))
			return
		}
		g.folder(nil, name, dst)
		return
	}
	if into {
		base := path.Base(name)
		if !filepath.IsLocal(base) {
			g.fail(name, errors.New("its last part is no name for a file here"))
			return
		}
		dst = filepath.Join(dst, base)
	}
	f, err := g.a.c.Stat(ctx, name)
	switch {
	case err != nil:
		g.fail(name, err)
	case isDirectory(f) && !o.recursive:
		g.fail(name, errors.New("is a directory; use -r"))
	case isDirectory(f):
		g.folder(f, name, dst)
	case g.dry:
		g.would(name, dst, f.GetSize())
	default:
		// A link in the way to a place that was named here is the caller's own.
		g.do(name, func(ctx context.Context) error {
			p, err := openPlace(filepath.Dir(dst))
			if err != nil {
				return err
			}
			defer p.root.Close()
			return g.file(ctx, name, p, filepath.Base(dst))
		})
	}
}

// folder starts on everything under the directory src of the store; top is that directory, nil for the root.
func (g *getter) folder(top *client.File, src, dst string) {
	var p *place
	if !g.dry {
		var err error
		if p, err = openPlace(dst); err != nil {
			g.fail(dst, err)
			return
		}
		g.places = append(g.places, p)
		p.directory(".", top)
	}
	for f, err := range g.a.c.List(g.ctx, src, client.ListOptions{Recursive: true}) {
		if err != nil {
			g.fail(src, err)
			return
		}
		name := f.GetName()
		rel := filepath.FromSlash(strings.TrimPrefix(strings.TrimPrefix(name, src), "/"))
		switch {
		case !filepath.IsLocal(rel):
			g.fail(name, errors.New("is no path for this machine"))
		case isDirectory(f):
			g.directories.Add(1)
			if g.dry {
				continue
			}
			// A directory comes before what is in it, so it is made here and not in turn.
			if err := p.root.MkdirAll(rel, 0o777); err != nil {
				g.fail(name, p.at(rel, err))
				continue
			}
			p.directory(rel, f)
		case g.dry:
			g.would(name, filepath.Join(dst, rel), f.GetSize())
		default:
			g.do(name, func(ctx context.Context) error { return g.file(ctx, name, p, rel) })
		}
	}
}
