package wire

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// Buffer wraps data for sending. release is called once, when the last reference is gone:
// only then may data be changed or reused. Data too small to be counted by gRPC (1 KiB) is
// copied and released before Buffer returns. The caller owns the one reference.
func Buffer(data []byte, release func()) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(cap(data)) {
		b := mem.SliceBuffer(append([]byte(nil), data...))
		release()
		return b
	}
	return mem.NewBuffer(&data, onRelease(release))
}

// onRelease is a mem.BufferPool that gives nothing and calls itself for what comes back.
type onRelease func()

func (onRelease) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (f onRelease) Put(*[]byte)     { f() }

// pieceSize is the largest payload of a ReadResponse (proto/shingle/v1), and so the size of
// the pooled buffers of Copy. gRPC's default pool has nothing between 32 KiB and 1 MiB and
// clears what it hands out.
const pieceSize = 1 << 20

var pieces = piecePool{sync.Pool{New: func() any { b := make([]byte, pieceSize); return &b }}}

type piecePool struct{ pool sync.Pool }

func (p *piecePool) Get(n int) *[]byte {
	b := p.pool.Get().(*[]byte)
	*b = (*b)[:n]
	return b
}

func (p *piecePool) Put(b *[]byte) {
	*b = (*b)[:cap(*b)]
	p.pool.Put(b)
}

// Copy returns a buffer with a copy of data in pooled memory, which goes back when the last
// reference is gone. data is the caller's again on return; the caller owns the one reference.
func Copy(data []byte) mem.Buffer {
	if len(data) <= 32<<10 || len(data) > pieceSize {
		return mem.Copy(data, mem.DefaultBufferPool())
	}
	b := pieces.Get(len(data))
	copy(*b, data)
	return mem.NewBuffer(b, &pieces)
}
