package store

import (
	"fmt"
	"math/rand"
	"path/filepath"
	"testing"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store/storetest"
)

// contents renders a store so that two states can be told apart.
func contents(t fataler, s *Store) string {
	t.Helper()
	out := ""
	view(t, s, func(tx *Tx) error {
		out = fmt.Sprintln("commit", tx.CommitSequence())
		_, err := tx.List("", "", true, 0, func(path string, n Node) error {
			out += fmt.Sprintln(path, n.ID, n.Size, n.StoredBytes)
			return tx.FileExtents(n.ID, 0, extent.MaxFileSize, func(e FileExtent) bool {
				out += fmt.Sprintln(" ", e)
				return true
			})
		})
		return err
	})
	return out
}

// randomChange makes one transaction of ordinary work.
func randomChange(tx *Tx, rng *rand.Rand, next *extent.Addr) error {
	for range 1 + rng.Intn(4) {
		id := uint64(100 + rng.Intn(20))
		if _, err := tx.Node(id); err != nil {
			if err := addFile(tx, id, fmt.Sprintf("d%d/f%d", id%3, id)); err != nil {
				return err
			}
		}
		if rng.Intn(3) == 0 {
			if _, err := drop(tx, id, rng.Int63n(40000), rng.Int63n(80000)); err != nil {
				return err
			}
			continue
		}
		n := 1 + rng.Int63n(9000)
		a := *next
		if a%testZone > testZone-16*extent.BlockSize {
			a = (a/testZone + 1) * testZone
		}
		*next = a + extent.Addr(extent.RoundUp(n))
		if _, _, err := write(tx, id, rng.Int63n(60000), rawExtent(a, n)); err != nil {
			return err
		}
	}
	return nil
}

// TestStatesInsideACommit tears a run of commits at every kind of point and opens the result.
func TestStatesInsideACommit(t *testing.T) {
	commits, states := 25, 5
	if testing.Short() {
		commits, states = 6, 2
	}
	for _, unsynced := range []bool{false, true} {
		t.Run(fmt.Sprint("freelist unsynced ", unsynced), func(t *testing.T) {
			dir := t.TempDir()
			path, torn := filepath.Join(dir, "meta"), filepath.Join(dir, "torn")
			s := newStoreAt(t, path, testOptions)
			defer s.Close()
			if unsynced {
				s.freelistSync = -1
			}
			rng := rand.New(rand.NewSource(7))
			next := extent.Addr(extent.BlockSize)
			before, err := storetest.Image(path)
			if err != nil {
				t.Fatal(err)
			}
			was := contents(t, s)
			opens := func(image []byte, want, what string) {
				t.Helper()
				if err := storetest.Write(torn, image); err != nil {
					t.Fatal(err)
				}
				s, err := Open(torn, testOptions)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				defer s.Close()
				if got := contents(t, s); got != want {
					t.Fatalf("%s: the store holds\n%s\nwant\n%s", what, got, want)
				}
				wantSound(t, s)
			}
			for range commits {
				update(t, s, func(tx *Tx) error { return randomChange(tx, rng, &next) })
				after, err := storetest.Image(path)
				if err != nil {
					t.Fatal(err)
				}
				is := contents(t, s)
				for range states {
					opens(storetest.Mixtures(before, after, rng), was, "some pages written")
				}
				opens(storetest.TornMeta(before, after, rng), was, "torn meta page")
				opens(after, is, "all written")
				before, was = after, is
			}
		})
	}
}
