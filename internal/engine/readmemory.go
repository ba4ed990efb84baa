package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

const (
	// smallWindow is what every open Reader can read at once whatever others hold: the largest
	// frame, so that no frame is decoded twice for it.
	smallWindow = extent.MaxFrameSize
	// minReadLimit leaves room for 32 Readers.
	minReadLimit = 8 << 20
)

// readMemory bounds the memory in which data that was read waits for whoever takes it, which is a
// client that may never do so. Half of it is set aside: each open Reader has one small window
// of it for itself, and who finds none waits before anything is read. The other half is lent a
// large window at a time to who takes what it gets, and never waited for. So Readers whose clients
// have stopped slow others down at worst, but never stop them.
type readMemory struct {
	readers  chan struct{} // one for each open Reader, FIFO
	lendable int64         // bytes of large windows lent at once, at most
	lent     atomic.Int64
	inUse    atomic.Int64 // bytes of windows of either size that somebody holds
	peak     atomic.Int64
}

// smallBuffers and largeBuffers keep *readBuffers for the next window. They are the process's: the
// runtime lets go of what a pool holds two collections later, even when nobody has the pool any more.
var smallBuffers, largeBuffers sync.Pool

func newReadMemory(limit int64) *readMemory {
	return &readMemory{readers: make(chan struct{}, limit/2/smallWindow), lendable: limit / 2 / readWindow * readWindow}
}

// enter waits for a Reader's share, at most maxWait.
func (m *readMemory) enter(ctx context.Context, maxWait time.Duration) error {
	select {
	case m.readers <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case m.readers <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errdefs.New(errdefs.Unavailable, "", "engine.Read", "", fmt.Sprintf(
			"%d reads are open, as many as the memory for reads allows, and none has ended for %v", cap(m.readers), maxWait))
	}
}

func (m *readMemory) exit() { <-m.readers }

// lend reports whether a large window may be had now.
func (m *readMemory) lend() bool {
	for {
		n := m.lent.Load()
		if n+readWindow > m.lendable {
			return false
		}
		if m.lent.CompareAndSwap(n, n+readWindow) {
			return true
		}
	}
}

// readBuffer is the memory of one window, aligned for direct I/O.
type readBuffer struct {
	b    []byte
	of   *holdings
	left atomic.Int64 // bytes of its pieces that have not been given back
}

func (b *readBuffer) large() bool { return len(b.b) > smallWindow }

// holdings are the windows of one Reader that somebody may still look at.
type holdings struct {
	m *readMemory

	mu    sync.Mutex
	out   []*readBuffer // at most three
	kept  int64         // bytes of pieces that were kept and not given back
	given chan struct{} // capacity 1: kept has become less, or a window has come back
}

func newHoldings(m *readMemory) *holdings {
	return &holdings{m: m, given: make(chan struct{}, 1)}
}

// take returns a buffer for the next window. It waits until at most most bytes are kept, and, where
// no large window is wanted or to be had, until the small one is back.
func (h *holdings) take(ctx context.Context, most int64, large bool) (*readBuffer, error) {
	for {
		if b := h.tryTake(most, large); b != nil {
			return b, nil
		}
		select {
		case <-h.given:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (h *holdings) tryTake(most int64, large bool) *readBuffer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept > most {
		return nil
	}
	size, pool := int64(smallWindow), &smallBuffers
	if large && h.m.lend() {
		size, pool = readWindow, &largeBuffers
	} else {
		for _, b := range h.out {
			if !b.large() {
				return nil
			}
		}
	}
	b, ok := pool.Get().(*readBuffer)
	if !ok {
		b = &readBuffer{b: slab.Aligned(size)}
	}
	b.of = h
	h.out = append(h.out, b)
	used := h.m.inUse.Add(size)
	for peak := h.m.peak.Load(); used > peak && !h.m.peak.CompareAndSwap(peak, used); peak = h.m.peak.Load() {
	}
	return b
}

func (h *holdings) keep(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept += n
}

// giveBack takes n bytes of the buffer's pieces back; with the last ones the memory is free. It may
// be called from any goroutine, and after the Reader's Close.
func (b *readBuffer) giveBack(n int64, kept bool) {
	h := b.of
	last := b.left.Add(-n) == 0
	h.mu.Lock()
	if kept {
		h.kept -= n
	}
	if last {
		h.returnLocked(b)
	}
	h.mu.Unlock()
	select {
	case h.given <- struct{}{}:
	default:
	}
	if last {
		b.of = nil
		if b.large() {
			largeBuffers.Put(b)
		} else {
			smallBuffers.Put(b)
		}
	}
}

// returnLocked takes the buffer off the account, once.
func (h *holdings) returnLocked(b *readBuffer) {
	for i, o := range h.out {
		if o == b {
			h.out = append(h.out[:i], h.out[i+1:]...)
			h.m.inUse.Add(-int64(len(b.b)))
			if b.large() {
				h.m.lent.Add(-readWindow)
			}
			return
		}
	}
}

// abandon takes everything off the account that has not come back: its stream is gone, and with it
// who looked at it, perhaps without a word. Nobody else gets that memory before it does come
// back; if it never does, it is the garbage collector's.
func (h *holdings) abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.out) > 0 {
		h.returnLocked(h.out[0])
	}
}

// empty waits until every piece that was kept has been given back.
func (h *holdings) empty(ctx context.Context) error {
	for {
		h.mu.Lock()
		kept := h.kept
		h.mu.Unlock()
		if kept == 0 {
			return nil
		}
		select {
		case <-h.given:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
