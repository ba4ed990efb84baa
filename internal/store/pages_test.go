package store

import (
	"encoding/binary"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store/storetest"
)

// sealMeta makes the checksum of a meta page right again.
func sealMeta(page []byte) {
	b := page[pageHeader:]
	h := fnv.New64a()
	h.Write(b[:metaSumOffset])
	binary.LittleEndian.PutUint64(b[metaSumOffset:], h.Sum64())
}

// FuzzPages overwrites a part of a metadata file, and cuts the file short: the check of the pages, which
// is all that stands between such a file and bbolt, ends without a panic, and what it does not like is
// Corruption. With seal the meta pages' checksums are made right again, so that what they say is
// believed.
func FuzzPages(f *testing.F) {
	dir := f.TempDir()
	images := make([][]byte, 2) // with a free list and without
	for i, freelist := range []int{FreelistSyncPages, -1} {
		path := filepath.Join(dir, "meta")
		s := newStoreAt(f, path, testOptions)
		s.freelistSync = freelist
		for id := range uint64(60) {
			update(f, s, func(tx *Tx) error { return addFile(tx, 10+id, string(rune('a'+id%26))+"/"+string(rune('a'+id/26))) })
		}
		var err error
		if images[i], err = storetest.Image(path); err != nil {
			f.Fatal(err)
		}
		if err := s.Close(); err != nil {
			f.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			f.Fatal(err)
		}
	}
	for page := range uint32(20) {
		// Id, flags, count, overflow, the first element.
		for _, at := range []uint32{0, 8, 10, 12, pageHeader, pageHeader + 4, pageHeader + 8} {
			f.Add(page%2 == 0, page < 2, page*pageSize+at, []byte{0xff, 0xff, 3, 0}, uint32(0))
			f.Add(page%2 == 1, page < 2, page*pageSize+at, []byte{5, 0, 0, 0}, uint32(0))
		}
	}
	for _, field := range []uint32{16, 32, 40, 48} { // root, free list, pages, transaction
		f.Add(true, true, pageHeader+field, []byte{2, 0, 0, 0, 0, 0, 0, 0}, uint32(0))
		f.Add(false, true, pageSize+pageHeader+field, []byte{255, 255, 255, 255, 255, 255, 255, 255}, uint32(pageSize))
	}
	f.Fuzz(func(t *testing.T, list, seal bool, at uint32, patch []byte, cut uint32) {
		image := images[0]
		if !list {
			image = images[1]
		}
		image = slices.Clone(image[:len(image)-int(cut)%len(image)])
		if int64(at) < int64(len(image)) {
			copy(image[at:], patch)
		}
		if seal && len(image) >= 2*pageSize {
			sealMeta(image)
			sealMeta(image[pageSize:])
		}
		path := filepath.Join(t.TempDir(), "meta")
		if err := os.WriteFile(path, image, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := checkPages(file); err != nil && !errdefs.Is(err, errdefs.Corruption) {
			t.Fatalf("%v (%v)", err, errdefs.KindOf(err))
		}
	})
}
