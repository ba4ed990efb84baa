package storetest

import (
	"bytes"
	"io"
	"math/rand"
	"os"
	"slices"
)

const (
	pageSize  = 4096
	metaPages = 2
	// sector is the most that a drive writes whole.
	sector = 512
	// metaLen is how much of a meta page means something: header, fields, checksum.
	metaLen = 80
)

// Image returns the metadata file at path as it is now. The store may be open; no Update may
// be running.
func Image(path string) ([]byte, error) { return os.ReadFile(path) }

// ImageInto is Image in the memory of buf if it is large enough, for who takes many.
func ImageInto(buf []byte, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	n := int(fi.Size())
	buf = slices.Grow(buf[:0], n)[:n]
	_, err = io.ReadFull(f, buf)
	return buf, err
}

// Write makes image a metadata file at path.
func Write(path string, image []byte) error { return os.WriteFile(path, image, 0o600) }

// changed returns the numbers of the pages that differ, and before lengthened to after.
func changed(before, after []byte) (base []byte, pages []int) {
	base = make([]byte, max(len(before), len(after)))
	copy(base, before)
	for i := 0; i*pageSize < len(after); i++ {
		if !bytes.Equal(page(base, i), page(after, i)) {
			pages = append(pages, i)
		}
	}
	return base, pages
}

func page(b []byte, i int) []byte { return b[i*pageSize : min(len(b), (i+1)*pageSize)] }

// Mixtures returns a state of the file in the middle of the commit that led from before to
// after: any of the changed data pages are written, some of them torn at a sector, and no
// meta page is. Such a file must open as before.
func Mixtures(before, after []byte, rng *rand.Rand) []byte {
	out, pages := changed(before, after)
	share := rng.Float64()
	for _, i := range pages {
		if i < metaPages || rng.Float64() > share {
			continue
		}
		src, dst := page(after, i), page(out, i)
		if rng.Intn(8) == 0 {
			for at := 0; at < len(src); at += sector {
				if rng.Intn(2) == 0 {
					copy(dst[at:min(len(dst), at+sector)], src[at:])
				}
			}
			continue
		}
		copy(dst, src)
	}
	return out
}

// TornMeta returns the state with all data pages written and the meta page torn inside its
// fields, as no drive with whole sectors leaves it; it must open as before nevertheless,
// unless the torn page happens to be whole.
func TornMeta(before, after []byte, rng *rand.Rand) []byte {
	out, pages := changed(before, after)
	for _, i := range pages {
		src := page(after, i)
		if i < metaPages {
			src = src[:rng.Intn(metaLen)]
		}
		copy(page(out, i), src)
	}
	return out
}
