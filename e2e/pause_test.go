package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
)

// TestPausedEngine stops the engine with SIGSTOP, as a hypervisor or a debugger does, and lets it go
// on, while clients write, sync and read. No client hears an error, and nothing is lost.
func TestPausedEngine(t *testing.T) {
	s := started(t, "--device", "file:"+t.TempDir()+"/device?size=1GiB&zone-size=8MiB")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var stop atomic.Bool
	var steps atomic.Int64
	const clients = 6
	files := make([][]byte, clients) // what each client was told is durable
	for i := range clients {
		c := s.dial(client.WithRetryTime(0)) // so that each error is heard
		wg.Go(func() {
			for round := uint64(0); !stop.Load(); round++ {
				data := make([]byte, 150_000)
				_, _ = (&noise{x: uint64(i)<<32 | round}).Read(data)
				name := fmt.Sprintf("paused/%d", i)
				if err := write(ctx, c, name, data); err != nil {
					t.Errorf("client %d, round %d: write: %v", i, round, err)
					return
				}
				files[i] = data
				if err := readsAs(ctx, c, name, data); err != nil {
					t.Errorf("client %d, round %d: read: %v", i, round, err)
					return
				}
				steps.Add(1)
			}
		})
	}
	// A long stream crosses all the pauses.
	long := make([]byte, 0, 64<<20)
	wg.Go(func() {
		w, err := s.dial(client.WithRetryTime(0)).Write(ctx, "long", client.WriteOptions{})
		if err != nil {
			t.Errorf("the long write: %v", err)
			return
		}
		source := &noise{x: 99}
		for !stop.Load() && len(long) < cap(long) {
			part := make([]byte, 100_000)
			_, _ = source.Read(part)
			if _, err := w.Write(part); err != nil {
				t.Errorf("the long write at %d: %v", len(long), err)
				return
			}
			long = append(long, part...)
			time.Sleep(5 * time.Millisecond)
		}
		if err := errors.Join(w.Sync(ctx), w.Close()); err != nil {
			t.Errorf("the end of the long write: %v", err)
		}
	})
	for _, pause := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second} {
		time.Sleep(300 * time.Millisecond)
		must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
		before := steps.Load()
		time.Sleep(pause)
		after := steps.Load()
		must(t, s.cmd.Process.Signal(syscall.SIGCONT))
		if after > before+clients { // each may have had all it needed to end one
			t.Errorf("%d rounds of %d clients went on without an engine", after-before, clients)
		}
		for deadline := time.Now().Add(20 * time.Second); steps.Load() == after && !t.Failed(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("nothing goes on after a pause of %v", pause)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	if t.Failed() {
		return
	}
	quiet(ctx, t, s.dial())
	s.restart()
	c := s.dial()
	for i, want := range files {
		must(t, readsAs(ctx, c, fmt.Sprintf("paused/%d", i), want))
	}
	must(t, readsAs(ctx, c, "long", long))
	s.stop()
	s.check()
	t.Logf("%d rounds, a stream of %d bytes", steps.Load(), len(long))
}

// TestPausedClient stops a client in the middle of a put and one in the middle of a get; their
// connections stay. Others write, sync, read, rename and delete as if they were not there, and the two
// end well when they go on.
func TestPausedClient(t *testing.T) {
	s := started(t, "--dirty-limit", "32MiB", "--device", "file:"+t.TempDir()+"/device?size=1GiB&zone-size=8MiB")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c := s.dial()
	big := make([]byte, 24<<20)
	_, _ = (&noise{x: 5}).Read(big)
	must(t, write(ctx, c, "big", big))

	// The put is stopped with a part of its file sent; what it was being fed goes on when it does.
	in, feed, err := os.Pipe()
	must(t, err)
	put := s.clientCommand("put", "-q", "-", "put")
	put.Stdin = in
	said := &record{}
	put.Stderr = said
	must(t, put.Start())
	t.Cleanup(func() { _ = put.Process.Kill() })
	_ = in.Close()
	_, err = feed.Write(big[:10<<20])
	must(t, err)
	must(t, put.Process.Signal(syscall.SIGSTOP))
	fed := make(chan error, 1)
	go func() {
		_, err := feed.Write(big[10<<20:])
		fed <- errors.Join(err, feed.Close())
	}()
	// The get is stopped with a part of its file read, and its window full.
	get := s.clientCommand("cat", "big")
	out, err := get.StdoutPipe()
	must(t, err)
	must(t, get.Start())
	t.Cleanup(func() { _ = get.Process.Kill() })
	got := make([]byte, 1<<20)
	_, err = io.ReadFull(out, got)
	must(t, err)
	must(t, get.Process.Signal(syscall.SIGSTOP))

	begin := time.Now()
	var wg sync.WaitGroup
	for i := range 6 {
		own := s.dial(client.WithRetryTime(0))
		wg.Go(func() {
			for round := range 8 {
				name := fmt.Sprintf("beside/%d", i)
				data := make([]byte, 1<<20)
				_, _ = (&noise{x: uint64(i*100 + round)}).Read(data)
				err := write(ctx, own, name, data)
				if err == nil {
					err = readsAs(ctx, own, name, data)
				}
				if err == nil {
					_, _, err = own.Rename(ctx, name, name+"-moved", client.RenameOptions{Replace: true})
				}
				if err == nil {
					_, err = own.Delete(ctx, name+"-moved", client.DeleteOptions{})
				}
				if err != nil {
					t.Errorf("client %d, round %d, beside those that are stopped: %v", i, round, err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)

	must(t, put.Process.Signal(syscall.SIGCONT))
	must(t, get.Process.Signal(syscall.SIGCONT))
	rest, err := io.ReadAll(out)
	must(t, errors.Join(err, get.Wait()))
	if got = append(got, rest...); !bytes.Equal(got, big) {
		t.Errorf("the get that was stopped has %d bytes, and not those of the file", len(got))
	}
	must(t, <-fed)
	if err := put.Wait(); err != nil {
		t.Errorf("the put that was stopped: %v: %s", err, said)
	}
	must(t, readsAs(ctx, c, "put", big))
	quiet(ctx, t, c)
	t.Logf("the others took %v", took)
}
