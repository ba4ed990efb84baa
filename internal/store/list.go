package store

import (
	"errors"
	"strings"
)

var errStopList = errors.New("stop")

// List calls fn for the entries of the directory at path prefix ("" is the root), or with
// recursive for everything below it, in byte order of their whole paths in key form
// (directories sort as name + "/", so one comes right before what is in it). Paths given to
// fn are whole and without the slash; the node's kind tells.
//
// startAfter ("" for the start) is a whole path in key form: only entries with a greater key
// form are listed. Nothing need exist under it, now or ever. At most limit entries are
// listed (0: all); next is the key form to start after for the rest, "" when there is none.
//
// Errors: fn's; those of Resolve about prefix; Precondition/NOT_A_DIRECTORY.
func (tx *Tx) List(prefix, startAfter string, recursive bool, limit int, fn func(path string, n Node) error) (next string, err error) {
	dir, err := tx.Resolve(prefix)
	if err != nil {
		return "", err
	}
	if dir.Kind != Directory {
		return "", notADirectory("store.List", prefix)
	}
	base := ""
	if prefix != "" {
		base = prefix + "/"
	}
	after, inside := strings.CutPrefix(startAfter, base)
	if !inside {
		if startAfter > base {
			return "", nil
		}
		after = ""
	}
	l := lister{tx: tx, recursive: recursive, limit: limit, fn: fn}
	err = l.walk(dir.ID, base, after, 0)
	if errors.Is(err, errStopList) {
		return l.last, nil
	}
	return "", err
}

type lister struct {
	tx        *Tx
	recursive bool
	limit     int
	fn        func(string, Node) error
	count     int
	last      string // key form of the last entry listed
}

// walk lists what comes after after in directory id, whose path with its slash is base.
func (l *lister) walk(id uint64, base, after string, depth int) error {
	if depth > maxWalk {
		return corrupt("store.List", base, "the directories go round in a circle or too deep")
	}
	// after may lie inside a directory that itself comes before it.
	if comp, rest, ok := strings.Cut(after, "/"); ok && l.recursive {
		sub, found, err := l.tx.nameAt(id, comp+"/")
		if err != nil {
			return err
		}
		if found {
			if err := l.walk(sub, base+comp+"/", rest, depth+1); err != nil {
				return err
			}
		}
	}
	var failed error
	err := l.tx.Children(id, after, func(name string, dir bool, child uint64) bool {
		failed = l.entry(base+name, dir, child, depth)
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	return err
}

func (l *lister) entry(path string, dir bool, id uint64, depth int) error {
	if l.limit > 0 && l.count == l.limit {
		return errStopList
	}
	n, err := l.tx.named(id, path)
	if err != nil {
		return err
	}
	if dir != (n.Kind == Directory) {
		return corrupt("store.List", path, "the name and the node disagree about whether it is a directory")
	}
	if err := l.fn(path, n); err != nil {
		return err
	}
	l.count++
	l.last = KeyForm(path, dir)
	if dir && l.recursive {
		return l.walk(id, path+"/", "", depth+1)
	}
	return nil
}
