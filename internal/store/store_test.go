package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "meta")
	s := newStoreAt(t, path, testOptions)
	view(t, s, func(tx *Tx) error {
		sb := tx.Superblock()
		if sb.FormatVersion != FormatVersion || sb.CommitSequence != 1 || sb.ZoneSize != testZone || tx.CommitSequence() != 1 {
			t.Errorf("superblock %+v", sb)
		}
		if d, err := tx.Device(0); err != nil || d.Zones != testGroups+2 {
			t.Errorf("device %+v, %v", d, err)
		}
		if _, err := tx.Device(1); !errdefs.Is(err, errdefs.NotFound) {
			t.Errorf("a device that is not there: %v", err)
		}
		n := 0
		if err := tx.BlockGroups(func(g BlockGroup) error { n++; return nil }); err != nil || n != testGroups {
			t.Errorf("%d block groups, %v", n, err)
		}
		root, err := tx.Resolve("")
		if root.ID != RootID || root.Kind != Directory {
			t.Errorf("root %+v", root)
		}
		return err
	})
	wantSound(t, s)
	s.Close()
	wantKind(t, Create(path, testInit(), testOptions), errdefs.AlreadyExists, "")
	bad := testInit()
	bad.Superblock.ZoneSize = 100
	wantKind(t, Create(filepath.Join(dir, "b"), bad, testOptions), errdefs.InvalidArgument, "")
	wantKind(t, Create(filepath.Join(dir, "b"), testInit(), Options{MaxBytes: 1}), errdefs.InvalidArgument, "")
	if err := os.WriteFile(path+"2.new", []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	newStoreAt(t, path+"2", testOptions).Close()
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 2 {
		t.Errorf("files left: %v", names)
	}
}

// TestSyncedStore runs with syncs and preallocation, as in use.
func TestSyncedStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	o := Options{MaxBytes: 4 << 20}
	s := newStoreAt(t, path, o)
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "a/b") })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	view(t, s, func(tx *Tx) error { _, err := tx.Resolve("a/b"); return err })
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.View(func(*Tx) error { return nil }); !errdefs.Is(err, errdefs.Unavailable) {
		t.Fatalf("view after close: %v", err)
	}
	wantKind(t, s.Update(func(*Tx) error { return nil }), errdefs.Unavailable, errdefs.ReasonDraining)
}

func TestUpdateIsAllOrNothing(t *testing.T) {
	s := newStore(t)
	err := s.Update(func(tx *Tx) error {
		if err := addFile(tx, 10, "a"); err != nil {
			return err
		}
		tx.SetSuperblock(func(sb *Superblock) { sb.StartCounter = 99 })
		return errBad
	})
	if !errors.Is(err, errBad) {
		t.Fatal(err)
	}
	view(t, s, func(tx *Tx) error {
		if _, err := tx.Resolve("a"); !errdefs.Is(err, errdefs.NotFound) {
			t.Errorf("an undone file is there: %v", err)
		}
		if tx.CommitSequence() != 1 || tx.Superblock().StartCounter != 1 {
			t.Errorf("superblock %+v", tx.Superblock())
		}
		return nil
	})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the caller's own panic was swallowed")
			}
		}()
		s.Update(func(*Tx) error { panic("mine") })
	}()
	update(t, s, func(tx *Tx) error {
		tx.SetSuperblock(func(sb *Superblock) { sb.CommitSequence, sb.ZoneSize, sb.Clean = 77, 1, true })
		if tx.CommitSequence() != 2 {
			t.Errorf("commit sequence %d", tx.CommitSequence())
		}
		return nil
	})
	view(t, s, func(tx *Tx) error {
		if sb := tx.Superblock(); sb.CommitSequence != 2 || sb.ZoneSize != testZone || !sb.Clean {
			t.Errorf("superblock %+v", sb)
		}
		return nil
	})
}

func TestFeatureFlags(t *testing.T) {
	for _, c := range []struct {
		name     string
		set      func(*Superblock)
		refused  bool
		readOnly bool
	}{
		{"compatible", func(s *Superblock) { s.Compatible = 1 << 63 }, false, false},
		{"read-only-compatible", func(s *Superblock) { s.ReadOnlyCompatible = 1 }, false, true},
		{"segment summaries", func(s *Superblock) { s.Incompatible = 1 }, true, false},
		{"both", func(s *Superblock) { s.Incompatible, s.ReadOnlyCompatible = 1<<40, 1 }, true, false},
		{"newer format", func(s *Superblock) { s.FormatVersion = 2 }, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "meta")
			s := newStoreAt(t, path, testOptions)
			update(t, s, func(tx *Tx) error { tx.SetSuperblock(c.set); return nil })
			s.Close()
			before, _ := os.ReadFile(path)
			s, err := Open(path, testOptions)
			if c.refused {
				wantKind(t, err, errdefs.Precondition, errdefs.ReasonUnknownFeature)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if s.ReadOnly() != c.readOnly {
				t.Fatalf("read only: %v", s.ReadOnly())
			}
			if c.readOnly {
				wantKind(t, s.Update(func(*Tx) error { return nil }), errdefs.ReadOnly, errdefs.ReasonReadOnly)
				view(t, s, func(tx *Tx) error { _, err := tx.Resolve(""); return err })
				s.Close()
				if after, _ := os.ReadFile(path); string(after) != string(before) {
					t.Fatal("a store open for reading only was written to")
				}
			}
		})
	}
}

func TestOneProcessAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := newStoreAt(t, path, testOptions)
	_, err := Open(path, testOptions)
	wantKind(t, err, errdefs.Unavailable, errdefs.ReasonInUse)
	s.Close()
	if s, err = Open(path, testOptions); err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// TestTheBoundHolds fills the metadata until it is refused, frees, and goes on.
func TestTheBoundHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	o := Options{NoSync: true, MaxBytes: MinMaxBytes}
	s := newStoreAt(t, path, o)
	defer s.Close()
	put := func(id uint64) func(tx *Tx) error {
		return func(tx *Tx) error {
			return tx.Link(RootID, strings.Repeat("x", 200)+string(rune('0'+id%10))+time.Duration(id).String(),
				Node{ID: id, Kind: File, RequestID: strings.Repeat("r", 1000)})
		}
	}
	id := uint64(2)
	var err error
	for ; err == nil; id++ {
		if err = s.Update(put(id)); id > 10000 {
			t.Fatal("never full")
		}
	}
	wantKind(t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
	if s.ReadOnly() {
		t.Fatal("a full store must not refuse changes for good")
	}
	if st := s.Stats(); st.FileBytes > MinMaxBytes || st.UsedBytes < MinMaxBytes*3/4 {
		t.Fatalf("stats when full: %+v", st)
	}
	last := id - 1
	wantSound(t, s)
	for id := uint64(2); id < last; id++ {
		if err := s.UpdateFreeing(func(tx *Tx) error {
			n, err := tx.Node(id)
			if err != nil {
				return err
			}
			if err := tx.Unlink(n); err != nil {
				return err
			}
			return tx.DeleteNode(id)
		}); err != nil {
			t.Fatalf("delete on a full store: %v (%+v)", err, s.Stats())
		}
	}
	for range 10 {
		update(t, s, put(last))
		last++
	}
	wantSound(t, s)
	if fi, _ := os.Stat(path); fi.Size() > MinMaxBytes {
		t.Fatalf("the file has %d bytes", fi.Size())
	}
}

func TestFailedCommitStopsWritingOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := newStoreAt(t, path, testOptions)
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "a") })
	s.file.Close()
	wantKind(t, s.Update(func(tx *Tx) error { return addFile(tx, 11, "b") }), errdefs.ReadOnly, errdefs.ReasonReadOnly)
	wantKind(t, s.Update(func(tx *Tx) error { t.Error("ran"); return nil }), errdefs.ReadOnly, errdefs.ReasonReadOnly)
	if !s.ReadOnly() {
		t.Fatal("still takes changes")
	}
	view(t, s, func(tx *Tx) error { _, err := tx.Resolve("a"); return err })
	s.Close()
	s, err := Open(path, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	update(t, s, func(tx *Tx) error { return addFile(tx, 11, "b") })
	wantSound(t, s)
}

// TestFreelistIsLeftOutWhenLong: commits leave a long free list out, a clean close writes it,
// and an open without it finds the free pages again.
func TestFreelistIsLeftOutWhenLong(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "meta")
	s := newStoreAt(t, path, testOptions)
	s.freelistSync = -1
	fill(t, s, 40)
	synced := func(p string) bool {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		m, n := metaOf(b, 0), metaOf(b, 1)
		if n.txid > m.txid {
			m = n
		}
		return m.freelist != noFreelist
	}
	if synced(path) {
		t.Fatal("the free list was written")
	}
	image, _ := os.ReadFile(path)
	crashed := filepath.Join(dir, "crashed")
	if err := os.WriteFile(crashed, image, 0o600); err != nil {
		t.Fatal(err)
	}
	free := s.Stats().FreePages
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !synced(path) {
		t.Fatal("a clean close left the free list out")
	}
	c, err := Open(crashed, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.Stats().FreePages; got < free {
		t.Fatalf("%d free pages found after a crash, %d before", got, free)
	}
	wantSound(t, c)
	update(t, c, func(tx *Tx) error { return nil })
	if !synced(crashed) {
		t.Fatal("a short free list was left out")
	}
}

func TestLimitedDropAndSmallMap(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "f"); err != nil {
			return err
		}
		_, _, err := write(tx, 10, 0, rawExtent(extent.BlockSize, 400<<10), rawExtent(testZone+extent.BlockSize, 400<<10))
		return err
	})
	view(t, s, func(tx *Tx) error {
		p, err := tx.Map(10, 300<<10, 300<<10+4096)
		if err != nil {
			return err
		}
		if len(p) != 1 || p[0].Blocks != 1 || len(p[0].Sums) != 1 || p[0].Sums[0] != testSum(p[0].Addr) || p[0].Addr != extent.BlockSize+300<<10 {
			t.Errorf("4 KiB map to %+v", p)
		}
		return nil
	})
	update(t, s, func(tx *Tx) error {
		d, done, next, err := tx.DropRange(10, 0, extent.MaxFileSize, 1)
		if done || next != 400<<10 || d.FreedBytes != 400<<10 || d.Freed[0] != 400<<10 {
			t.Errorf("first step: %+v %v %d", d, done, next)
		}
		if err != nil {
			return err
		}
		d, done, _, err = tx.DropRange(10, next, extent.MaxFileSize, 1)
		if !done || d.Freed[1] != 400<<10 {
			t.Errorf("second step: %+v %v", d, done)
		}
		n, nerr := tx.Node(10)
		n.StoredBytes, n.AllocatedBytes = 0, 0
		return errors.Join(err, nerr, tx.PutNode(n))
	})
	wantSound(t, s)
}

func TestInsertRefusals(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "f"); err != nil {
			return err
		}
		_, _, err := write(tx, 10, 8192, rawExtent(16384, 8192))
		return err
	})
	fewSums := rawExtent(testZone, 8192)
	fewSums.Sums = fewSums.Sums[:1]
	long := rawExtent(testZone, 4096)
	long.Length = 4097
	short := rawExtent(testZone, 8192)
	short.Length = 4096
	badFrames := framedExtent(testZone, extent.Frame{Raw: 100, Stored: 10})
	badFrames.Blocks = 2
	for _, c := range []struct {
		name string
		off  int64
		ext  NewExtent
		kind errdefs.Kind
	}{
		{"checksums missing", 0, fewSums, errdefs.InvalidArgument},
		{"longer than its blocks", 0, long, errdefs.InvalidArgument},
		{"leaves a block unused", 0, short, errdefs.InvalidArgument},
		{"frames do not add up", 0, badFrames, errdefs.InvalidArgument},
		{"unaligned", 0, rawExtent(testZone+1, 10), errdefs.InvalidArgument},
		{"past the capacity", 0, rawExtent(2*testZone-8192, 4096), errdefs.InvalidArgument},
		{"no block group", 0, rawExtent(testGroups*testZone, 4096), errdefs.NotFound},
		{"file range in use", 8000, rawExtent(testZone, 4096), errdefs.Internal},
		{"place in use from below", 0, rawExtent(12288, 8192), errdefs.Internal},
		{"place in use inside", 0, rawExtent(20480, 4096), errdefs.Internal},
		{"negative offset", -1, rawExtent(testZone, 4096), errdefs.InvalidArgument},
	} {
		err := s.Update(func(tx *Tx) error {
			_, err := tx.InsertExtents(10, c.off, []NewExtent{c.ext})
			if tx.Mutated() {
				t.Errorf("%s: changed something", c.name)
			}
			return err
		})
		if errdefs.KindOf(err) != c.kind || err == nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	err := s.Update(func(tx *Tx) error {
		_, err := tx.InsertExtents(10, 1<<20, []NewExtent{
			rawExtent(2*testZone, 8192), rawExtent(3*testZone, 4096), rawExtent(2*testZone+4096, 4096),
		})
		return err
	})
	wantKind(t, err, errdefs.InvalidArgument, "")
	wantSound(t, s)
}
