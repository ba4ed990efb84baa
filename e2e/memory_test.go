package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

var streamed = flag.Int64("e2e.stream", 512, "how many MiB TestMemoryIsBounded streams")

// TestMemoryIsBounded streams incompressible data from a pipe: the engine's anonymous memory
// stays under the dirty limit and 256 MiB. CI streams 2 GiB.
func TestMemoryIsBounded(t *testing.T) {
	size := *streamed << 20
	if testing.Short() {
		size = min(size, 256<<20)
	}
	s := started(t, "--dirty-limit", "128MiB")
	if _, err := anonymous(s.cmd.Process.Pid); err != nil {
		leaveOut(t, "this system does not tell anonymous memory: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var peak int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if n, err := anonymous(s.cmd.Process.Pid); err == nil {
				peak = max(peak, n)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	put := s.clientCommand("put", "-q", "-", "noise")
	put.Stdin = io.LimitReader(&noise{}, size)
	begin := time.Now()
	out, err := put.CombinedOutput()
	took := time.Since(begin)
	cancel()
	wg.Wait()
	if err != nil {
		t.Fatalf("put: %v\n%s", err, out)
	}
	figure(t, "%d MiB of noise from a pipe in %.1f s: at most %d MiB of anonymous memory with a dirty limit of 128 MiB",
		size>>20, took.Seconds(), peak>>20)
	if limit := int64(128+256) << 20; peak > limit || peak == 0 {
		t.Errorf("anonymous memory reached %d MiB, the bound is %d MiB", peak>>20, limit>>20)
	}
}

// anonymous returns the resident anonymous memory of a process in bytes.
func anonymous(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := bytes.Cut(b, []byte("\nRssAnon:"))
	if !ok {
		return 0, fmt.Errorf("no RssAnon")
	}
	fields := bytes.Fields(rest)
	if len(fields) < 2 || string(fields[1]) != "kB" {
		return 0, fmt.Errorf("RssAnon is not in kB")
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	return kib << 10, err
}

// noise is an endless reader of bytes that do not compress, made faster than any device writes.
type noise struct{ x uint64 }

func (n *noise) Read(p []byte) (int, error) {
	x := n.x
	for i := range p {
		if i%8 == 0 { // splitmix64
			n.x += 0x9e3779b97f4a7c15
			x = n.x
			x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
			x = (x ^ x>>27) * 0x94d049bb133111eb
			x ^= x >> 31
		}
		p[i] = byte(x >> (i % 8 * 8))
	}
	return len(p), nil
}
