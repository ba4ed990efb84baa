package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// fillDisk makes every write to the metadata file answer ENOSPC, as a full disk does, until the
// returned function is called. The mapping stays.
func fillDisk(t *testing.T, s *Store) (empty func()) {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no /dev/full: %v", err)
	}
	defer full.Close()
	fd := int(s.file.Fd())
	kept, err := unix.Dup(fd)
	if err == nil {
		err = unix.Dup3(int(full.Fd()), fd, unix.O_CLOEXEC)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Dup3(kept, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		unix.Close(kept)
	}
}

// A commit that fails for want of room on the disk changes nothing, and the next one that finds
// room goes on.
func TestCommitOnFullDisk(t *testing.T) {
	for _, freelist := range []int{FreelistSyncPages, -1} {
		t.Run(fmt.Sprintf("freelist=%d", freelist), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "meta")
			s := newStoreAt(t, path, testOptions)
			s.freelistSync = freelist
			for id := range uint64(20) {
				update(t, s, func(tx *Tx) error { return addFile(tx, 10+id, fmt.Sprint(id)) })
			}
			before := s.Stats()
			empty := fillDisk(t, s)
			for range 3 {
				err := s.Update(func(tx *Tx) error { return addFile(tx, 50, "a") })
				wantKind(t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
				if !strings.Contains(err.Error(), "the disk that holds the metadata file is full") {
					t.Errorf("it says %q", err)
				}
				err = s.UpdateFreeing(func(tx *Tx) error { return addFile(tx, 50, "a") })
				wantKind(t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
				if s.ReadOnly() {
					t.Fatal("a full disk must not end writing for good")
				}
				view(t, s, func(tx *Tx) error { _, err := tx.Resolve("0"); return err })
			}
			empty()
			if st := s.Stats(); st != before {
				t.Errorf("the figures were %+v and are %+v", before, st)
			}
			update(t, s, func(tx *Tx) error { return addFile(tx, 50, "a") })
			wantSound(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s, err := Open(path, testOptions)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			view(t, s, func(tx *Tx) error { _, err := tx.Resolve("a"); return err })
			wantSound(t, s)
		})
	}
}

// While the disk has less room than the bound, what is not set aside is promised to nobody; more is
// set aside as soon as there is room, and transactions that free are not held back.
func TestRoomOnTheDisk(t *testing.T) {
	const bound = 4 << 20
	s := newStoreAt(t, filepath.Join(t.TempDir(), "meta"), Options{NoSync: true, MaxBytes: bound})
	defer s.Close()
	for id := range uint64(100) {
		update(t, s, func(tx *Tx) error { return addFile(tx, 10+id, fmt.Sprint(id)) })
	}
	room := int64(1 << 20)
	asked := 0
	s.aside.known.Store(room)
	s.aside.more = func(n int64) error {
		asked++
		if n > room {
			return &os.PathError{Op: "fallocate", Path: "meta", Err: unix.ENOSPC}
		}
		return nil
	}
	used := s.Stats().UsedBytes
	for n, want := range map[int64]bool{
		0: true, room - used: true, room - used + 1: false, bound - used: false, bound - used + 1: false, bound: false,
	} {
		if got := s.Room(n); got != want {
			t.Errorf("room for %d bytes with %d of %d in use: %t", n, used, room, got)
		}
	}
	// So much in use that only the part for transactions that free is left.
	room = used + bound/freeingShare
	s.aside.known.Store(room)
	wantKind(t, s.Update(func(tx *Tx) error { t.Error("ran"); return nil }), errdefs.NoSpace, errdefs.ReasonMetadataSpace)
	if st := s.Stats(); st.SetAside != room || st.MaxBytes != bound {
		t.Errorf("%+v", st)
	}
	if err := s.UpdateFreeing(func(tx *Tx) error {
		n, err := tx.Node(10)
		if err != nil {
			return err
		}
		if err := tx.Unlink(n); err != nil {
			return err
		}
		return tx.DeleteNode(10)
	}); err != nil {
		t.Errorf("a delete on a full disk: %v", err)
	}
	room, asked = bound, 0
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "again") })
	if st := s.Stats(); st.SetAside <= used+bound/freeingShare || asked != 1 {
		t.Errorf("with room again: %+v after %d tries", st, asked)
	}
	if !s.Room(bound-s.Stats().UsedBytes) || s.Stats().SetAside != bound {
		t.Errorf("not all of the bound can be had: %+v", s.Stats())
	}
	asked = 0
	if !s.Room(0) || asked != 0 {
		t.Error("the disk is asked about what is set aside")
	}
	wantSound(t, s)
}

// A bound that was raised while the disk is full opens with what was set aside before.
func TestOpenOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("no disk of its own for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path, filler := filepath.Join(dir, "meta"), filepath.Join(dir, "filler")
	s := newStoreAt(t, path, Options{MaxBytes: 1 << 20})
	update(t, s, func(tx *Tx) error { return addFile(tx, 10, "a") })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !isFull(err) {
		t.Fatalf("the disk is not full: %v", err)
	}
	s, err := Open(path, Options{MaxBytes: 3 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if st := s.Stats(); st.SetAside != 1<<20 || st.MaxBytes != 3<<20 {
		t.Fatalf("%+v", st)
	}
	id := uint64(100)
	fill := func() (err error) {
		for ; err == nil; id++ {
			if id > 100_000 {
				t.Fatal("never full")
			}
			err = s.Update(func(tx *Tx) error {
				return tx.Link(RootID, fmt.Sprint(id), Node{ID: id, Kind: File, RequestID: strings.Repeat("r", 3000)})
			})
		}
		return err
	}
	wantKind(t, fill(), errdefs.NoSpace, errdefs.ReasonMetadataSpace)
	if st := s.Stats(); st.SetAside != 1<<20 || st.UsedBytes < 600<<10 || st.UsedBytes > 1<<20 {
		t.Errorf("full with %+v", st)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	wantKind(t, fill(), errdefs.NoSpace, errdefs.ReasonMetadataSpace)
	if st := s.Stats(); st.UsedBytes < 2<<20 || s.ReadOnly() {
		t.Errorf("full again with %+v", st)
	}
	wantSound(t, s)
}
