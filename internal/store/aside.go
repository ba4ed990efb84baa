package store

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// aside is the disk space under the file. Usually all of the bound was set aside when the file
// was made, and a full disk is nobody's concern. It is not when the bound was raised since, or
// the file copied, and the disk had no room.
type aside struct {
	mu    sync.Mutex   // held while more is set aside
	known atomic.Int64 // bytes, at most the bound; the bound where the file system cannot tell
	more  func(n int64) error
}

// preallocate sets disk space aside for n bytes without changing the file's length.
func preallocate(f *os.File, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n)
}

// isFull reports whether err says that there is no room: on the disk, in a quota, or under a
// limit on the size of files.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// setAside sets aside what it can of the bound: a store on a full disk must still open, to be able
// to delete.
func (s *Store) setAside(fi fs.FileInfo) {
	if s.aside.more == nil {
		s.aside.more = func(n int64) error { return preallocate(s.file, n) }
	}
	if isFull(s.aside.more(s.maxBytes)) {
		s.aside.known.Store(0)
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			s.aside.known.Store(min(s.maxBytes, st.Blocks*512/pageSize*pageSize))
		}
	}
}

// Room reports whether pages of n bytes more can come into use: within the bound, and on the disk,
// where space for them is set aside if that has not been done. No is an answer for now: the next
// call asks the disk again.
func (s *Store) Room(n int64) bool {
	want := s.Stats().UsedBytes + n
	if want > s.maxBytes {
		return false
	}
	if want <= s.aside.known.Load() {
		return true
	}
	s.aside.mu.Lock()
	defer s.aside.mu.Unlock()
	for _, to := range []int64{min(s.maxBytes, want+s.maxBytes/freeingShare), want} {
		if to = min(s.maxBytes, (to+pageSize-1)/pageSize*pageSize); to <= s.aside.known.Load() {
			return true
		}
		if !isFull(s.aside.more(to)) {
			s.aside.known.Store(to)
			return true
		}
	}
	return false
}
