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

	"github.com/anishathalye/porcupine"

	"github.com/shingle-store/shingle/api/client"
)

const (
	blockSize     = 4096
	linearFiles   = 4
	linearBlocks  = 4
	linearClients = 8
)

// historian writes down what concurrent clients do to shared registers.
type historian struct {
	begin  time.Time
	serial atomic.Uint64 // of values

	mu      sync.Mutex
	history []porcupine.Operation
	pending []porcupine.Operation // unanswered writes: Return is not known before the crash
}

func (h *historian) now() int64 { return int64(time.Since(h.begin)) }

func (h *historian) add(client int, e event, call, done int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history = append(h.history, porcupine.Operation{ClientId: client, Input: e, Call: call, Return: done})
}

// crashed writes the end of a run down: each write that was not answered was over by now.
func (h *historian) crashed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.now()
	for _, op := range h.pending {
		op.Return = end
		h.history = append(h.history, op)
	}
	h.pending = nil
	for file := range linearFiles {
		for block := range linearBlocks {
			h.history = append(h.history, porcupine.Operation{
				ClientId: linearClients, Input: event{register{file, block}, crash, 0}, Call: end + 1, Return: end + 1,
			})
		}
	}
}

func linearName(file int) string { return fmt.Sprintf("linear/%d", file) }

// blockOf is the content that stands for a value: noise in some files, compressible in others.
func blockOf(file int, value uint64) []byte {
	b := make([]byte, blockSize)
	if value == 0 {
		return b
	}
	for i := 0; i < blockSize; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], value)
	}
	if file%2 == 0 {
		_, _ = (&noise{x: value}).Read(b[8:])
	}
	return b
}

// write puts a new value into the register. Not answered, it may have been written or not.
func (h *historian) write(ctx context.Context, c *client.Client, id int, r register) error {
	e := event{r, writes, h.serial.Add(1)}
	call := h.now()
	err := func() error {
		w, err := c.Write(ctx, linearName(r.file), client.WriteOptions{Offset: int64(r.block) * blockSize})
		if err != nil {
			return err
		}
		_, err = w.Write(blockOf(r.file, e.value))
		return errors.Join(err, w.Close())
	}()
	if err == nil {
		h.add(id, e, call, h.now())
		return nil
	}
	e.verb = perhaps
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending = append(h.pending, porcupine.Operation{ClientId: id, Input: e, Call: call})
	return err
}

func (h *historian) read(ctx context.Context, c *client.Client, id int, r register) error {
	call := h.now()
	value, err := readRegister(ctx, c, r)
	if err == nil {
		h.add(id, event{r, reads, value}, call, h.now())
	}
	return err
}

func readRegister(ctx context.Context, c *client.Client, r register) (uint64, error) {
	length := int64(blockSize)
	rd, err := c.Read(ctx, linearName(r.file), client.ReadOptions{Offset: int64(r.block) * blockSize, Length: &length})
	if client.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer rd.Close()
	b, err := io.ReadAll(rd)
	if err != nil || len(b) == 0 {
		return 0, err // past the end of the file nothing has been written
	}
	value := binary.LittleEndian.Uint64(b)
	if !bytes.Equal(b, blockOf(r.file, value)) {
		return 0, fmt.Errorf("block %v is of no one value: %x at its beginning, %x at its end", r, b[:16], b[len(b)-8:])
	}
	return value, nil
}

func (h *historian) sync(ctx context.Context, c *client.Client, id, file int) error {
	call := h.now()
	_, err := c.Sync(ctx, client.SyncOptions{Names: []string{linearName(file)}})
	if client.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	done := h.now()
	for block := range linearBlocks {
		h.add(id, event{register{file, block}, syncs, 0}, call, done)
	}
	return nil
}

// TestLinearizableAndDurable has clients write, read and sync the same blocks of the same files while
// the engine is killed again and again. Within a run reads are linearizable; over a kill each block
// holds what was synced last, or something that was written later.
func TestLinearizableAndDurable(t *testing.T) {
	for _, mode := range []string{"delalloc", "nodelalloc"} {
		t.Run(mode, func(t *testing.T) {
			args := []string{"--device", "file:" + t.TempDir() + "/device?size=512MiB&zone-size=4MiB&zone-capacity=3MiB&max-open=4&max-active=5"}
			if mode == "nodelalloc" {
				args = append(args, "--nodelalloc")
			}
			linearizable(t, args)
		})
	}
}

func linearizable(t *testing.T, args []string) {
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := newStore(t, args...)
	h := &historian{begin: time.Now()}
	for round := range rounds {
		s.start()
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var wg sync.WaitGroup
		before := h.serial.Load()
		for id := range linearClients {
			own, c := rand.New(rand.NewPCG(r.Uint64(), 1)), s.dial(client.WithRetryTime(0))
			wg.Go(func() {
				for {
					at := register{own.IntN(linearFiles), own.IntN(linearBlocks)}
					var err error
					switch n := own.IntN(100); {
					case n < 45:
						err = h.write(ctx, c, id, at)
					case n < 85:
						err = h.read(ctx, c, id, at)
					default:
						err = h.sync(ctx, c, id, at.file)
					}
					if err != nil {
						if !client.IsUnavailable(err) {
							t.Errorf("round %d, client %d: %v", round, id, err)
						}
						return
					}
				}
			})
		}
		for h.serial.Load() < before+50 && ctx.Err() == nil && !t.Failed() {
			time.Sleep(time.Millisecond) // not one run in which nothing happens
		}
		time.Sleep(time.Duration(20+r.IntN(300)) * time.Millisecond)
		s.kill()
		wg.Wait()
		cancel()
		h.crashed()
		if t.Failed() {
			return
		}
	}
	s.start()
	c := s.dial()
	for file := range linearFiles {
		for block := range linearBlocks {
			must(t, h.read(t.Context(), c, linearClients, register{file, block}))
		}
	}
	s.stop()
	count := map[verb]int{}
	for _, op := range h.history {
		count[op.Input.(event).verb]++
	}
	begin := time.Now()
	if verdict := checkHistory(h.history, 20*time.Second); verdict != "" {
		t.Fatal(verdict)
	}
	t.Logf("%d writes, %d unanswered, %d reads, %d syncs of a block, %d kills; judged in %v",
		count[writes], count[perhaps], count[reads], count[syncs], rounds, time.Since(begin).Round(time.Millisecond))
	if count[reads] == 0 || count[syncs] == 0 || count[writes] == 0 {
		t.Error("nothing happened")
	}
	s.check()
}
