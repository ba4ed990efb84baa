package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
)

// TestFiveHundredConnections has 500 clients at once, each with a connection of its own: readers that
// stop reading, some at once and some in mid-file, and beside them writers, readers and syncers that
// do not. All of these are served, the engine's memory stays within what its limits say, and those
// that had stopped find the rest of the file when they go on.
func TestFiveHundredConnections(t *testing.T) {
	const (
		dirtyLimit, readLimit, rest = 64, 128, 192 // MiB
		fileSize                    = 4 << 20
	)
	slow, readers, writers, syncers := 250, 50, 150, 50
	if testing.Short() {
		slow, readers, writers, syncers = 50, 10, 30, 10
	}
	s := started(t, "--dirty-limit", fmt.Sprintf("%dMiB", dirtyLimit), "--read-limit", fmt.Sprintf("%dMiB", readLimit))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	clients := make([]*client.Client, slow+readers+writers+syncers)
	for i := range clients {
		clients[i] = s.dial()
	}
	shared := make([]byte, fileSize)
	_, _ = io.ReadFull(&noise{x: 1}, shared)
	must(t, write(ctx, clients[0], "shared", shared))
	connect(ctx, t, clients)
	peak := watchMemory(t, s.cmd.Process.Pid)

	each := func(from, n int, what string, do func(i int, c *client.Client) error) (wait func()) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if err := do(i, clients[from+i]); err != nil {
					t.Errorf("%s %d: %v", what, i, err)
				}
			})
		}
		return wg.Wait
	}
	stopped := make([]*client.Reader, slow)
	each(0, slow, "slow reader", func(i int, c *client.Client) (err error) {
		if stopped[i], err = c.Read(ctx, "shared", client.ReadOptions{}); err == nil {
			_, err = io.CopyN(io.Discard, stopped[i], int64(i%3)<<20)
		}
		return err
	})()
	if t.Failed() {
		return
	}
	begin := time.Now()
	waits := []func(){
		each(slow, readers, "reader", func(_ int, c *client.Client) error { return readsAs(ctx, c, "shared", shared) }),
		each(slow+readers, writers, "writer", func(i int, c *client.Client) error {
			data := make([]byte, 200_000+i)
			_, _ = (&noise{x: uint64(i)}).Read(data)
			name := fmt.Sprintf("written/%d", i)
			return cmp.Or(write(ctx, c, name, data), readsAs(ctx, c, name, data))
		}),
		each(slow+readers+writers, syncers, "syncer", func(i int, c *client.Client) error {
			for round := range 3 {
				if _, err := c.Create(ctx, fmt.Sprintf("made/%d/%d", i, round), client.CreateOptions{}); err != nil {
					return err
				}
				if _, err := c.Sync(ctx, client.SyncOptions{}); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	for _, wait := range waits {
		wait()
	}
	took := time.Since(begin)
	each(0, slow, "slow reader that goes on", func(i int, _ *client.Client) error {
		if i >= 30 {
			return stopped[i].Close() // without having read the rest
		}
		return errors.Join(same(stopped[i], shared[int64(i%3)<<20:]), stopped[i].Close())
	})()
	most := peak()
	figure(t, "%d connections, %d of them readers that stopped: the others served in %.1f s, at most %d MiB of anonymous memory with limits of %d and %d MiB",
		len(clients), slow, took.Seconds(), most>>20, dirtyLimit, readLimit)
	if limit := int64(dirtyLimit+readLimit+rest) << 20; most > limit {
		t.Errorf("anonymous memory reached %d MiB, the bound is %d MiB", most>>20, limit>>20)
	}
	quiet(ctx, t, clients[0])
}

// connect has each client make its connection, a few at a time: a machine that has much else to do
// does not set up 500 within the time that a client gives one.
func connect(ctx context.Context, t *testing.T, clients []*client.Client) {
	t.Helper()
	turns := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i, c := range clients {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			if _, err := c.Info(ctx); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// write replaces a file and syncs it.
func write(ctx context.Context, c *client.Client, name string, data []byte) error {
	w, err := c.Write(ctx, name, client.WriteOptions{Mode: client.Replace})
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return errors.Join(err, w.Close())
	}
	return w.Close()
}

// readsAs reads a file and expects want.
func readsAs(ctx context.Context, c *client.Client, name string, want []byte) error {
	r, err := c.Read(ctx, name, client.ReadOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := same(r, want); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// same reads r to its end and expects want.
func same(r *client.Reader, want []byte) error {
	left := expected(want)
	if _, err := r.WriteTo(&left); err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("the last %d of %d bytes are missing", len(left), len(want))
	}
	return nil
}

// expected is what is still to be written to it.
type expected []byte

func (e *expected) Write(p []byte) (int, error) {
	if !bytes.HasPrefix(*e, p) {
		return 0, fmt.Errorf("%d bytes are not those expected, with %d to come", len(p), len(*e))
	}
	*e = (*e)[len(p):]
	return len(p), nil
}

// watchMemory looks at the anonymous memory of a process all the time; peak ends that and returns
// the most it was. Where the system does not tell it is 0.
func watchMemory(t *testing.T, pid int) (peak func() int64) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var most int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if n, err := anonymous(pid); err == nil {
				most = max(most, n)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return func() int64 {
		cancel()
		<-done
		return most
	}
}

// quiet syncs, and expects that soon afterwards nothing is held for anybody: no reads open, no memory of
// reads or of dirty data, nothing reserved; and that the account of space adds up.
func quiet(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	_, err := c.Sync(ctx, client.SyncOptions{})
	must(t, err)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		held := ""
		counters, err := c.Counters(ctx)
		must(t, err)
		for _, name := range []string{"reads_open", "read_memory_bytes", "dirty_memory_bytes"} {
			n, ok := counters.GetCounters()[name]
			if !ok {
				t.Fatalf("there is no counter %s", name)
			}
			if n != 0 {
				held += fmt.Sprintf(" %s=%d", name, n)
			}
		}
		u, err := c.Usage(ctx)
		must(t, err)
		if sum := u.GetUsedBytes() + u.GetFreeBytes() + u.GetZoneUnusableBytes() + u.GetReservedBytes() + u.GetQuarantinedBytes(); sum != u.GetTotalBytes() {
			t.Fatalf("used, free, unusable, reserved and quarantined add up to %d and not to %d: %v", sum, u.GetTotalBytes(), u)
		}
		if u.GetDirtyBytes() != 0 || u.GetReservedBytes() != 0 {
			held += fmt.Sprintf(" dirty=%d reserved=%d", u.GetDirtyBytes(), u.GetReservedBytes())
		}
		if held == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("with nobody there is still held:%s", held)
		}
	}
}
