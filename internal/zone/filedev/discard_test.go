package filedev_test

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

// taken is the space that the file takes on its disk, in bytes.
func taken(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

// roomy has zones large enough to be seen among what a file system keeps of a file.
var roomy = zone.Geometry{Dialect: zone.SMR, ZoneSize: 4 << 20, ZoneCapacity: 4 << 20, Zones: 6, Conventional: 1}

// holes skips where the file system has none, or hides what they give back.
func holes(t *testing.T, d *filedev.Device, path string) {
	t.Helper()
	before := taken(t, path)
	must(t, d.Open(1))
	if taken(t, path) < before+4<<20 {
		t.Skip("opening a zone took no space: no fallocate here")
	}
	must(t, d.CloseZone(1))
	must(t, d.Reset(1))
	must(t, d.Release(1))
	if taken(t, path) > before+64<<10 {
		t.Skip("a punched hole gives nothing back here")
	}
}

func TestReleaseGivesTheDiskItsSpaceBack(t *testing.T) {
	d, path := create(t, roomy)
	holes(t, d, path)
	before := taken(t, path)
	put(t, d, 2, 1, 1024)
	put(t, d, 3, 3, 1024)
	must(t, d.Flush())
	full := taken(t, path)
	if full < before+8<<20 {
		t.Fatalf("two full zones take %d bytes", full-before)
	}
	must(t, d.Reset(2))
	must(t, d.Flush())
	if now := taken(t, path); now < full {
		t.Errorf("a reset alone gave %d bytes back", full-now)
	}
	must(t, d.Release(2))
	must(t, d.Flush())
	if now := taken(t, path); now > full-4<<20+64<<10 {
		t.Errorf("a release gave %d bytes back", full-now)
	}
	expect(t, d, 3, 0, 3, 1024)
	must(t, d.Close())

	d = reopen(t, path)
	defer d.Close()
	put(t, d, 2, 7, 1) // takes the space of the whole zone again
	if now := taken(t, path); now < full-64<<10 {
		t.Errorf("the zone is open again and the file takes %d bytes of %d", now, full)
	}
	expect(t, d, 2, 0, 7, 1)
	expect(t, d, 3, 0, 3, 1024)
}

// The space of a zone that was opened and never flushed is in no table; a release finds it.
func TestReleaseFindsSpaceThatNoTableKnows(t *testing.T) {
	d, path := create(t, roomy)
	holes(t, d, path)
	must(t, d.Flush())
	before := taken(t, path)
	put(t, d, 4, 1, 1)
	must(t, d.Close()) // without a flush
	if taken(t, path) < before+4<<20 {
		t.Fatal("the zone took no space")
	}
	d = reopen(t, path)
	defer d.Close()
	if at, c := wp(t, d, 4); at != 0 || c != zone.Empty {
		t.Fatalf("zone 4 is %v at %d", c, at)
	}
	must(t, d.Release(4))
	if now := taken(t, path); now > before+64<<10 {
		t.Errorf("%d bytes are left", now-before)
	}
}

func TestDiscardGivesTheDiskItsSpaceBack(t *testing.T) {
	d, path := create(t, roomy)
	defer func() { must(t, d.Close()) }()
	holes(t, d, path)
	must(t, d.Write(0, 0, data(1, 1024)))
	must(t, d.Flush())
	full := taken(t, path)
	must(t, d.Discard(0, []extent.Range{{Off: 16 * blk, End: 256 * blk}, {Off: 512 * blk, End: 1024 * blk}}))
	must(t, d.Flush())
	if now := taken(t, path); now > full-752*blk+64<<10 {
		t.Errorf("a discard of %d bytes gave %d back", 752*blk, full-now)
	}
	expect(t, d, 0, 0, 1, 16)
	expect(t, d, 0, 256, 1, 256)
	must(t, d.Write(0, 600*blk, data(5, 2)))
	expect(t, d, 0, 600, 5, 2)
	if now := taken(t, path); now > full-700*blk+64<<10 {
		t.Errorf("a write of two blocks took the whole zone again: %d of %d", now, full)
	}
}

func TestDiscardInMemoryBackedFile(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "filedev")
	if err != nil {
		t.Skip("no second file system to try: ", err)
	}
	defer os.RemoveAll(dir)
	path := dir + "/device"
	must(t, filedev.Create(path, roomy, filedev.CreateOptions{}))
	d := reopen(t, path)
	defer d.Close()
	must(t, d.Write(0, 0, data(1, 4)))
	must(t, d.Discard(0, []extent.Range{{Off: 0, End: blk}}))
	p := bytes.Repeat([]byte{9}, 3*blk)
	must(t, d.ReadAt(0, blk, p))
	if !bytes.Equal(p, data(1, 3)[0]) {
		t.Error("what was not discarded has changed")
	}
}
