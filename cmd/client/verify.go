package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// verified is what verify answers.
type verified struct {
	Equal       bool   `json:"equal"`
	Difference  string `json:"difference,omitempty"` // the first one
	Files       int64  `json:"files"`                // that were compared and are equal
	Directories int64  `json:"directories"`
	Bytes       int64  `json:"bytes"`
	Skipped     int64  `json:"skipped"`
}

func (a *app) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify LOCAL NAME",
		Short: "compare a file or folder here with the store",
		Long: `verify compares a file here, or a folder with everything in it, with what the store holds, byte by
byte, each block held against its stored checksum on the way. It says what the first difference is and
exits with 1; with 0 if there is none. Times and modes are not compared. NAME is the thing itself, not
the directory that it is in.

Symbolic links and special files inside a folder are skipped, as put does.`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.verify(cmd.Context(), args[0], args[1]) },
	}
}

func (a *app) verify(ctx context.Context, local, arg string) error {
	st, err := os.Stat(local)
	if err != nil {
		return named(local, pathless(err))
	}
	name, _ := storeName(arg)
	directory := name == ""
	if !directory {
		f, err := a.c.Stat(ctx, name)
		if err != nil {
			return named(name, err)
		}
		directory = isDirectory(f)
	}
	v := verifier{a: a, progress: a.progress()}
	switch {
	case st.IsDir() && directory:
		v.expect(ctx, func(ctx context.Context) (int64, error) { return localSize(ctx, local) })
		err = v.folder(ctx, local, name)
	case st.IsDir():
		err = differf(name, "is a folder here and a file in the store")
	case directory:
		err = differf(arg, "is a file here and a directory in the store")
	default:
		v.expect(ctx, func(context.Context) (int64, error) { return st.Size(), nil })
		err = named(name, v.file(ctx, local, name))
	}
	v.done()
	var d *difference
	if err != nil && !errors.As(err, &d) {
		return err
	}
	j := verified{
		Equal: err == nil, Files: v.files.Load(), Directories: v.directories.Load(), Bytes: v.bytes.Load(), Skipped: v.skipped.Load(),
	}
	if err != nil {
		j.Difference = err.Error()
		if a.output != "json" {
			return err
		}
	}
	return errors.Join(err, a.done(j, "equal: %s, %s", count(uint64(j.Files), "file"), size(j.Bytes)))
}

// difference is where the two sides are not the same.
type difference struct{ what string }

func (d *difference) Error() string { return d.what }

// differf returns a difference in name.
func differf(name, format string, args ...any) error {
	return named(name, &difference{fmt.Sprintf(format, args...)})
}

// verifier carries out one verify.
type verifier struct {
	a *app
	*progress
}

// folder walks both sides in the same order, and stops at the first entry that is not in both.
func (v *verifier) folder(ctx context.Context, local, name string) error {
	here, stopHere := iter.Pull2(v.localTree(local, ""))
	defer stopHere()
	there, stopThere := iter.Pull2(v.a.c.List(ctx, name, client.ListOptions{Recursive: true}))
	defer stopThere()
	for {
		l, lerr, lok := here()
		f, ferr, fok := there()
		switch {
		case lerr != nil:
			return lerr
		case ferr != nil:
			return named(name, ferr)
		case !lok && !fok:
			return nil
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(f.GetName(), name), "/")
		if isDirectory(f) {
			rel += "/"
		}
		// What comes earlier in the order is missing on the other side.
		switch {
		case lok && (!fok || l < rel):
			if strings.HasSuffix(l, "/") {
				return differf(join(name, l), "the folder is not in the store")
			}
			return differf(join(name, l), "the file is not in the store")
		case !lok || rel < l:
			if isDirectory(f) {
				return differf(f.GetName(), "the directory is not in %s", local)
			}
			return differf(f.GetName(), "the file is not in %s", local)
		case isDirectory(f):
			v.directories.Add(1)
		default:
			if err := v.file(ctx, filepath.Join(local, filepath.FromSlash(l)), f.GetName()); err != nil {
				return named(f.GetName(), err)
			}
		}
	}
}

// localTree walks what is below dir/rel in the order in which the store lists: by whole path, a folder with
// a slash at its end. Paths are relative to dir.
func (v *verifier) localTree(dir, rel string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { v.localStep(dir, rel, yield) }
}

func (v *verifier) localStep(dir, rel string, yield func(string, error) bool) bool {
	entries, err := os.ReadDir(filepath.Join(dir, filepath.FromSlash(rel)))
	if err != nil {
		return yield("", err)
	}
	keys := make([]string, 0, len(entries))
	for _, e := range entries {
		switch {
		case e.IsDir():
			keys = append(keys, rel+e.Name()+"/")
		case e.Type().IsRegular():
			keys = append(keys, rel+e.Name())
		default:
			v.skipped.Add(1)
			v.a.warn("%s: skipped: it is neither a file nor a folder", filepath.Join(dir, filepath.FromSlash(rel), e.Name()))
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if !yield(k, nil) {
			return false
		}
		if strings.HasSuffix(k, "/") && !v.localStep(dir, k, yield) {
			return false
		}
	}
	return true
}

// file compares one file.
func (v *verifier) file(ctx context.Context, local, name string) error {
	f, err := os.Open(local)
	if err != nil {
		return fmt.Errorf("%s: %w", local, pathless(err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", local, pathless(err))
	}
	r, err := v.a.c.Read(ctx, name, client.ReadOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	if here, there := st.Size(), r.File().GetSize(); here != there {
		return &difference{fmt.Sprintf("has %d bytes here and %d in the store", here, there)}
	}
	if _, err := r.WriteTo(&comparer{f: f, p: v.progress}); err != nil {
		return err
	}
	v.files.Add(1)
	return nil
}
