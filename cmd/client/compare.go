package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/shingle-store/shingle/api/client"
)

// comparer holds what is written to it against a file, from its start.
type comparer struct {
	f   *os.File
	p   *progress
	off int64
	buf [64 << 10]byte
}

// Write compares b with what comes next in the file.
func (c *comparer) Write(b []byte) (n int, err error) {
	for n < len(b) {
		piece := b[n:min(n+len(c.buf), len(b))]
		if err := c.piece(piece, len(piece)); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

// WriteHole compares n zeros with what comes next in the file.
func (c *comparer) WriteHole(n int64) error {
	for n > 0 {
		k := min(n, int64(len(c.buf)))
		if err := c.piece(nil, int(k)); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// piece compares the next n bytes of the file, at most a buffer, with want; nil: with zeros.
func (c *comparer) piece(want []byte, n int) error {
	got := c.buf[:n]
	k, err := io.ReadFull(c.f, got)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &difference{fmt.Sprintf("changed while it was read: it ends at byte %d here", c.off+int64(k))}
	}
	if err != nil {
		return pathless(err)
	}
	if want != nil && !bytes.Equal(got, want) || want == nil && len(bytes.TrimLeft(got, "\x00")) > 0 {
		i := 0
		for want != nil && got[i] == want[i] || want == nil && got[i] == 0 {
			i++
		}
		return &difference{fmt.Sprintf("differs at byte %d", c.off+int64(i))}
	}
	c.off += int64(n)
	c.p.bytes.Add(int64(n))
	return nil
}

var _ client.HoleWriter = (*comparer)(nil)
