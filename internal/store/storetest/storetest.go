package storetest

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"slices"
	"syscall"
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
	return buf, readData(f, buf)
}

// readData fills b with the file's bytes, and does not read where the file has holes: they are most
// of it.
func readData(f *os.File, b []byte) error {
	const seekData, seekHole = 3, 4 // lseek(2), of Linux and others
	clear(b)
	for at := int64(0); at < int64(len(b)); {
		from, err := f.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			return nil // nothing but a hole up to the end
		}
		to := int64(len(b))
		if err != nil {
			from = at // the system does not tell
		} else if end, err := f.Seek(from, seekHole); err == nil {
			to = min(to, end)
		}
		if _, err := f.ReadAt(b[from:to], from); err != nil {
			return err
		}
		at = to
	}
	return nil
}

// Write makes image a metadata file at path. Pages of zeros, which are most of it, become holes.
func Write(path string, image []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(int64(len(image)))
	zeros := make([]byte, pageSize)
	for i := 0; i*pageSize < len(image) && err == nil; i++ {
		if p := page(image, i); !bytes.Equal(p, zeros[:len(p)]) {
			_, err = f.WriteAt(p, int64(i)*pageSize)
		}
	}
	return errors.Join(err, f.Close())
}

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
