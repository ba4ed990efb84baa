package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
)

// A file under load consists of records. Each word of eight bytes says which version of its
// record it belongs to, and words do not cross blocks, so that every word read is of one version.
const (
	loadFiles      = 6
	recordsPerFile = 40
	wordSize       = 8
)

// recordSize is uneven, so that records share blocks and frames.
func recordSize(file, rec int) int { return wordSize * (1 + (file*7919+rec*104729)%3000) }

// loaded is one file and what is known of it. It is used by one goroutine at a time.
type loaded struct {
	file     int
	name     string
	offsets  [recordsPerFile + 1]int64
	written  [recordsPerFile]uint32 // the latest version that was sent
	received [recordsPerFile]uint32 // the latest that this run of the engine acknowledged
	durable  [recordsPerFile]uint32 // the latest that was acknowledged as durable
	fill     uint64                 // what words are filled with besides the version
}

func newLoaded(file int) *loaded {
	l := &loaded{file: file, name: fmt.Sprintf("load/%d/file", file), fill: uint64(file+1) * 0x9e3779b97f4a7c15}
	for rec := range recordsPerFile {
		l.offsets[rec+1] = l.offsets[rec] + int64(recordSize(file, rec))
	}
	return l
}

// word is what a word of a version holds, at an offset in the file: noise in some files and
// compressible in others.
func (l *loaded) word(off int64, version uint32) uint64 {
	w := uint64(version) << 32
	if l.file%2 == 0 {
		w |= (l.fill * uint64(off+1)) >> 33
	}
	return w
}

func (l *loaded) content(rec int, version uint32) []byte {
	b := make([]byte, 0, recordSize(l.file, rec))
	for off := l.offsets[rec]; off < l.offsets[rec+1]; off += wordSize {
		b = binary.LittleEndian.AppendUint64(b, l.word(off, version))
	}
	return b
}

// step overwrites records and makes them durable in one of three ways.
func (l *loaded) step(ctx context.Context, c *client.Client, r *rand.Rand) error {
	way := r.IntN(3)
	first, n := r.IntN(recordsPerFile), 1+r.IntN(5)
	n = min(n, recordsPerFile-first)
	w, err := c.Write(ctx, l.name, client.WriteOptions{Offset: l.offsets[first], Sync: way == 0})
	if err != nil {
		return err
	}
	for rec := first; rec < first+n; rec++ {
		l.written[rec]++
		if _, err := w.Write(l.content(rec, l.written[rec])); err != nil {
			return err
		}
	}
	if way == 1 {
		if err := w.Sync(ctx); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	for rec := first; rec < first+n; rec++ {
		l.received[rec] = l.written[rec]
		if way != 2 {
			l.durable[rec] = l.written[rec]
		}
	}
	if way != 2 || r.IntN(2) == 0 {
		return nil // durable, or left to the next sync of the file, or lost
	}
	if _, err := c.Sync(ctx, client.SyncOptions{Names: []string{l.name}, BootID: w.BootID()}); err != nil {
		return err
	}
	l.durable = l.received
	return nil
}

// verify reads the file after a crash: every word is of a version that was sent, and none older
// than what was acknowledged as durable. What it finds is what there is from now on.
func (l *loaded) verify(t *testing.T, c *client.Client) {
	t.Helper()
	r, err := c.Read(t.Context(), l.name, client.ReadOptions{})
	if client.IsNotFound(err) {
		for rec, v := range l.durable {
			if v > 0 {
				t.Fatalf("%s is gone; record %d was durable in version %d", l.name, rec, v)
			}
		}
		l.received = l.durable
		return
	}
	must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	must(t, err)
	for rec := range recordsPerFile {
		oldest := l.written[rec]
		for off := l.offsets[rec]; off < l.offsets[rec+1]; off += wordSize {
			version := uint32(0)
			if off+wordSize <= int64(len(b)) {
				w := binary.LittleEndian.Uint64(b[off:])
				version = uint32(w >> 32)
				if w != 0 && w != l.word(off, version) {
					t.Fatalf("%s at %d: %x was never written", l.name, off, w)
				}
			}
			if version < l.durable[rec] || version > l.written[rec] {
				t.Fatalf("%s at %d, record %d: version %d, but %d was durable and %d written",
					l.name, off, rec, version, l.durable[rec], l.written[rec])
			}
			oldest = min(oldest, version)
		}
		l.durable[rec], l.received[rec] = oldest, oldest
	}
}

// named is a goroutine's record of names that came and went.
type named struct {
	exists map[string][]byte // acknowledged
	doubt  map[string][]byte // a call about it was not answered: there or not, with this content if it is
	serial int
}

// step makes a file, and perhaps renames and deletes it.
func (n *named) step(ctx context.Context, c *client.Client, r *rand.Rand) error {
	n.serial++
	name := fmt.Sprintf("names/%d/%d", n.serial%7, n.serial)
	data := bytes.Repeat([]byte(name), 1+r.IntN(3000))
	n.doubt[name] = data
	w, err := c.Write(ctx, name, client.WriteOptions{Mode: client.Replace})
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	n.settle(name, data)
	if r.IntN(2) == 0 {
		to := name + "-moved"
		n.suspect(name)
		n.doubt[to] = data
		if _, _, err := c.Rename(ctx, name, to, client.RenameOptions{}); err != nil {
			return err
		}
		delete(n.doubt, name)
		n.settle(to, data)
		name = to
	}
	if r.IntN(2) == 0 {
		n.suspect(name)
		if _, err := c.Delete(ctx, name, client.DeleteOptions{}); err != nil {
			return err
		}
		delete(n.doubt, name)
	}
	return nil
}

func (n *named) settle(name string, data []byte) {
	delete(n.doubt, name)
	n.exists[name] = data
}

func (n *named) suspect(name string) {
	n.doubt[name] = n.exists[name]
	delete(n.exists, name)
}

// verify lists all names after a crash and reads their files.
func (n *named) verify(t *testing.T, c *client.Client) {
	t.Helper()
	there := map[string]bool{}
	for f, err := range c.List(t.Context(), "names", client.ListOptions{Recursive: true}) {
		if client.IsNotFound(err) {
			break
		}
		must(t, err)
		if f.GetKind() == 2 {
			continue
		}
		name := f.GetName()
		there[name] = true
		want, known := n.exists[name]
		if !known {
			if want, known = n.doubt[name]; !known {
				t.Fatalf("%s is there and was deleted", name)
			}
			n.settle(name, want)
		}
		r, err := c.Read(t.Context(), name, client.ReadOptions{})
		must(t, err)
		got, err := io.ReadAll(r)
		_ = r.Close()
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("%s has %d bytes that are not those %d that were put", name, len(got), len(want))
		}
	}
	for name := range n.exists {
		if !there[name] {
			t.Fatalf("%s is gone", name)
		}
	}
	clear(n.doubt)
}

// TestKillUnderLoad kills the engine at any moment of concurrent writing, syncing, renaming and
// deleting, and finds everything that was acknowledged as durable.
func TestKillUnderLoad(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for _, mode := range []string{"delalloc", "nodelalloc"} {
		t.Run(mode, func(t *testing.T) {
			args := []string{"--device", "file:" + t.TempDir() + "/device?size=1GiB&zone-size=8MiB&zone-capacity=6MiB&max-open=4&max-active=5&append-limit=672KiB"}
			if mode == "nodelalloc" {
				args = append(args, "--nodelalloc")
			}
			killUnderLoad(t, args, rounds/2)
		})
	}
}

func killUnderLoad(t *testing.T, args []string, rounds int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := newStore(t, args...)
	var files []*loaded
	for i := range loadFiles {
		files = append(files, newLoaded(i))
	}
	names := &named{exists: map[string][]byte{}, doubt: map[string][]byte{}}
	for round := range rounds {
		s.start()
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		c := s.dial(client.WithRetryTime(0))
		names.verify(t, c)
		for _, l := range files {
			l.verify(t, c)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var steps atomic.Int64
		run := func(what string, step func(context.Context, *client.Client, *rand.Rand) error) {
			own := rand.New(rand.NewPCG(r.Uint64(), 1))
			wg.Go(func() {
				var err error
				for ; err == nil; err = step(ctx, c, own) {
					steps.Add(1)
				}
				if !client.IsUnavailable(err) && !errors.Is(err, context.Canceled) {
					t.Errorf("round %d, %s: %v", round, what, err)
				}
			})
		}
		for _, l := range files {
			run(l.name, l.step)
		}
		run("names", names.step)
		for round == 0 && steps.Load() < 50 && ctx.Err() == nil && !t.Failed() {
			time.Sleep(time.Millisecond) // not one run in which nothing happens
		}
		time.Sleep(time.Duration(20+r.IntN(400)) * time.Millisecond)
		s.kill()
		cancel()
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	s.start()
	c := s.dial()
	names.verify(t, c)
	synced := uint32(0)
	for _, l := range files {
		l.verify(t, c)
		for _, v := range l.durable {
			synced += v
		}
	}
	if synced == 0 || names.serial == 0 {
		t.Fatalf("nothing happened: %d versions durable, %d names", synced, names.serial)
	}
	s.kill()
	s.check()
	t.Logf("%d versions of records durable, %d names", synced, names.serial)
}
