package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/shingle-store/shingle/internal/errdefs"
)

const (
	// MaxNameLen is the longest component of a path, in bytes.
	MaxNameLen = 255
	// MaxDepth is the most components of a path.
	MaxDepth = 256
	// maxWalk bounds walks over parents and recursive listings in a damaged store. It is far
	// above MaxDepth because moving a deep directory below another takes its depth along.
	maxWalk = 1 << 16
)

// CheckName returns InvalidArgument about field "name" unless name can be a component of a
// path: 1 to 255 bytes of UTF-8, not "." or "..", without "/" and NUL.
func CheckName(name string) error {
	msg := ""
	switch {
	case name == "":
		msg = "a path component is empty"
	case len(name) > MaxNameLen:
		msg = fmt.Sprintf("a path component has %d bytes, at most %d are allowed", len(name), MaxNameLen)
	case name == "." || name == "..":
		msg = `"." and ".." are no names`
	case strings.ContainsAny(name, "/\x00"):
		msg = `a path component holds "/" or NUL`
	case !utf8.ValidString(name):
		msg = "a path component is not UTF-8"
	}
	if msg == "" {
		return nil
	}
	return errdefs.Invalid("store.CheckName", "name", msg)
}

// SplitPath returns the checked components of a path; "" is the root and has none.
func SplitPath(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	parts := strings.Split(path, "/")
	if len(parts) > MaxDepth {
		return nil, errdefs.Invalid("store.SplitPath", "name", fmt.Sprintf("a path has at most %d components", MaxDepth))
	}
	for _, p := range parts {
		if err := CheckName(p); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// KeyForm returns path as listings order it: with a "/" at the end if it is a directory.
func KeyForm(path string, dir bool) string {
	if dir {
		return path + "/"
	}
	return path
}

func nameKey(parent uint64, keyForm string) []byte {
	k := make([]byte, 0, 8+len(keyForm))
	return append(binary.BigEndian.AppendUint64(k, parent), keyForm...)
}

func decodeName(p []byte) (id uint64, err error) {
	err = eachField(p, func(f field) error {
		if f.num == 1 {
			return number(f, &id, max64)
		}
		return nil
	})
	if err == nil && id == 0 {
		err = errWire
	}
	return id, err
}

func (tx *Tx) nameAt(parent uint64, keyForm string) (id uint64, ok bool, err error) {
	key := nameKey(parent, keyForm)
	p, ok, err := tx.get(bNames, key)
	if err != nil || !ok {
		return 0, false, err
	}
	id, err = decodeName(p)
	return id, err == nil, badRecord(bNames, key, err)
}

// Lookup returns the node id of name in parent, under either key form; ok is false if there
// is none.
func (tx *Tx) Lookup(parent uint64, name string) (id uint64, dir, ok bool, err error) {
	if id, ok, err = tx.nameAt(parent, name); ok || err != nil {
		return id, false, ok, err
	}
	id, ok, err = tx.nameAt(parent, name+"/")
	return id, true, ok, err
}

// named reads the node that a name points to: a missing one is Corruption.
func (tx *Tx) named(id uint64, path string) (Node, error) {
	n, err := tx.Node(id)
	if errdefs.Is(err, errdefs.NotFound) {
		err = corrupt("store.Resolve", path, fmt.Sprintf("the name points to node %d, which does not exist", id))
	}
	return n, err
}

func notADirectory(op, object string) error {
	return errdefs.New(errdefs.Precondition, errdefs.ReasonNotADirectory, op, object, "is not a directory")
}

// Resolve returns the node at path; "" is the root. Errors: InvalidArgument for a bad path;
// NotFound; Precondition/NOT_A_DIRECTORY when a component before the last is a file.
func (tx *Tx) Resolve(path string) (Node, error) {
	const op = "store.Resolve"
	parts, err := SplitPath(path)
	if err != nil {
		return Node{}, err
	}
	at := uint64(RootID)
	for i, name := range parts {
		id, dir, ok, err := tx.Lookup(at, name)
		if err != nil {
			return Node{}, err
		}
		if !ok {
			return Node{}, notFound(op, path)
		}
		if !dir && i < len(parts)-1 {
			return Node{}, notADirectory(op, strings.Join(parts[:i+1], "/"))
		}
		at = id
	}
	return tx.named(at, path)
}

// MakeParents makes the missing directories above the last component of path and returns
// the directory that it belongs in and its name. mk supplies each new directory's id, times
// and generation; the rest is filled in. Everything that can be refused is refused before
// the first change: InvalidArgument for a bad or empty path, Precondition/NOT_A_DIRECTORY.
func (tx *Tx) MakeParents(path string, mk func() (Node, error)) (parent uint64, leaf string, err error) {
	const op = "store.MakeParents"
	parts, err := SplitPath(path)
	if err != nil {
		return 0, "", err
	}
	if len(parts) == 0 {
		return 0, "", errdefs.Invalid(op, "name", "the root has no name")
	}
	dirs, leaf := parts[:len(parts)-1], parts[len(parts)-1]
	parent = RootID
	for i, name := range dirs {
		id, dir, ok, err := tx.Lookup(parent, name)
		if err != nil {
			return 0, "", err
		}
		if ok && !dir {
			return 0, "", notADirectory(op, strings.Join(dirs[:i+1], "/"))
		}
		if ok {
			parent = id
			continue
		}
		for _, name := range dirs[i:] {
			n, err := mk()
			if err != nil {
				return 0, "", err
			}
			n.Kind = Directory
			if err := tx.Link(parent, name, n); err != nil {
				return 0, "", err
			}
			parent = n.ID
		}
		break
	}
	return parent, leaf, nil
}

// Link gives n the name name in the directory parent and writes it, with Parent and Name
// set. Errors, all before any change: AlreadyExists if the name is taken under either key
// form; NotFound or Precondition/NOT_A_DIRECTORY about parent; InvalidArgument for a bad
// name, for a directory put below itself and for a path deeper than MaxDepth.
func (tx *Tx) Link(parent uint64, name string, n Node) error {
	const op = "store.Link"
	if err := CheckName(name); err != nil {
		return err
	}
	p, err := tx.Node(parent)
	if err != nil {
		return err
	}
	if p.Kind != Directory {
		return notADirectory(op, nodeObject(parent))
	}
	_, _, taken, err := tx.Lookup(parent, name)
	if err != nil {
		return err
	}
	if taken {
		return errdefs.New(errdefs.AlreadyExists, "", op, name, "the name is taken")
	}
	if n.Kind == Directory {
		above, err := tx.ancestors(parent)
		if err != nil {
			return err
		}
		if len(above) >= MaxDepth {
			return errdefs.Invalid(op, "name", fmt.Sprintf("a path has at most %d components", MaxDepth))
		}
		for _, a := range above {
			if a.ID == n.ID {
				return errdefs.Invalid(op, "name", "a directory cannot be moved below itself")
			}
		}
	}
	n.Parent, n.Name = parent, name
	if err := tx.PutNode(n); err != nil {
		return err
	}
	return tx.put(bNames, nameKey(parent, KeyForm(name, n.Kind == Directory)), putUint(nil, 1, n.ID))
}

// Unlink removes the name of n (as n.Parent, n.Name and n.Kind say it) and clears both in
// the stored node, so that it is then to be linked again, made an orphan or deleted. A copy
// of n that the caller keeps still holds the old name. Corruption if the name does not point
// to n.
func (tx *Tx) Unlink(n Node) error {
	form := KeyForm(n.Name, n.Kind == Directory)
	id, ok, err := tx.nameAt(n.Parent, form)
	if err != nil {
		return err
	}
	if !ok || id != n.ID {
		return corrupt("store.Unlink", nodeObject(n.ID), fmt.Sprintf("the name %q in node %d does not point to it", form, n.Parent))
	}
	if err := tx.del(bNames, nameKey(n.Parent, form)); err != nil {
		return err
	}
	n.Parent, n.Name = 0, ""
	return tx.PutNode(n)
}

// Empty reports whether directory id has no children.
func (tx *Tx) Empty(id uint64) (bool, error) {
	k, _, err := tx.cursor(bNames).seek(key64(id))
	return !bytes.HasPrefix(k, key64(id)), err
}

// Children calls fn for the names in directory parent that come after the key form after
// ("" for all), in byte order of key forms, until it returns false.
func (tx *Tx) Children(parent uint64, after string, fn func(name string, dir bool, id uint64) bool) error {
	prefix := key64(parent)
	from := nameKey(parent, after)
	c := tx.cursor(bNames)
	for k, p, err := c.seek(from); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(k, prefix) {
			return nil
		}
		if bytes.Equal(k, from) {
			continue
		}
		id, err := decodeName(p)
		if err != nil {
			return badRecord(bNames, k, err)
		}
		name, dir := strings.CutSuffix(string(k[8:]), "/")
		if !fn(name, dir, id) {
			return nil
		}
	}
	return nil
}

// ancestors returns the node and those above it up to and with the root.
func (tx *Tx) ancestors(id uint64) ([]Node, error) {
	var up []Node
	for range maxWalk {
		n, err := tx.Node(id)
		if err != nil {
			return nil, err
		}
		up = append(up, n)
		if n.Parent == 0 {
			return up, nil
		}
		id = n.Parent
	}
	return nil, corrupt("store.Path", nodeObject(id), "the parents go round in a circle or too deep")
}

// Path returns the path of node id, found by its parents. The root's is "". NotFound if the
// node, or one above it, has no name.
func (tx *Tx) Path(id uint64) (string, error) {
	up, err := tx.ancestors(id)
	if err != nil {
		return "", err
	}
	if up[len(up)-1].ID != RootID {
		return "", errdefs.New(errdefs.NotFound, "", "store.Path", nodeObject(id), "the node has no name")
	}
	var b strings.Builder
	for i := len(up) - 2; i >= 0; i-- {
		b.WriteString(up[i].Name)
		if i > 0 {
			b.WriteByte('/')
		}
	}
	return b.String(), nil
}
