package main

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/shingle-store/shingle/api/client"
)

// storeName reads a name in the store from the command line. Slashes at either end are
// allowed; folder says that there was one at the end, or nothing else. "" is the root.
func storeName(arg string) (name string, folder bool) {
	name = strings.Trim(arg, "/")
	return name, name == "" || strings.HasSuffix(arg, "/")
}

// isFolder reports whether name is a directory in the store. A missing name is not.
func (a *app) isFolder(ctx context.Context, name string) (bool, error) {
	f, err := a.c.Stat(ctx, name)
	if client.IsNotFound(err) {
		return false, nil
	}
	return err == nil && isDirectory(f), err
}

// target says whether dst stands for a folder that things go into, by cp's rule: it ends in
// a slash or is a directory already.
func (a *app) target(ctx context.Context, dst string) (name string, into bool, err error) {
	name, into = storeName(dst)
	if !into {
		into, err = a.isFolder(ctx, name)
	}
	return name, into, err
}

// join puts rel under the folder dir of the store, "" being the root.
func join(dir, rel string) string {
	return strings.TrimPrefix(path.Join(dir, rel), "/")
}

// named puts what an error is about before it, as people typed it; the root has no name.
func named(name string, err error) error {
	if name == "" || err == nil {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}
