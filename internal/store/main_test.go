package store

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		os.Exit(damagedChild(path))
	}
	flag.Parse()
	debug.SetGCPercent(200) // the models make much garbage and keep little
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		f.Value.Set("12")
		if testing.Short() {
			f.Value.Set("4")
		}
	}
	goleak.VerifyTestMain(m)
}

const (
	testZone   = 1 << 20
	testGroups = 8
)

func testInit() Init {
	in := Init{Superblock: Superblock{
		StoreUUID: [16]byte{1, 2, 3}, ZoneSize: testZone, Created: 1_700_000_000_000_000_000, StartCounter: 1, NodeIDLimit: 1 << 20,
	}}
	in.Devices = []Device{{UUID: in.Superblock.StoreUUID, ZoneSize: testZone, Zones: testGroups + 2, Dialect: 1}}
	for i := range uint32(testGroups) {
		in.BlockGroups = append(in.BlockGroups, BlockGroup{
			Slot: i, Kind: 1, Class: 1, Places: []Place{{Zone: i + 2}}, Capacity: testZone - 2*extent.BlockSize,
		})
	}
	return in
}

var testOptions = Options{NoSync: true, MaxBytes: 64 << 20}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func newStoreAt(t fataler, path string, o Options) *Store {
	t.Helper()
	if err := Create(path, testInit(), o); err != nil {
		t.Fatalf("create: %v", err)
	}
	s, err := Open(path, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func newStore(t *testing.T) *Store {
	t.Helper()
	s := newStoreAt(t, filepath.Join(t.TempDir(), "meta"), testOptions)
	t.Cleanup(func() { s.Close() })
	return s
}

func update(t fataler, s *Store, fn func(tx *Tx) error) {
	t.Helper()
	if err := s.Update(fn); err != nil {
		t.Fatalf("update: %v", err)
	}
}

func view(t fataler, s *Store, fn func(tx *Tx) error) {
	t.Helper()
	if err := s.View(fn); err != nil {
		t.Fatalf("view: %v", err)
	}
}

func problems(t fataler, s *Store) []string {
	t.Helper()
	var ps []string
	if err := s.Check(context.Background(), func(p Problem) { ps = append(ps, p.String()) }); err != nil {
		t.Fatalf("check: %v", err)
	}
	return ps
}

func wantSound(t fataler, s *Store) {
	t.Helper()
	if ps := problems(t, s); len(ps) > 0 {
		t.Fatalf("check found %d problems, the first: %s", len(ps), strings.Join(ps, "\n"))
	}
}

func wantKind(t fataler, err error, k errdefs.Kind, r errdefs.Reason) {
	t.Helper()
	if !errdefs.Is(err, k) || errdefs.ReasonOf(err) != r {
		t.Fatalf("got %v (%v/%s), want %v/%s", err, errdefs.KindOf(err), errdefs.ReasonOf(err), k, r)
	}
}

// addFile links a new file; ids come from the caller.
func addFile(tx *Tx, id uint64, path string) error {
	next := 10_000 + id*16 // room for the directories of one path
	parent, leaf, err := tx.MakeParents(path, func() (Node, error) { next++; return Node{ID: next}, nil })
	if err != nil {
		return err
	}
	return tx.Link(parent, leaf, Node{ID: id, Kind: File})
}

func testSum(a extent.Addr) uint32 { return uint32(a/extent.BlockSize)*2654435761 + 7 }

func testSums(a extent.Addr, blocks int64) []uint32 {
	sums := make([]uint32, blocks)
	for i := range sums {
		sums[i] = testSum(a + extent.Addr(i*extent.BlockSize))
	}
	return sums
}

func rawExtent(a extent.Addr, length int64) NewExtent {
	n := extent.BlocksFor(length)
	return NewExtent{Addr: a, Blocks: n, Sums: testSums(a, n), Length: length}
}

func framedExtent(a extent.Addr, frames ...extent.Frame) NewExtent {
	n := NewExtent{Addr: a, Codec: extent.CodecZstd, Frames: frames}
	for _, f := range frames {
		n.Blocks += f.Blocks()
		n.Length += int64(f.Raw)
	}
	n.Sums = testSums(a, n.Blocks)
	return n
}

// write drops the range and inserts exts, as the engine does, and keeps the node right.
func write(tx *Tx, file uint64, off int64, exts ...NewExtent) (dropped, added Delta, err error) {
	n, err := tx.Node(file)
	if err != nil {
		return dropped, added, err
	}
	end := off
	for _, x := range exts {
		end += x.Length
	}
	if dropped, _, _, err = tx.DropRange(file, off, end, 0); err != nil {
		return dropped, added, err
	}
	if added, err = tx.InsertExtents(file, off, exts); err != nil {
		return dropped, added, err
	}
	n.Add(dropped)
	n.Add(added)
	n.Size = max(n.Size, end)
	return dropped, added, tx.PutNode(n)
}

func drop(tx *Tx, file uint64, off, end int64) (Delta, error) {
	n, err := tx.Node(file)
	if err != nil {
		return Delta{}, err
	}
	d, done, _, err := tx.DropRange(file, off, end, 0)
	if err == nil && !done {
		err = fmt.Errorf("an unlimited drop was not done")
	}
	if err != nil {
		return d, err
	}
	n.Add(d)
	return d, tx.PutNode(n)
}

// clone makes dst share what src maps in [off, end), at off+shift. dst has nothing there.
func clone(tx *Tx, src, dst uint64, off, end, shift int64) error {
	var fes []FileExtent
	if err := tx.FileExtents(src, off, end, func(e FileExtent) bool { fes = append(fes, e); return true }); err != nil {
		return err
	}
	n, err := tx.Node(dst)
	if err != nil {
		return err
	}
	for _, e := range fes {
		u, err := tx.extentAt(e.Addr)
		if err != nil {
			return err
		}
		s, err := u.place(&e)
		if err != nil {
			return err
		}
		line := s.from - e.Off
		from, to := max(e.Off, off), min(e.End(), end)
		s = span{from + line, to + line}
		x := u.Extent
		x.Shared = true
		if err := tx.putExtent(&x); err != nil {
			return err
		}
		ne := u.fileExtent(dst, from+shift, s)
		if err := tx.putMapping(u, ne, s); err != nil {
			return err
		}
		n.Size = max(n.Size, ne.End())
	}
	// The counts are recomputed by the checker's rule: this helper is for tests only.
	fc := &fileCheck{checker: &checker{tx: tx, report: func(Problem) {}}}
	n.StoredBytes, n.AllocatedBytes = 0, 0
	err = tx.FileExtents(dst, 0, extent.MaxFileSize, func(e FileExtent) bool {
		n.StoredBytes += fc.mapping(e.key(), &e)
		n.AllocatedBytes += e.Len
		return true
	})
	if err != nil {
		return err
	}
	return tx.PutNode(n)
}
