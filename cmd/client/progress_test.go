package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
	"github.com/shingle-store/shingle/api/client/clienttest"
)

func TestProgressLine(t *testing.T) {
	for _, c := range []struct {
		files, bytes, total int64
		measured            bool
		elapsed             time.Duration
		want                string
	}{
		{0, 0, 0, false, 0, "0 files, 0 B, 0 B/s"},
		{1, 10 << 20, 0, false, 10 * time.Second, "1 file, 10.0 MiB, 1.00 MiB/s"},
		{2, 10 << 20, 100 << 20, true, 10 * time.Second, "2 files, 10.0 MiB of 100 MiB, 1.00 MiB/s, 0:01:30 left"},
		{2, 100 << 20, 100 << 20, true, 10 * time.Second, "2 files, 100 MiB of 100 MiB, 10.0 MiB/s, 0:00:00 left"},
		{0, 0, 100 << 20, true, time.Second, "0 files, 0 B, 0 B/s"},                // nothing says how long
		{1, 11 << 20, 10 << 20, true, time.Second, "1 file, 11.0 MiB, 11.0 MiB/s"}, // it has grown
	} {
		p := &progress{}
		p.files.Store(c.files)
		p.bytes.Store(c.bytes)
		p.total.Store(c.total)
		p.measured.Store(c.measured)
		if got := p.line(c.elapsed); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestProgressMeasures: the measuring ends with the work, and nothing is measured for nobody.
func TestProgressMeasures(t *testing.T) {
	unwatched := &progress{}
	unwatched.expect(t.Context(), func(context.Context) (int64, error) {
		t.Error("measured for nobody")
		return 0, nil
	})
	unwatched.done()

	watched := func() *progress {
		p := &progress{stop: make(chan struct{}), stopped: make(chan struct{})}
		close(p.stopped)
		return p
	}
	p := watched()
	p.expect(t.Context(), func(ctx context.Context) (int64, error) {
		<-ctx.Done()
		return 5, ctx.Err()
	})
	p.done()
	if p.measured.Load() {
		t.Error("a measuring that was cut off counts")
	}
	p, ready := watched(), make(chan struct{})
	p.expect(t.Context(), func(context.Context) (int64, error) {
		defer close(ready)
		return 5, nil
	})
	<-ready
	p.done()
	if !p.measured.Load() || p.total.Load() != 5 {
		t.Errorf("measured %d", p.total.Load())
	}
}

func TestSizesBeforehand(t *testing.T) {
	dir := folder(t, map[string]string{"a": "12345", "d/b": "123", "d/e/c": "1", "d/no/": ""})
	must(t, os.Symlink("d", filepath.Join(dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	in := func(names ...string) (out []string) {
		for _, n := range names {
			out = append(out, filepath.Join(dir, n))
		}
		return out
	}
	for _, c := range []struct {
		srcs []string
		want int64
		err  error
	}{
		{in("a"), 5, nil}, {in("d", "a"), 9, nil}, {in("."), 9, nil}, {in("link"), 4, nil}, {in("no", "a"), 5, nil},
		{in("fifo", "a"), 0, errUnmeasured}, {[]string{"-"}, 0, errUnmeasured},
	} {
		if n, err := sourcesSize(t.Context(), c.srcs); n != c.want || !errors.Is(err, c.err) {
			t.Errorf("%v: %d, %v", c.srcs, n, err)
		}
	}
	s := clienttest.New(t)
	cli(t, s.Addr, "", "put", "-q", "-r", dir, "x").ok(t)
	c, err := client.Dial(s.Addr)
	must(t, err)
	defer c.Close()
	a := &app{c: c}
	for _, c := range []struct {
		srcs []string
		want int64
	}{{[]string{"x"}, 9}, {[]string{"/"}, 9}, {[]string{"x/a", "x/d/"}, 9}, {[]string{"no", "x/a"}, 5}} {
		if n, err := a.storedSize(t.Context(), c.srcs); n != c.want || err != nil {
			t.Errorf("%v: %d, %v", c.srcs, n, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sourcesSize(gone, in("d")); err == nil {
		t.Error("an end that was asked for is no error")
	}
}
