package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestClonesSurviveKill clones a large file with the CLI while it is the newest thing there is,
// kills the engine, and lets the copies go their own ways.
func TestClonesSurviveKill(t *testing.T) {
	const size = 24 << 20
	s := started(t)
	src := filepath.Join(t.TempDir(), "src")
	f, err := os.Create(src)
	must(t, err)
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), io.LimitReader(newMixed(7, size), size))
	must(t, err)
	must(t, f.Close())
	want := h.Sum(nil)
	s.client("put", "-q", src, "src")
	before := s.df()
	begin := time.Now()
	s.client("clone", "src", "copies/one")
	took := time.Since(begin)
	s.client("clone", "src", "copies/")
	s.restart()
	for _, name := range []string{"src", "copies/one", "copies/src"} {
		if got := fetched(t, s, name); !bytes.Equal(got, want) {
			t.Errorf("%s has come back otherwise", name)
		}
	}
	u := s.df()
	if u.Used != before.Used || u.Logical != 3*before.Logical {
		t.Errorf("three copies use %d bytes and hold %d, one used %d and held %d", u.Used, u.Logical, before.Used, before.Logical)
	}
	figure(t, "a clone of %d MiB takes %.0f ms and %d bytes of metadata", size>>20, float64(took.Microseconds())/1000, (u.Metadata-before.Metadata)/2)
	shared := func(name string) (bytes, all int64) {
		var m struct {
			Extents []struct {
				Length int64
				Shared bool
			}
		}
		must(t, json.Unmarshal([]byte(s.client("map", name, "--output", "json")), &m))
		for _, x := range m.Extents {
			if all += x.Length; x.Shared {
				bytes += x.Length
			}
		}
		return bytes, all
	}
	if n, all := shared("src"); n != size || all != size {
		t.Errorf("%d of %d bytes are shared", n, all)
	}
	must(t, os.WriteFile(src, []byte("another"), 0o600))
	s.client("put", "-q", src, "copies/src")
	s.client("rm", "src")
	s.client("rm", "copies/src")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		n, all := shared("copies/one")
		if n == 0 && all == size {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d bytes are shared still", n, all)
		}
	}
	if got := fetched(t, s, "copies/one"); !bytes.Equal(got, want) {
		t.Error("the last copy has changed")
	}
	if table := s.client("map", "copies/one"); !strings.Contains(table, "extents found") || !strings.Contains(table, ",last") {
		t.Errorf("map prints:\n%s", table)
	}
	s.stop()
	s.check()
}
