package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"

	"github.com/shingle-store/shingle/api/client/clienttest"
)

// pieces of the test server
const piece = 64 << 10

func open(t testing.TB, c *Client, name string, o ReadOptions) *Reader {
	t.Helper()
	r, err := c.Read(within(t), name, o)
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// holey is content with a hole of two pieces in it.
func holey() []byte {
	return append(append(noise(1, piece), make([]byte, 2*piece)...), noise(2, piece/2)...)
}

func TestReadRanges(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	data := holey()
	s.Put("a", data)
	size := int64(len(data))
	n := func(v int64) *int64 { return &v }
	for _, r := range []struct {
		off  int64
		len  *int64
		want []byte
	}{
		{0, nil, data}, {0, n(0), nil}, {0, n(1), data[:1]}, {5, n(piece), data[5 : 5+piece]},
		{piece + 1, n(piece), data[piece+1 : 2*piece+1]}, {0, n(size), data}, {0, n(size + 1), data},
		{0, n(1<<63 - 1), data}, {size - 1, n(1<<63 - 1), data[size-1:]}, {size, nil, nil}, {size + 100, n(5), nil},
	} {
		o := ReadOptions{Offset: r.off, Length: r.len}
		got, err := io.ReadAll(open(t, c, "a", o))
		if err != nil || !bytes.Equal(got, r.want) {
			t.Errorf("Read %d+%v: %d bytes, %v", r.off, r.len, len(got), err)
		}
		var b bytes.Buffer
		if k, err := open(t, c, "a", o).WriteTo(&b); err != nil || k != int64(b.Len()) || !bytes.Equal(b.Bytes(), r.want) {
			t.Errorf("WriteTo %d+%v: %d bytes, %v", r.off, r.len, k, err)
		}
	}
	must(t, iotest.TestReader(open(t, c, "a", ReadOptions{}), data))
	byID := open(t, c, "ignored", ReadOptions{FileID: open(t, c, "a", ReadOptions{}).File().GetFileId()})
	if byID.File().GetName() != "a" {
		t.Errorf("by id: %v", byID.File())
	}
}

type sparse struct {
	bytes.Buffer
	holes int64
}

func (s *sparse) WriteHole(n int64) error {
	s.holes += n
	_, err := s.Write(make([]byte, n))
	return err
}

func TestHolesStayHoles(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", holey())
	var dst sparse
	_, err := open(t, dial(t, s), "a", ReadOptions{}).WriteTo(&dst)
	must(t, err)
	if dst.holes != 2*piece || !bytes.Equal(dst.Bytes(), holey()) {
		t.Fatalf("%d bytes of holes", dst.holes)
	}
}

func TestZeroSum(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 3, 7, 4096, 65537} {
		if got, want := zeroSum(n), checksum(make([]byte, n)); got != want {
			t.Errorf("%d: %08x, want %08x", n, got, want)
		}
	}
}

func TestReadRefusals(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.Put("d/a", nil)
	gen := int64(1e9)
	for _, r := range []struct {
		name string
		o    ReadOptions
		is   func(error) bool
	}{
		{"no", ReadOptions{}, IsNotFound},
		{"d", ReadOptions{}, IsPrecondition},
		{"d/a", ReadOptions{IfMatch: &Preconditions{Generation: &gen}}, IsPrecondition},
	} {
		if _, err := c.Read(context.Background(), r.name, r.o); !r.is(err) {
			t.Errorf("%s: %v", r.name, err)
		}
	}
}

// TestReadGoesOn: the stream is cut after every second message, and the file renamed.
func TestReadGoesOn(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	data := holey()
	s.Put("a", data)
	n := 0
	s.Faults.Read = func(*shinglev1.ReadResponse) error {
		if n++; n%2 == 0 {
			return errCut
		}
		return nil
	}
	r := open(t, c, "a", ReadOptions{Offset: 3, Length: proto.Int64(int64(len(data)) - 10)})
	_, _, err := c.Rename(context.Background(), "a", "b", RenameOptions{})
	must(t, err)
	got, err := io.ReadAll(r)
	must(t, err)
	if !bytes.Equal(got, data[3:len(data)-7]) {
		t.Fatalf("%d bytes differ", len(got))
	}
}

func TestReadSurvivesRestart(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	data := noise(1, 200*piece)
	s.Put("a", data)
	r := open(t, c, "a", ReadOptions{})
	head := make([]byte, 3*piece)
	_, err := io.ReadFull(r, head)
	must(t, err)
	if !s.Crash() {
		t.Skip("the port was taken by another process")
	}
	rest, err := io.ReadAll(r)
	must(t, err)
	if !bytes.Equal(append(head, rest...), data) {
		t.Fatal("the bytes differ")
	}
}

// TestReadNeverMixesContents: what changed while the stream was cut is not gone on with.
func TestReadNeverMixesContents(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.Put("a", noise(1, 4*piece))
	n := 0
	s.Faults.Read = func(*shinglev1.ReadResponse) error {
		if n++; n == 3 {
			s.Put("b", nil)
			_, _, err := c.Truncate(context.Background(), "a", 4*piece-1, nil)
			must(t, err)
			return errCut
		}
		return nil
	}
	got, err := io.ReadAll(open(t, c, "a", ReadOptions{}))
	if !IsPrecondition(err) || !bytes.Equal(got, noise(1, 4*piece)[:2*piece]) {
		t.Fatalf("%d bytes, then %v", len(got), err)
	}
}

func TestDataLossComesAfterTheGoodBytes(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	data := noise(1, 4*piece)
	s.Put("a", data)
	s.Faults.Read = func(r *shinglev1.ReadResponse) error {
		if r.Offset == 2*piece {
			return clienttest.Errorf(codes.DataLoss, "CORRUPTION", nil, "bad block",
				&shinglev1.Corruption{Name: "a", Offset: 2 * piece, Length: 4096})
		}
		return nil
	}
	got, err := io.ReadAll(open(t, c, "a", ReadOptions{}))
	var e *Error
	if !errors.As(err, &e) || !IsDataLoss(err) || e.Corruption().GetOffset() != 2*piece {
		t.Fatalf("got %v", err)
	}
	if !bytes.Equal(got, data[:2*piece]) {
		t.Fatalf("%d good bytes", len(got))
	}
}

// TestMangledPiece: bytes that change on their way are fetched again, but not for ever.
func TestMangledPiece(t *testing.T) {
	for _, times := range []int{1, mangledMessages - 1, 1000} {
		s := clienttest.New(t)
		data := noise(1, 4*piece)
		s.Put("a", data)
		bad := 0
		s.Faults.Read = func(r *shinglev1.ReadResponse) error {
			if r.Offset == piece && bad < times {
				bad++
				r.Data[9] ^= 4
			}
			return nil
		}
		got, err := io.ReadAll(open(t, dial(t, s), "a", ReadOptions{}))
		if times < mangledMessages {
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d times: %d bytes, %v", times, len(got), err)
			}
			continue
		}
		if !IsDataLoss(err) || ReasonOf(err) != reasonPayloadChecksum || !bytes.Equal(got, data[:piece]) {
			t.Errorf("always: %d bytes, %v", len(got), err)
		}
		if bad != mangledMessages {
			t.Errorf("fetched %d times", bad)
		}
	}
}

func TestReadRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		name    string
		nothing bool
		break_  func(*shinglev1.ReadResponse)
	}{
		{"gap", false, func(r *shinglev1.ReadResponse) { r.Offset++ }},
		{"no checksum", false, func(r *shinglev1.ReadResponse) { r.Crc32C = nil }},
		{"negative hole", false, func(r *shinglev1.ReadResponse) { r.Data, r.HoleBytes = nil, -1 }},
		{"hole and data", false, func(r *shinglev1.ReadResponse) { r.HoleBytes = 1 }},
		{"no file", true, func(r *shinglev1.ReadResponse) { r.File = nil }},
	} {
		s := clienttest.New(t)
		s.Put("a", noise(1, 2*piece))
		s.Faults.Read = func(r *shinglev1.ReadResponse) error { c.break_(r); return nil }
		r, err := dial(t, s).Read(within(t), "a", ReadOptions{})
		if err == nil {
			var got []byte
			got, err = io.ReadAll(r)
			must(t, r.Close())
			if len(got) > 0 {
				t.Errorf("%s: %d bytes came", c.name, len(got))
			}
		}
		if CodeOf(err) != codes.Internal {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestWholeContentIsChecked: a server that sends good pieces of the wrong content.
func TestWholeContentIsChecked(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	w, err := c.Write(within(t), "a", WriteOptions{Mode: Replace})
	must(t, err)
	_, err = w.Write(holey())
	must(t, err)
	must(t, w.Close())
	got, err := io.ReadAll(open(t, c, "a", ReadOptions{}))
	if err != nil || !bytes.Equal(got, holey()) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	s.Faults.Read = func(r *shinglev1.ReadResponse) error {
		if r.Offset == 0 {
			r.Data[0]++
			r.Crc32C = proto.Uint32(checksum(r.Data))
		}
		return nil
	}
	if _, err := io.ReadAll(open(t, c, "a", ReadOptions{})); !IsDataLoss(err) {
		t.Fatalf("wrong content: %v", err)
	}
	if _, err := io.ReadAll(open(t, c, "a", ReadOptions{Length: proto.Int64(10)})); err != nil {
		t.Fatalf("a part has no checksum to fail: %v", err)
	}
}

func TestReaderClosed(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", noise(1, 100*piece))
	c := dial(t, s)
	r := open(t, c, "a", ReadOptions{})
	must(t, r.Close())
	must(t, r.Close())
	if _, err := r.Read(make([]byte, 1)); err != io.ErrClosedPipe {
		t.Errorf("Read after Close: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, err := c.Read(ctx, "a", ReadOptions{})
	must(t, err)
	cancel()
	if _, err := io.ReadAll(r); !errors.Is(err, context.Canceled) {
		t.Errorf("Read after cancel: %v", err)
	}
	must(t, r.Close())
}

// TestWriteToStopsAtTheDestination: the destination's error is returned as it is.
func TestWriteToStopsAtTheDestination(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", holey())
	r := open(t, dial(t, s), "a", ReadOptions{})
	n, err := r.WriteTo(&limited{left: piece + 10})
	if err != io.ErrShortWrite || n != piece+10 {
		t.Fatalf("%d, %v", n, err)
	}
}

type limited struct{ left int }

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		n := l.left
		l.left = 0
		return n, io.ErrShortWrite
	}
	l.left -= len(p)
	return len(p), nil
}
