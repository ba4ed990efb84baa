package engine

import (
	"os"
	"syscall"
	"testing"
)

// blocksOnDisk is the space that a file takes on its disk, in bytes.
func blocksOnDisk(t testing.TB, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		t.Skip("no way to ask for the space of a file here")
	}
	return s.Blocks * 512
}
