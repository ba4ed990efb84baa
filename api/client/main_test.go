package client

import (
	"bytes"
	"context"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/api/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial returns a client of s that is closed before s stops.
func dial(t testing.TB, s *clienttest.Server, opts ...Option) *Client {
	t.Helper()
	c, err := Dial(s.Addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// noise returns n bytes that do not repeat.
func noise(seed uint64, n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(p)
	return p
}

// within returns a context that ends a test that hangs; no test waits for it.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// holds fails the test unless the file's durable content is want.
func holds(t testing.TB, s *clienttest.Server, name string, want []byte) {
	t.Helper()
	_, durable, ok := s.Data(name)
	if !ok {
		t.Fatalf("%s: no such file", name)
	}
	if !bytes.Equal(durable, want) {
		t.Fatalf("%s: %d durable bytes are not the %d expected", name, len(durable), len(want))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checksum(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }
