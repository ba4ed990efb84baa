package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
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
			b = fmt.Appendf(b, "%s record %d of %d was appended to zone %d\n", "info", len(b), n, m.r.Uint64()%256)
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
