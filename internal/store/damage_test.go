package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store/storetest"
)

// childEnv names the folder that a child process is to open damaged stores in.
const childEnv = "SHINGLE_STORE_DAMAGED"

// fill makes a store large enough to have branch pages in several buckets.
func fill(t fataler, s *Store, files int) {
	t.Helper()
	a := extent.Addr(extent.BlockSize)
	for i := range files {
		update(t, s, func(tx *Tx) error {
			id := uint64(5000 + i)
			if err := addFile(tx, id, fmt.Sprintf("dir%d/file%d", i%7, i)); err != nil {
				return err
			}
			if a%testZone > testZone/2 {
				a = (a/testZone + 1) * testZone
			}
			for j := range int64(3) {
				if _, _, err := write(tx, id, j*10000, rawExtent(a, 5000)); err != nil {
					return err
				}
				a += 2 * extent.BlockSize
			}
			return nil
		})
	}
}

// exercise uses a store as hard as it can and only demands that nothing but errors come out.
func exercise(path string) error {
	s, err := Open(path, testOptions)
	if err != nil {
		return err
	}
	err = s.Check(context.Background(), func(p Problem) { err = errors.New(p.String()) })
	for i := range uint64(20) {
		uerr := s.Update(func(tx *Tx) error {
			for id := range uint64(8) {
				if _, err := drop(tx, 5000+8*i+id, 3000, 20000); err != nil {
					return err
				}
			}
			return nil
		})
		err = errors.Join(err, uerr)
	}
	s.View(func(tx *Tx) error {
		_, lerr := tx.List("", "", true, 0, func(string, Node) error { return nil })
		err = errors.Join(err, lerr)
		return nil
	})
	return errors.Join(err, s.Close())
}

// damagedChild is the child's whole life: a damaged file may be refused or read in part, but
// must not end the process.
func damagedChild(dir string) int {
	files, err := filepath.Glob(filepath.Join(dir, "damaged*"))
	if err != nil || len(files) == 0 {
		fmt.Println("nothing to do", err)
		return 1
	}
	refused := 0
	for _, f := range files {
		fmt.Println("opening", filepath.Base(f))
		if exercise(f) != nil {
			refused++
		}
	}
	fmt.Println("survived", len(files), "refused", refused)
	return 0
}

func TestDamagedFilesNeverEndTheProcess(t *testing.T) {
	if raceEnabled {
		t.Skip("the race build checks pointers and throws where bbolt would only fault")
	}
	n := 30
	if testing.Short() {
		n = 10
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "meta")
	s := newStoreAt(t, path, testOptions)
	fill(t, s, 150)
	used := s.Stats().FileBytes
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	image, err := storetest.Image(path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewSource(1))
	for i := range n {
		bad := append([]byte(nil), image...)
		switch i % 5 {
		case 0: // one bit
			bad[rng.Int63n(used)] ^= 1 << rng.Intn(8)
		case 1: // page headers and element tables, where bbolt believes everything
			for range 8 {
				p := rng.Int63n(used/pageSize) * pageSize
				bad[p+rng.Int63n(128)] = byte(rng.Intn(256))
			}
		case 2: // a page of another place
			from, to := rng.Int63n(used/pageSize), rng.Int63n(used/pageSize)
			copy(bad[to*pageSize:(to+1)*pageSize], image[from*pageSize:])
		case 3: // zeros
			p := rng.Int63n(used/pageSize) * pageSize
			clear(bad[p : p+pageSize])
		case 4: // cut short
			bad = bad[:rng.Int63n(used)]
		}
		if err := storetest.Write(filepath.Join(dir, fmt.Sprintf("damaged%03d", i)), bad); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the child died: %v\n%s", err, tail(out, 4000))
	}
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// TestShrinkingFileFaultsAreErrors cuts the file under its mapping: reads then fault.
func TestShrinkingFileFaultsAreErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := newStoreAt(t, path, testOptions)
	fill(t, s, 100)
	if err := os.Truncate(path, 4*pageSize); err != nil {
		t.Fatal(err)
	}
	err := s.View(func(tx *Tx) error {
		for id := uint64(5000); id < 5100; id++ {
			if _, err := tx.Node(id); err != nil {
				return err
			}
		}
		return nil
	})
	wantKind(t, err, errdefs.Corruption, errdefs.ReasonCorruption)
	if err := s.Update(func(tx *Tx) error { return tx.RemoveOrphan(1) }); err == nil {
		t.Fatal("an update of a file that is gone succeeded")
	}
	s.Close()
}

func TestOpenRefusesWhatIsNoMetadataFile(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "meta")
	s := newStoreAt(t, good, testOptions)
	fill(t, s, 50)
	used := s.Stats().FileBytes
	s.Close()
	image, err := storetest.Image(good)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(fn func(b []byte)) []byte {
		b := append([]byte(nil), image...)
		fn(b)
		return b
	}
	for name, bad := range map[string][]byte{
		"empty":      {},
		"short":      image[:100],
		"one page":   image[:pageSize],
		"cut":        image[:used-1],
		"text":       []byte(fmt.Sprintf("%20000d", 1)),
		"both metas": edit(func(b []byte) { b[20]++; b[pageSize+20]++ }),
		"zero root":  edit(func(b []byte) { clear(b[2*pageSize : used]) }),
		"no freelist": edit(func(b []byte) {
			clear(b[int64(max(metaOf(b, 0).freelist, metaOf(b, 1).freelist))*pageSize:][:pageSize])
		}),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "meta")
			if err := storetest.Write(path, bad); err != nil {
				t.Fatal(err)
			}
			if name == "no freelist" {
				// Both meta pages' free lists, whichever is the newer.
				clear(bad[int64(min(metaOf(bad, 0).freelist, metaOf(bad, 1).freelist))*pageSize:][:pageSize])
				storetest.Write(path, bad)
			}
			s, err := Open(path, testOptions)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			wantKind(t, err, errdefs.Corruption, errdefs.ReasonCorruption)
		})
	}
	_, err = Open(filepath.Join(dir, "none"), testOptions)
	wantKind(t, err, errdefs.NotFound, "")
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Fatal("open made a file")
	}
}

func metaOf(image []byte, i int) boltMeta {
	m, _ := parseMeta(image[i*pageSize:])
	return m
}

// TestOneDamagedMetaPageIsSurvived: the older meta page is the state before the last commit.
func TestOneDamagedMetaPageIsSurvived(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := newStoreAt(t, path, testOptions)
	fill(t, s, 5)
	s.Close()
	image, err := storetest.Image(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		bad := append([]byte(nil), image...)
		bad[i*pageSize+30] ^= 0xFF
		if err := storetest.Write(path, bad); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, testOptions)
		if err != nil {
			t.Fatalf("meta page %d damaged: %v", i, err)
		}
		wantSound(t, s)
		s.Close()
	}
}
