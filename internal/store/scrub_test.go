package store

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/google/go-cmp/cmp"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// putScrub writes a scrub with n findings, whose addresses are their numbers.
func putScrub(tx *Tx, id uint64, n int) error {
	s := Scrub{ID: id, State: 1, Total: 100}
	var found []Finding
	for i := range n {
		found = append(found, Finding{Addr: 4096, Off: int64(i), Object: "o"})
	}
	if err := tx.AddFindings(&s, found); err != nil {
		return err
	}
	return tx.PutScrub(s)
}

func findings(t fataler, s *Store, id, after uint64, n int) (seqs []uint64) {
	t.Helper()
	view(t, s, func(tx *Tx) error {
		_, err := tx.Findings(id, after, func(x Finding) bool {
			if x.Scrub != id || uint64(x.Off) != x.Seq-1 {
				t.Fatalf("finding %+v", x)
			}
			seqs = append(seqs, x.Seq)
			return len(seqs) < n
		})
		return err
	})
	return seqs
}

func TestScrubRecords(t *testing.T) {
	s := newStore(t)
	view(t, s, func(tx *Tx) error {
		if ids, err := tx.ScrubIDs(); err != nil || len(ids) > 0 {
			t.Errorf("%v, %v", ids, err)
		}
		_, err := tx.Scrub(1)
		wantKind(t, err, errdefs.NotFound, "")
		return nil
	})
	update(t, s, func(tx *Tx) error {
		for id := uint64(1); id < 4; id++ {
			if err := putScrub(tx, id, int(id)*10); err != nil {
				return err
			}
		}
		return nil
	})
	// Numbers go on where they stopped.
	update(t, s, func(tx *Tx) error {
		x, err := tx.Scrub(2)
		if err != nil {
			return err
		}
		if err := tx.AddFindings(&x, []Finding{{Off: 20}}); err != nil {
			return err
		}
		x.State, x.Error = 4, strings.Repeat("x", 3*maxScrubText)
		return tx.PutScrub(x)
	})
	view(t, s, func(tx *Tx) error {
		x, err := tx.Scrub(2)
		if err != nil || x.Findings != 21 || x.State != 4 || len(x.Error) != maxScrubText {
			t.Errorf("%+v, %v", x, err)
		}
		ids, err := tx.ScrubIDs()
		if !slices.Equal(ids, []uint64{1, 2, 3}) {
			t.Errorf("%v", ids)
		}
		return err
	})
	if got := findings(t, s, 2, 0, 100); len(got) != 21 || got[20] != 21 {
		t.Errorf("findings %v", got)
	}
	if got := findings(t, s, 2, 5, 3); !slices.Equal(got, []uint64{6, 7, 8}) {
		t.Errorf("findings %v", got)
	}
	if got := findings(t, s, 9, 0, 3); got != nil {
		t.Errorf("findings of no scrub: %v", got)
	}
	wantSound(t, s)
}

// TestDropScrub deletes a scrub in steps: the record goes last, so what a crash leaves is never
// findings without their scrub.
func TestDropScrub(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		for id := uint64(1); id < 4; id++ {
			if err := putScrub(tx, id, 25); err != nil {
				return err
			}
		}
		return nil
	})
	for i, want := range []bool{false, false, true} {
		update(t, s, func(tx *Tx) error {
			done, err := tx.DropScrub(2, 10)
			if done != want {
				t.Errorf("step %d: done %t", i, done)
			}
			return err
		})
		wantSound(t, s)
	}
	for id, want := range map[uint64]int{1: 25, 2: 0, 3: 25} {
		if got := len(findings(t, s, id, 0, 100)); got != want {
			t.Errorf("scrub %d has %d findings", id, got)
		}
	}
	update(t, s, func(tx *Tx) error { _, err := tx.DropScrub(77, 10); return err })
}

// TestDamagedScrub keeps damaged records from hiding the others.
func TestDamagedScrub(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := putScrub(tx, 1, 3); err != nil {
			return err
		}
		if err := putScrub(tx, 2, 3); err != nil {
			return err
		}
		flip := func(b bucketID, key []byte) error {
			v := bytes.Clone(tx.bucket(b).Get(key))
			v[0] ^= 1
			return tx.bucket(b).Put(key, v)
		}
		return cmpErr(flip(bScrubState, key64(1)), flip(bScrubFindings, key64(2, 2)))
	})
	if got := findings(t, s, 2, 0, 9); !slices.Equal(got, []uint64{1, 3}) {
		t.Errorf("findings %v", got)
	}
	view(t, s, func(tx *Tx) error {
		ids, err := tx.ScrubIDs()
		if !slices.Equal(ids, []uint64{1, 2}) {
			t.Errorf("ids %v", ids)
		}
		_, serr := tx.Scrub(1)
		wantKind(t, serr, errdefs.Corruption, errdefs.ReasonCorruption)
		bad, ferr := tx.Findings(2, 0, func(Finding) bool { return true })
		if bad != 1 || ferr != nil {
			t.Errorf("%d damaged findings, %v", bad, ferr)
		}
		return err
	})
	if ps := problems(t, s); len(ps) != 5 { // two damaged, three findings of a scrub that cannot be read
		t.Errorf("check: %q", ps)
	}
	update(t, s, func(tx *Tx) error {
		for id := uint64(1); id < 3; id++ {
			if done, err := tx.DropScrub(id, 100); !done || err != nil {
				return fmt.Errorf("scrub %d: %t, %v", id, done, err)
			}
		}
		return nil
	})
	wantSound(t, s)
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestCheckOfScrubs(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(tx *Tx) error
		want string
	}{
		"a finding of no scrub": {func(tx *Tx) error { return tx.del(bScrubState, key64(1)) }, "there is no scrub 1"},
		"a finding too many": {func(tx *Tx) error {
			return tx.put(bScrubFindings, key64(1, 4), (&Finding{}).encode())
		}, "counts 3 findings"},
		"a malformed scrub":   {func(tx *Tx) error { return tx.put(bScrubState, key64(7), []byte{8}) }, "malformed"},
		"a malformed finding": {func(tx *Tx) error { return tx.put(bScrubFindings, key64(1, 2), []byte{8}) }, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			update(t, s, func(tx *Tx) error { return putScrub(tx, 1, 3) })
			wantSound(t, s)
			update(t, s, c.do)
			if ps := problems(t, s); len(ps) == 0 || !strings.Contains(ps[0], c.want) {
				t.Errorf("check: %q", ps)
			}
		})
	}
}

// TestStoreFromBeforeScrubs has a file without the buckets, which are made when they are first written.
func TestStoreFromBeforeScrubs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	newStoreAt(t, path, testOptions).Close()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(b *bbolt.Tx) error {
		return cmpErr(b.DeleteBucket([]byte("scrub_state")), b.DeleteBucket([]byte("scrub_findings")))
	})
	if err := cmpErr(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	wantSound(t, s)
	if got := findings(t, s, 1, 0, 9); got != nil {
		t.Errorf("findings %v", got)
	}
	update(t, s, func(tx *Tx) error { return putScrub(tx, 1, 3) })
	if got := findings(t, s, 1, 0, 9); len(got) != 3 {
		t.Errorf("findings %v", got)
	}
	wantSound(t, s)
}

// scanAll walks all records, n at a time.
func scanAll(t fataler, s *Store, n int) (sum RecordScan, steps int) {
	t.Helper()
	for at := (RecordScan{}); steps == 0 || at.Bucket != ""; steps++ {
		view(t, s, func(tx *Tx) (err error) {
			at, err = tx.ScanRecords(at.Bucket, at.Key, n)
			return err
		})
		sum.Records, sum.Bytes = sum.Records+at.Records, sum.Bytes+at.Bytes
		sum.Damaged = append(sum.Damaged, at.Damaged...)
	}
	return sum, steps
}

// TestScanRecords counts every record once, whatever the step, and names the damaged ones.
func TestScanRecords(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		for id := uint64(10); id < 40; id++ {
			if err := addFile(tx, id, fmt.Sprintf("d/%d", id)); err != nil {
				return err
			}
		}
		_, _, err := write(tx, 10, 0, rawExtent(0x1000, 40000))
		return err
	})
	records, size := uint64(0), uint64(0)
	view(t, s, func(tx *Tx) error {
		for b := range numBuckets {
			err := tx.bucket(b).ForEach(func(k, v []byte) error {
				records, size = records+1, size+uint64(len(k)+len(v))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	for _, n := range []int{1, 2, 7, 1000} {
		got, steps := scanAll(t, s, n)
		if got.Records != records || got.Bytes != size || got.Damaged != nil {
			t.Errorf("%d at a time: %d records of %d bytes, damaged %v; want %d of %d", n, got.Records, got.Bytes, got.Damaged, records, size)
		}
		if n == 1 && steps < int(records) {
			t.Errorf("%d steps of one record for %d", steps, records)
		}
	}
	update(t, s, func(tx *Tx) error {
		for _, key := range [][]byte{key64(12), key64(13)} {
			v := bytes.Clone(tx.bucket(bNodes).Get(key))
			v[1] ^= 8
			if err := tx.bucket(bNodes).Put(key, v); err != nil {
				return err
			}
		}
		return tx.bucket(bExtents).Put(key64(0x1000), []byte("no"))
	})
	for _, n := range []int{1, 3, 1000} {
		got, _ := scanAll(t, s, n)
		var names []string
		for _, d := range got.Damaged {
			names = append(names, fmt.Sprintf("%s %x %t", d.Bucket, d.Key, d.Expected != d.Actual))
		}
		want := []string{"nodes 000000000000000c true", "nodes 000000000000000d true", "extents 0000000000001000 false"}
		if d := cmp.Diff(want, names); d != "" || got.Records != records {
			t.Errorf("%d at a time: %s", n, d)
		}
	}
	view(t, s, func(tx *Tx) error {
		_, err := tx.ScanRecords("no such", nil, 1)
		wantKind(t, err, errdefs.InvalidArgument, "")
		return nil
	})
}
