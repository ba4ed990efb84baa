package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// mixed is a reader of a file of mixed content: stretches of noise, of text and of zeros of
// uneven lengths, the same for the same seed.
type mixed struct {
	r    *rand.ChaCha8
	left int64 // of the file
	buf  []byte
}

func newMixed(seed uint64, size int64) *mixed {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return &mixed{r: rand.NewChaCha8(key), left: size}
}

func (m *mixed) Read(p []byte) (int, error) {
	if m.left == 0 {
		return 0, io.EOF
	}
	if len(m.buf) == 0 {
		m.buf = m.stretch()
	}
	n := copy(p[:min(int64(len(p)), m.left)], m.buf)
	m.buf, m.left = m.buf[n:], m.left-int64(n)
	return n, nil
}

func (m *mixed) stretch() []byte {
	draw := m.r.Uint64()
	n := int(draw>>8%(1<<20)) + 1
	b := make([]byte, 0, n+64)
	switch draw % 8 {
	case 0, 1, 2:
		b = b[:n]
		_, _ = m.r.Read(b)
	case 3:
		b = b[:n] // zeros
	default:
		for len(b) < n {
			b = append(strconv.AppendInt(append(b, "info record "...), int64(len(b)), 10), " of "...)
			b = append(strconv.AppendInt(b, int64(n), 10), " was appended to zone "...)
			b = append(strconv.AppendUint(b, m.r.Uint64()%256, 10), '\n')
		}
	}
	return b
}

func sum(r io.Reader) ([]byte, error) {
	h := sha256.New()
	_, err := io.CopyBuffer(struct{ io.Writer }{h}, r, make([]byte, 1<<20))
	return h.Sum(nil), err
}

// TestLargeFileSurvivesKillInTheNextPut replaces a large file and kills the engine in the middle:
// the old one is there, whole.
func TestLargeFileSurvivesKillInTheNextPut(t *testing.T) {
	size := int64(512 << 20)
	if testing.Short() {
		size = 64 << 20
	}
	want, err := sum(newMixed(1, size))
	must(t, err)
	s := started(t)
	put := s.clientCommand("put", "-q", "-", "large")
	put.Stdin = newMixed(1, size)
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("put: %v\n%s", err, out)
	}
	u := s.df()
	ratio := float64(u.Stored+u.Inline) / float64(size)
	figure(t, "a file of mixed content, %d bytes, is stored in %d bytes of extents: %.3f; metadata has %d bytes", size, u.Stored, ratio, u.Metadata)
	if ratio >= 0.5 {
		t.Errorf("mixed content is stored in %.3f of its size", ratio)
	}

	for round := range 2 {
		next := s.clientCommand("put", "-q", "-", "large")
		in, err := next.StdinPipe()
		must(t, err)
		must(t, next.Start())
		_, err = io.CopyBuffer(struct{ io.Writer }{in}, newMixed(2, size/4*int64(round+1)), make([]byte, 1<<20))
		must(t, err)
		s.kill()
		_ = next.Process.Kill() // it would go on after the restart
		_ = next.Wait()
		_ = in.Close()
		s.start()
		if got := fetched(t, s, "large"); !bytes.Equal(got, want) {
			t.Fatalf("round %d: the old content is not there whole", round)
		}
	}
	if u := s.df(); u.Files != 1 || u.Logical != size {
		// What the killed puts sent is kept for resuming and has no name.
		t.Logf("df counts %d files with %d bytes", u.Files, u.Logical)
	}
	s.stop()
	s.check()
}

// fetched returns the sum of what `client cat` prints.
func fetched(t *testing.T, s *store, name string) []byte {
	t.Helper()
	cat := s.clientCommand("cat", name)
	log := &record{}
	cat.Stderr = log
	out, err := cat.StdoutPipe()
	must(t, err)
	must(t, cat.Start())
	got, err := sum(out)
	must(t, err)
	if err := cat.Wait(); err != nil {
		t.Fatalf("client cat %s: %v\n%s", name, err, log)
	}
	return got
}

// TestLargePutIsCollectedLarge puts a file of 256 MiB as anybody would: what reaches the device
// was collected 128 MiB at a time (S0), also when the engine is killed in the middle.
func TestLargePutIsCollectedLarge(t *testing.T) {
	size := int64(256 << 20)
	path := filepath.Join(t.TempDir(), "large")
	file, err := os.Create(path)
	must(t, err)
	defer file.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, newMixed(5, size), make([]byte, 1<<20))
	must(t, err)
	s := started(t)
	begin := time.Now()
	s.client("put", "-q", path, "large")
	took := time.Since(begin)
	counters := func() map[string]uint64 {
		var info struct {
			Counters map[string]uint64 `json:"counters"`
		}
		must(t, json.Unmarshal([]byte(s.client("info", "--counters", "--output", "json")), &info))
		return info.Counters
	}
	c := counters()
	if n := c["delalloc_largest_range"]; n != 128<<20 {
		t.Errorf("the largest range that was collected has %d bytes", n)
	}
	// A slow machine writes some back by age.
	if n, least := c["delalloc_ranges"], uint64(size/(128<<20)); n < least || n > 2*least {
		t.Errorf("%d ranges were collected, %d do", n, least)
	}
	u := s.df()
	if ratio := float64(u.Stored+u.Inline) / float64(size); ratio < 0.1 || ratio >= 0.5 {
		t.Errorf("mixed content is stored in %.3f of its size", ratio)
	}
	figure(t, "a file of %d MiB put in %.1f s: %d ranges collected, %d flushes, %d commits",
		size>>20, took.Seconds(), c["delalloc_ranges"], c["flushes"], c["commits"])

	put := s.clientCommand("put", "-q", path, "again")
	log := &record{}
	put.Stderr = log
	must(t, put.Start())
	half, begin := counters()["client_bytes_written"]+uint64(size)/2, time.Now()
	for counters()["client_bytes_written"] < half && time.Since(begin) < startTime {
		time.Sleep(time.Millisecond)
	}
	s.restart()
	if err := put.Wait(); err != nil {
		t.Fatalf("a put over a kill: %v\n%s", err, log)
	}
	want, err := sum(newMixed(5, size))
	must(t, err)
	for _, name := range []string{"large", "again"} {
		if got := fetched(t, s, name); !bytes.Equal(got, want) {
			t.Errorf("%s differs", name)
		}
	}
	s.stop()
	s.check()
}
