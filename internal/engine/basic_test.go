package engine

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// modes runs a test with and without compression and delayed allocation; a short run has each
// of them on and off once.
func modes(t *testing.T, run func(t *testing.T, o Options)) {
	for _, codec := range []extent.Codec{extent.CodecNone, extent.CodecZstd} {
		for _, direct := range []bool{false, true} {
			if testing.Short() && direct == (codec == extent.CodecNone) {
				continue
			}
			t.Run(fmt.Sprintf("%s/nodelalloc=%t", codec, direct), func(t *testing.T) {
				c := codec
				run(t, Options{Compression: &c, NoDelalloc: direct})
			})
		}
	}
}

func TestPutGetAcrossRestart(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newBench(t, smallZNS, o)
		e := b.open()
		want := map[string][]byte{
			"empty": nil, "tiny": []byte("hello"), "dir/small": text(1, 3000), "dir/deep/block": noise(2, 4096),
			"odd": text(3, 100_001), "large": noise(4, 3<<20), "text": text(5, 5<<20+17),
		}
		for name, data := range want {
			f := put(t, e, name, data)
			if f.Size != int64(len(data)) || f.Name != name || f.ContentCRC == nil {
				t.Fatalf("put %s answers %+v", name, f)
			}
		}
		for range 2 {
			for name, data := range want {
				if got := readAll(t, e, name); !bytes.Equal(got, data) {
					t.Fatalf("%s differs (%d bytes, want %d)", name, len(got), len(data))
				}
			}
			checkIdentity(t, e)
			e = b.reopen()
		}
		if c := e.Conditions(); len(c) != 0 {
			t.Fatalf("a clean store has conditions: %+v", c)
		}
	})
}

func TestWriteInPlace(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newBench(t, smallZNS, o)
		e := b.open()
		want := make([]byte, 300_000)
		for i, w := range []struct{ off, n int }{{0, 10}, {5, 4096}, {100_000, 200_000}, {4095, 2}, {8192, 4096}, {99_999, 3}, {250_000, 1}} {
			data := noise(uint64(i), w.n)
			writeAt(t, e, "f", int64(w.off), data)
			copy(want[w.off:], data)
			if i%2 == 1 {
				syncAll(t, e)
			}
			got := readAll(t, e, "f")
			if !bytes.Equal(got, want[:len(got)]) {
				t.Fatalf("after write %d the file differs", i)
			}
		}
		syncAll(t, e)
		e = b.reopen()
		if !bytes.Equal(readAll(t, e, "f"), want) {
			t.Fatal("the file differs after a restart")
		}
	})
}

func TestTruncateAndPunch(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newBench(t, smallZNS, o)
		e := b.open()
		ctx := context.Background()
		for _, name := range []string{"small", "large"} {
			n := map[string]int{"small": 1500, "large": 400_000}[name]
			want := text(9, n)
			put(t, e, name, want)
			step := func(what string, off, end int) {
				t.Helper()
				switch what {
				case "truncate":
					if _, _, err := e.Truncate(ctx, name, int64(end), Preconditions{}); err != nil {
						t.Fatal(err)
					}
					for len(want) < end {
						want = append(want, 0)
					}
					want = want[:end]
				case "punch":
					if _, _, err := e.Deallocate(ctx, name, int64(off), int64(end-off), Preconditions{}); err != nil {
						t.Fatal(err)
					}
					clear(want[min(off, len(want)):min(end, len(want))])
				case "write":
					data := noise(uint64(off), end-off)
					writeAt(t, e, name, int64(off), data)
					for len(want) < end {
						want = append(want, 0)
					}
					copy(want[off:], data)
				}
				if got := readAll(t, e, name); !bytes.Equal(got, want) {
					t.Fatalf("%s %s [%d, %d): differs", name, what, off, end)
				}
				checkIdentity(t, e)
			}
			step("punch", n/3, n/2)
			step("truncate", 0, n-7)
			step("truncate", 0, n+5000)
			step("write", n/2, n/2+100)
			step("punch", n/2+10, n/2+20)
			step("truncate", 0, n/2+15)
			step("truncate", 0, n)
			step("write", n+10_000, n+10_001)
			step("punch", 0, n+20_000)
			step("truncate", 0, 0)
			step("write", 3, 9)
			e = b.reopen()
			if got := readAll(t, e, name); !bytes.Equal(got, want) {
				t.Fatal("differs after a restart")
			}
		}
	})
}

func TestNames(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	put(t, e, "a/b/c", []byte("1"))
	put(t, e, "a/b!", []byte("2"))
	put(t, e, "a/d", noise(1, 100_000))
	if _, _, err := e.Rename(ctx, RenameRequest{Name: "a", NewName: "z/y"}); err != nil {
		t.Fatal(err)
	}
	files, next, err := e.List(ctx, ListRequest{Recursive: true})
	if err != nil || next != "" {
		t.Fatal(err, next)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	if got := fmt.Sprint(names); got != "[z z/y z/y/b! z/y/b z/y/b/c z/y/d]" {
		t.Fatalf("listed %s", got)
	}
	if _, err := e.Delete(ctx, DeleteRequest{Name: "z"}); errdefs.ReasonOf(err) != errdefs.ReasonDirNotEmpty {
		t.Fatalf("deleting a directory that is not empty: %v", err)
	}
	f, err := e.Get(ctx, Ref{Name: "z/y/d"})
	if err != nil || f.Size != 100_000 {
		t.Fatal(err, f)
	}
	if _, _, err := e.Rename(ctx, RenameRequest{Name: "z/y/d", NewName: "z/y/b!"}); !errdefs.Is(err, errdefs.AlreadyExists) {
		t.Fatalf("rename over a file without replace: %v", err)
	}
	if _, _, err := e.Rename(ctx, RenameRequest{Name: "z/y/d", NewName: "z/y/b!", Replace: true}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readAll(t, e, "z/y/b!"), noise(1, 100_000)) {
		t.Fatal("the renamed file differs")
	}
	if _, _, err := e.Rename(ctx, RenameRequest{Name: "z", NewName: "z/y/q"}); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Fatalf("a directory moved into itself: %v", err)
	}
	if _, err := e.Delete(ctx, DeleteRequest{Name: "nothing"}); !errdefs.Is(err, errdefs.NotFound) {
		t.Fatal(err)
	}
	if _, err := e.Delete(ctx, DeleteRequest{Name: "nothing", AllowMissing: true}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "a\x00b", "\xff", string(make([]byte, 5000))} {
		if _, err := e.Get(ctx, Ref{Name: bad}); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("name %q: %v", bad, err)
		}
	}
}
