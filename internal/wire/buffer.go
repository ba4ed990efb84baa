package wire

import "google.golang.org/grpc/mem"

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
