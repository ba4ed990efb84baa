package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// stamped returns blocks that each say whose they are, in every word.
func stamped(file, first, n int, version uint32) []byte {
	p := make([]byte, 0, n*extent.BlockSize)
	for b := range n {
		for range extent.BlockSize / 16 {
			p = binary.LittleEndian.AppendUint32(p, uint32(file))
			p = binary.LittleEndian.AppendUint32(p, uint32(first+b))
			p = binary.LittleEndian.AppendUint32(p, version)
			p = binary.LittleEndian.AppendUint32(p, version*2654435761)
		}
	}
	return p
}

// checkStamps reports a block of another file, of another place, or of two versions.
func checkStamps(file int, p []byte) error {
	for b := range len(p) / extent.BlockSize {
		block := p[b*extent.BlockSize:][:extent.BlockSize]
		version := binary.LittleEndian.Uint32(block[8:])
		for w := 0; w < len(block); w += 16 {
			f, at, v := binary.LittleEndian.Uint32(block[w:]), binary.LittleEndian.Uint32(block[w+4:]), binary.LittleEndian.Uint32(block[w+8:])
			if f != uint32(file) || at != uint32(b) || v != version {
				return fmt.Errorf("file %d block %d holds file %d block %d, versions %d and %d", file, b, f, at, version, v)
			}
		}
	}
	return nil
}

// TestReadsBesideReuse: on a disk so full that every freed block is written again at once, writers,
// a deleter and readers work together; no read sees a block of another file.
func TestReadsBesideReuse(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.MaxWait, o.WritebackAge = 20*time.Second, 10*time.Millisecond
		g := disk
		g.Zones, g.Conventional = 6, 6
		b := newFaultBench(t, g, o)
		e := b.open()
		const files, blocks = 4, 110 // of 512 in all
		for f := range files {
			put(t, e, fmt.Sprint("f", f), stamped(f, 0, blocks, 1))
		}
		// A read looks up, and then takes its time to the device.
		b.mem.SetHook(func(op zone.Op) error {
			if op.Kind == zone.OpRead && !op.After {
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		stop := time.Now().Add(1500 * time.Millisecond)
		if testing.Short() {
			stop = time.Now().Add(400 * time.Millisecond)
		}
		var wg sync.WaitGroup
		for f := range files {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(f), 1))
				name := fmt.Sprint("f", f)
				for version := uint32(2); time.Now().Before(stop) && !t.Failed(); version++ {
					first := r.IntN(blocks)
					n := 1 + r.IntN(min(12, blocks-first))
					if err := tryWriteAt(e, name, int64(first)*extent.BlockSize, stamped(f, first, n, version)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if r.IntN(4) == 0 {
						if _, err := e.Sync(context.Background(), nil, nil); err != nil {
							t.Error(err)
						}
					}
				}
			})
			wg.Go(func() {
				for time.Now().Before(stop) && !t.Failed() {
					got, err := tryRead(e, fmt.Sprint("f", f), 0, nil)
					if err == nil && len(got) != blocks*extent.BlockSize {
						err = fmt.Errorf("%d bytes", len(got))
					}
					if err == nil {
						err = checkStamps(f, got)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			for i := uint32(0); time.Now().Before(stop) && !t.Failed(); i++ {
				if _, err := tryPut(e, "come-and-go", stamped(9, 0, 20, i)); err != nil && !errdefs.Is(err, errdefs.NoSpace) {
					t.Error(err)
				}
				if _, err := e.Delete(context.Background(), DeleteRequest{Name: "come-and-go"}); err != nil && !errdefs.Is(err, errdefs.NotFound) {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		e = b.whole()
		for f := range files {
			if err := checkStamps(f, readAll(t, e, fmt.Sprint("f", f))); err != nil {
				t.Error(err)
			}
		}
		if s := e.al.Stats(); s.Mismatches != 0 {
			t.Errorf("%+v", s)
		}
		b.checkDisk()
	})
}
