package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/internal/csum"
)

// ErrSourceChanged is found, with errors.Is, in the error of a WriteFrom whose source was not
// the same from the beginning to the end. With Replace nothing was published; with InPlace the
// file may hold some of both contents.
var ErrSourceChanged = errors.New("the source changed while it was read")

// readAhead is the most that WriteFrom holds of its source, in bytes, besides the messages that
// gRPC has not written yet.
const readAhead = 4 * messageSize

// WriteFrom writes bytes [0, size) of src, which can be read again, such as an *os.File, and
// returns when they are received, or durable and published if o says so (Writer.Close). After a
// restart of the engine or a break it reads again what was not durable there. So, unlike a
// Writer, it keeps nothing, asks for no sync before the end, and leaves the engine to collect as
// much as it likes before it places anything; the windows of o and of the Client do not matter.
//
// src is read by one goroutine, mostly in order, 1 MiB at a time. It must not change meanwhile:
// what is read again is held against the checksum of the first reading, and if src has a
// Stat() (fs.FileInfo, error), as *os.File has, its size and modification time at the end
// against those at the beginning. A difference, or an end before size, is ErrSourceChanged.
// Other errors of src are returned as they are.
func (c *Client) WriteFrom(ctx context.Context, name string, src io.ReaderAt, size int64, o WriteOptions) (*File, error) {
	if size < 0 {
		return nil, failure(codes.InvalidArgument, "", nil, "write %q: negative size %d", name, size)
	}
	if o.ExpectedSize == nil && o.Mode == Replace {
		o.ExpectedSize = &size
	}
	s := source{r: src, size: size}
	var err error
	if s.stat, err = s.state(); err != nil {
		return nil, err
	}
	w, err := c.Write(ctx, name, o)
	if err != nil {
		return nil, err
	}
	w.win.reread, w.win.limit, w.win.accepted = true, readAhead, size
	w.callers.Lock()
	defer w.callers.Unlock()
	if err := w.feedLocked(&s); err != nil {
		w.fail(w.final(err))
	}
	w.cancel()
	if w.callers.started {
		<-w.done
	}
	return w.File(), w.outcome()
}

// feedLocked pushes what is to be sent next, again after every rewind, until the write is
// finished or has failed. An error it returns is one of the source or of the context.
func (w *Writer) feedLocked(s *source) error {
	for {
		pos, err := w.wanted(s.size)
		if err != nil || pos < 0 {
			return err
		}
		data, crc, err := s.read(pos)
		if err != nil {
			return err
		}
		end := pos + int64(len(data))
		if end == s.size {
			if err := s.unchanged(); err != nil {
				return err
			}
		}
		w.mu.Lock()
		if w.win.loaded == pos && w.err == nil && !w.finished {
			if len(data) > 0 {
				w.win.pushSummed(w.o.Offset+pos, data, crc)
			}
			if end == s.size {
				w.lastLocked()
			}
			w.notifyLocked()
		}
		w.mu.Unlock()
		w.startLocked()
	}
}

// wanted waits until there is something to push and returns its position; -1: the write is over.
func (w *Writer) wanted(size int64) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case w.err != nil || w.finished:
			return -1, nil
		case w.win.loaded < size && w.win.fits(messageSize) || !w.want.finish && w.win.loaded == size:
			return w.win.loaded, nil
		}
		if err := w.waitLocked(w.ctx); err != nil {
			return -1, err
		}
	}
}

// source is what WriteFrom reads. One goroutine uses it.
type source struct {
	r    io.ReaderAt
	size int64
	stat fs.FileInfo // at the beginning; nil if r does not say
	// sums are the crc32c of each messageSize bytes, the last ones maybe fewer, as first read.
	sums []uint32
}

// read returns what goes into one message at pos, and its crc32c: up to the next multiple of
// messageSize or the end. pos is not after the first position that was never read.
func (s *source) read(pos int64) ([]byte, uint32, error) {
	i := pos / messageSize
	start := i * messageSize
	n := int(min(s.size-start, messageSize))
	data := newPart(n)[:n]
	if k, err := s.r.ReadAt(data, start); k < n {
		if err == io.EOF {
			err = fmt.Errorf("%w: it ends at %d of %d bytes", ErrSourceChanged, start+int64(k), s.size)
		}
		return nil, 0, err
	}
	crc := csum.Sum(data)
	switch {
	case i == int64(len(s.sums)):
		s.sums = append(s.sums, crc)
	case crc != s.sums[i]:
		return nil, 0, fmt.Errorf("%w: other bytes in [%d, %d)", ErrSourceChanged, start, start+int64(n))
	}
	if data = data[pos-start:]; pos > start {
		crc = csum.Sum(data)
	}
	return data, crc, nil
}

// state is what the source says about itself, or nil.
func (s *source) state() (fs.FileInfo, error) {
	if f, ok := s.r.(interface{ Stat() (fs.FileInfo, error) }); ok {
		return f.Stat()
	}
	return nil, nil
}

// unchanged fails if the source does not say of itself what it said at the beginning.
func (s *source) unchanged() error {
	now, err := s.state()
	switch {
	case err != nil || now == nil:
		return err
	case now.Size() != s.stat.Size():
		return fmt.Errorf("%w: it had %d bytes and has %d", ErrSourceChanged, s.stat.Size(), now.Size())
	case !now.ModTime().Equal(s.stat.ModTime()):
		return fmt.Errorf("%w: it was modified", ErrSourceChanged)
	}
	return nil
}
