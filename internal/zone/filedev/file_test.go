package filedev_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

const blk = extent.BlockSize

const childEnv = "FILEDEV_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		child(path)
	}
	goleak.VerifyTestMain(m)
}

var geo = zone.Geometry{
	Dialect: zone.ZNS, ZoneSize: 64 * blk, ZoneCapacity: 48 * blk, Zones: 10, MaxOpen: 3, MaxActive: 4,
}

func data(seed byte, blocks int) [][]byte {
	return [][]byte{bytes.Repeat([]byte{seed}, blocks*blk)}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, d zone.Device, z int, seed byte, blocks int) {
	t.Helper()
	_, err := d.Append(z, data(seed, blocks))
	must(t, err)
}

func expect(t *testing.T, d zone.Device, z int, off int64, seed byte, blocks int) {
	t.Helper()
	p := make([]byte, blocks*blk)
	must(t, d.ReadAt(z, off*blk, p))
	if !bytes.Equal(p, data(seed, blocks)[0]) {
		t.Errorf("zone %d block %d does not hold %d", z, off, seed)
	}
}

func wp(t *testing.T, d zone.Device, z int) (int64, zone.Condition) {
	t.Helper()
	r, err := d.Report(z, 1)
	must(t, err)
	return r[0].WP / blk, r[0].Condition
}

func TestFlushedStateComesBack(t *testing.T) {
	d, path := create(t, geo)
	put(t, d, 1, 1, 5)
	must(t, d.Finish(1))
	put(t, d, 2, 2, 48)
	put(t, d, 3, 3, 7)
	must(t, d.Open(4))
	put(t, d, 5, 5, 1)
	must(t, d.SetCondition(5, zone.ReadOnly))
	must(t, d.Flush())
	put(t, d, 3, 9, 4) // not flushed
	must(t, d.Close())

	d = reopen(t, path)
	defer d.Close()
	if d.Geometry() != geo {
		t.Errorf("geometry %+v", d.Geometry())
	}
	for _, want := range []struct {
		z    int
		wp   int64
		cond zone.Condition
	}{
		{0, 0, zone.Empty}, {1, 64, zone.Full}, {2, 48, zone.Full}, {3, 7, zone.Closed},
		{4, 0, zone.Empty}, {5, 1, zone.ReadOnly}, {9, 0, zone.Empty},
	} {
		if at, c := wp(t, d, want.z); at != want.wp || c != want.cond {
			t.Errorf("zone %d is %v at %d, want %v at %d", want.z, c, at, want.cond, want.wp)
		}
	}
	expect(t, d, 1, 0, 1, 5)
	expect(t, d, 1, 5, 0, 43)
	expect(t, d, 2, 0, 2, 48)
	expect(t, d, 3, 0, 3, 7)
	expect(t, d, 5, 0, 5, 1)
	put(t, d, 3, 4, 2)
	expect(t, d, 3, 7, 4, 2)
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "device")
	bad := geo
	bad.Zones = 0
	if err := filedev.Create(path, bad, filedev.CreateOptions{}); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("bad geometry: %v", err)
	}
	huge := geo
	huge.ZoneSize, huge.ZoneCapacity, huge.Zones = 1<<45, 1<<45, 1
	if err := filedev.Create(path, huge, filedev.CreateOptions{}); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("a zone of 2^33 blocks: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("a refusal leaves a file behind")
	}
	must(t, filedev.Create(path, geo, filedev.CreateOptions{}))
	err := filedev.Create(path, geo, filedev.CreateOptions{})
	if !errdefs.Is(err, errdefs.AlreadyExists) || !strings.Contains(err.Error(), path) {
		t.Errorf("an existing file: %v", err)
	}
	d := reopen(t, path)
	put(t, d, 0, 1, 1)
	must(t, d.Flush())
	if err := filedev.Create(path, geo, filedev.CreateOptions{Force: true}); errdefs.ReasonOf(err) != errdefs.ReasonInUse {
		t.Errorf("force over a file in use: %v", err)
	}
	expect(t, d, 0, 0, 1, 1)
	must(t, d.Close())
	must(t, filedev.Create(path, geo, filedev.CreateOptions{Force: true}))
	d = reopen(t, path)
	defer d.Close()
	if at, c := wp(t, d, 0); at != 0 || c != zone.Empty {
		t.Errorf("after force zone 0 is %v at %d", c, at)
	}
	if err := filedev.Create(dir, geo, filedev.CreateOptions{Force: true}); err == nil {
		t.Error("a folder was formatted")
	}
	if err := filedev.Create(filepath.Join(dir, "no", "device"), geo, filedev.CreateOptions{}); !errdefs.Is(err, errdefs.Device) {
		t.Errorf("no such folder: %v", err)
	}
}

func TestOneEngineAFile(t *testing.T) {
	d, path := create(t, geo)
	_, err := filedev.Open(path)
	if !errdefs.Is(err, errdefs.Unavailable) || errdefs.ReasonOf(err) != errdefs.ReasonInUse {
		t.Fatalf("second open: %v", err)
	}
	want := "device file " + path + " is in use by another engine; stop it or choose another --device"
	if !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not say %q", err, want)
	}
	must(t, d.Close())
	must(t, reopen(t, path).Close())
}

// patch changes bytes of the file.
func patch(t *testing.T, path string, off int64, change func(b []byte), n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	b := make([]byte, n)
	_, err = f.ReadAt(b, off)
	must(t, err)
	change(b)
	_, err = f.WriteAt(b, off)
	must(t, err)
}

func flip(b []byte) { b[0] ^= 1 }

func TestOpenSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, path string)
		kind   errdefs.Kind
		say    string
	}{
		{"missing", func(t *testing.T, p string) { must(t, os.Remove(p)) }, errdefs.NotFound, "there is no device file"},
		{"a folder", func(t *testing.T, p string) {
			must(t, os.Remove(p))
			must(t, os.Mkdir(p, 0o700))
		}, errdefs.Precondition, "not a plain file"},
		{"empty", func(t *testing.T, p string) { must(t, os.Truncate(p, 0)) }, errdefs.Precondition, "not a Shingle device file"},
		{"foreign", func(t *testing.T, p string) { patch(t, p, 0, flip, 1) }, errdefs.Precondition, "not a Shingle device file"},
		{"torn header", func(t *testing.T, p string) { patch(t, p, 40, flip, 1) }, errdefs.Corruption, "header of device file"},
		{"cut short", func(t *testing.T, p string) { must(t, os.Truncate(p, 1<<20+5)) }, errdefs.Corruption, "cut short"},
		{"both slots of the table", func(t *testing.T, p string) {
			patch(t, p, blk+100, flip, 1)
			patch(t, p, 2*blk+100, flip, 1)
		}, errdefs.Corruption, "zones 0 to 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, path := create(t, geo)
			put(t, d, 0, 1, 1)
			must(t, d.Flush())
			must(t, d.Close())
			c.damage(t, path)
			_, err := filedev.Open(path)
			if !errdefs.Is(err, c.kind) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v (%v), want %v saying %q", err, errdefs.KindOf(err), c.kind, c.say)
			}
		})
	}
}

// A slot that is torn loses to the other one: the state before the last flush, or the last.
func TestATornTableSlot(t *testing.T) {
	for slot := range int64(2) {
		d, path := create(t, geo) // slot 0 holds sequence 1
		put(t, d, 0, 1, 1)
		must(t, d.Flush()) // 2, slot 1
		put(t, d, 0, 1, 1)
		must(t, d.Flush()) // 3, slot 0
		must(t, d.Close())
		patch(t, path, blk+slot*blk+2000, flip, 1)
		d = reopen(t, path)
		want := int64(1 + slot) // with slot 0 torn, sequence 2 is the latest
		if at, _ := wp(t, d, 0); at != want {
			t.Errorf("slot %d torn: the write pointer is at %d, want %d", slot, at, want)
		}
		put(t, d, 0, 1, 1)
		must(t, d.Flush()) // must not go over the only good slot
		must(t, d.Close())
		d = reopen(t, path)
		if at, _ := wp(t, d, 0); at != want+1 {
			t.Errorf("slot %d torn, flushed again: %d, want %d", slot, at, want+1)
		}
		must(t, d.Close())
	}
}

// With 75,000 zones the table has 148 pages; a flush writes those that changed.
func TestAFlushWritesOnlyPagesThatChanged(t *testing.T) {
	g := geo
	g.Zones = 75_000
	d, path := create(t, g)
	snapshot := func() (pages [148]string) { // both slots of each page
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		b := make([]byte, 2*blk)
		for p := range pages {
			_, err = f.ReadAt(b, blk+int64(p)*2*blk)
			must(t, err)
			pages[p] = string(b)
		}
		return pages
	}
	before := snapshot()
	put(t, d, 0, 1, 1)
	put(t, d, 70_000, 2, 1)
	must(t, d.Flush())
	after := snapshot()
	for p := range after {
		if changed := after[p] != before[p]; changed != (p == 0 || p == 70_000/510) {
			t.Errorf("page %d changed: %v", p, changed)
		}
	}
	must(t, d.Close())
	d = reopen(t, path)
	defer d.Close()
	expect(t, d, 70_000, 0, 2, 1)
}

// child appends and flushes until it is killed, saying after each flush how far it got.
func child(path string) {
	d, err := filedev.Open(path)
	if err != nil {
		panic(err)
	}
	for i := 1; ; i++ {
		if _, err := d.Append(1, data(byte(i), 1)); err != nil {
			select {}
		}
		if err := d.Flush(); err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(strconv.Itoa(i) + "\n")
		_, _ = d.Append(2, data(byte(i), 1))
	}
}

func TestKilledProcess(t *testing.T) {
	d, path := create(t, geo)
	must(t, d.Close())
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var said []byte
	for p := make([]byte, 64); bytes.Count(said, []byte("\n")) < 12; {
		n, err := out.Read(p)
		must(t, err)
		said = append(said, p[:n]...)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	flushed := int64(bytes.Count(said, []byte("\n")))
	d = reopen(t, path)
	defer d.Close()
	at, c := wp(t, d, 1)
	if at < flushed || c != zone.Closed && c != zone.Full {
		t.Fatalf("%d blocks were flushed; zone 1 is %v at %d", flushed, c, at)
	}
	for i := range at {
		expect(t, d, 1, i, byte(i+1), 1)
	}
}

func TestConcurrentFlushes(t *testing.T) {
	d, path := create(t, geo)
	var wg sync.WaitGroup
	for z := range 3 {
		wg.Go(func() {
			for range 12 {
				if _, err := d.Append(z, data(byte(z), 2)); err != nil {
					t.Error(err)
				}
				if err := d.Flush(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, d.Close())
	d = reopen(t, path)
	defer d.Close()
	for z := range 3 {
		expect(t, d, z, 0, byte(z), 24)
	}
}

// The active limit holds at open even if two pages of the table are of different ages.
func TestPagesOfDifferentAges(t *testing.T) {
	g := geo
	g.Zones, g.MaxOpen, g.MaxActive = 600, 1, 1
	d, path := create(t, g)
	put(t, d, 5, 5, 3)
	must(t, d.Flush())
	must(t, d.Finish(5))
	put(t, d, 590, 6, 4)
	must(t, d.Flush())
	must(t, d.Close())
	patch(t, path, blk+10, flip, 1) // page 0, slot 0: the finish is lost
	d = reopen(t, path)
	defer d.Close()
	if at, c := wp(t, d, 5); at != 3 || c != zone.Closed {
		t.Errorf("zone 5 is %v at %d", c, at)
	}
	if _, c := wp(t, d, 590); c != zone.Full {
		t.Errorf("zone 590 is %v", c)
	}
	expect(t, d, 590, 0, 6, 4)
	expect(t, d, 590, 4, 0, 44)
	put(t, d, 5, 5, 1)
	if _, err := d.Append(7, data(1, 1)); !errors.Is(err, zone.ErrTooManyActive) {
		t.Errorf("append to an empty zone: %v", err)
	}
}

func TestFileSpaceIsTakenOnceAndKept(t *testing.T) {
	d, path := create(t, geo)
	defer d.Close()
	used := func() int64 {
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		return st.Blocks * 512
	}
	empty := used()
	must(t, d.Open(3))
	if got := used() - empty; got < geo.ZoneCapacity {
		t.Skipf("opening a zone took %d bytes: no fallocate here", got)
	}
	after := used()
	put(t, d, 3, 1, 48)
	must(t, d.Reset(3))
	must(t, d.Flush())
	put(t, d, 3, 1, 48)
	must(t, d.Flush())
	if got := used(); got > after+8*blk || got < after {
		t.Errorf("space went from %d to %d over a reset", after, got)
	}
}
