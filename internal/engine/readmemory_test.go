package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// kept is a piece that somebody looks at, as a transport does whose client takes nothing.
type kept struct {
	Piece
	giveBack func(int)
}

// stall reads and keeps all, until the Reader would wait for something to be given back. For the first
// piece it waits as long as a busy machine may take.
func stall(t *testing.T, r *Reader) (out []kept) {
	t.Helper()
	for patience := 10 * time.Second; ; patience = 20 * time.Millisecond {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		p, err := r.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, kept{p, r.Keep()})
	}
}

func openReader(t *testing.T, e *Engine, name string) *Reader {
	t.Helper()
	r, err := e.OpenReader(context.Background(), ReadRequest{Ref: Ref{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Clients that take nothing hold no more than the limit, whoever comes after them reads all the
// same, and one more than there is memory for waits its time and hears why.
func TestStalledReadsAreBounded(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.ReadLimit, o.MaxWait = minReadLimit, 300*time.Millisecond
		b := newBench(t, smallZNS, o)
		e := b.open()
		data := text(1, 3_000_000)
		put(t, e, "f", data)
		most := int(o.ReadLimit / 2 / smallWindow)
		var readers []*Reader
		var held []kept
		for i := range most - 1 {
			r := openReader(t, e, "f")
			readers = append(readers, r)
			got := stall(t, r)
			if len(got) == 0 {
				t.Fatalf("reader %d gets nothing", i)
			}
			held = append(held, got...)
			if n := e.reads.inUse.Load(); n > o.ReadLimit {
				t.Fatalf("%d readers hold %d bytes, the limit is %d", i+1, n, o.ReadLimit)
			}
		}
		if e.reads.lent.Load() != 0 {
			t.Errorf("clients that took nothing from the beginning were lent %d bytes", e.reads.lent.Load())
		}
		if got := readAll(t, e, "f"); !bytes.Equal(got, data) {
			t.Error("who takes what he gets reads something else beside them")
		}
		last := openReader(t, e, "f")
		begin := time.Now()
		_, err := e.OpenReader(context.Background(), ReadRequest{Ref: Ref{Name: "f"}})
		if !errdefs.Is(err, errdefs.Unavailable) || time.Since(begin) < o.MaxWait {
			t.Errorf("one too many hears %v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: "f"}}); !errors.Is(err, context.Canceled) {
			t.Errorf("one who goes away hears %v", err)
		}
		waited := make(chan error, 1)
		go func() {
			got, err := tryRead(e, "f", 0, nil)
			if err == nil && !bytes.Equal(got, data) {
				err = errors.New("the bytes differ")
			}
			waited <- err
		}()
		last.Close()
		if err := <-waited; err != nil {
			t.Errorf("one who waited for another's end: %v", err)
		}
		for _, k := range held {
			if !bytes.Equal(k.Data, data[k.Offset:][:len(k.Data)]) {
				t.Fatalf("the piece at %d has become another", k.Offset)
			}
			k.giveBack(len(k.Data))
		}
		for _, r := range readers {
			if err := r.Drained(context.Background()); err != nil {
				t.Error(err)
			}
			r.Close()
		}
		syncAll(t, e)
		checkQuiet(t, e)
	})
}

// A client that takes what it gets is lent large windows; the next one is read when half of the one
// before has been taken.
func TestReadsAhead(t *testing.T) {
	b := newBench(t, smallZNS, Options{ReadLimit: minReadLimit})
	e := b.open()
	data := noise(2, 5_000_000)
	put(t, e, "f", data)
	r := openReader(t, e, "f")
	defer r.Close()
	sizes := []int{}
	rest := func() {}
	for off := 0; off < len(data); {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		p, err := r.Next(ctx)
		cancel()
		if err != nil || int(p.Offset) != off || !bytes.Equal(p.Data, data[off:off+len(p.Data)]) {
			t.Fatalf("at %d: a piece of %d bytes at %d, %v", off, len(p.Data), p.Offset, err)
		}
		rest()
		giveBack, half := r.Keep(), (len(p.Data)+1)/2
		ctx, cancel = context.WithTimeout(context.Background(), time.Millisecond)
		if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("at %d: a window more, with all of the last one kept: %v", off, err)
		}
		cancel()
		giveBack(half)
		rest = func() { giveBack(len(p.Data) - half) }
		sizes = append(sizes, len(p.Data))
		off += len(p.Data)
	}
	rest()
	want := fmt.Sprint([]int{128 << 10, 896 << 10, 1 << 20, 1 << 20, 1 << 20, len(data) - 4<<20})
	if fmt.Sprint(sizes) != want {
		t.Errorf("the pieces have %v bytes, want %s", sizes, want)
	}
}

// What a vanished client's stream kept counts no more after Close, and is nobody else's before it
// comes back.
func TestCloseAbandonsWhatIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, smallZNS, Options{ReadLimit: minReadLimit})
	e := b.open()
	data := noise(3, 2_000_000)
	put(t, e, "f", data)
	for range 3 * minReadLimit / smallWindow {
		r := openReader(t, e, "f")
		held := stall(t, r)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := r.Drained(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("drained with %d pieces kept: %v", len(held), err)
		}
		r.Close()
		if n := e.reads.inUse.Load(); n != 0 {
			t.Fatalf("%d bytes count after Close", n)
		}
		if got := readAll(t, e, "f"); !bytes.Equal(got, data) {
			t.Fatal("another read differs")
		}
		for _, k := range held {
			if !bytes.Equal(k.Data, data[k.Offset:][:len(k.Data)]) {
				t.Fatal("what is kept became another's")
			}
			k.giveBack(len(k.Data))
		}
	}
	checkQuiet(t, e)
}

// A replace whose checksum needs its content read is finished while clients hold all the memory
// for reads.
func TestFinishBesideStalledReads(t *testing.T) {
	t.Parallel()
	b := newBench(t, smallZNS, Options{ReadLimit: minReadLimit})
	e := b.open()
	put(t, e, "f", noise(4, 1_000_000))
	for range minReadLimit / 2 / smallWindow {
		r := openReader(t, e, "f")
		defer r.Close()
		stall(t, r)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: "g", Mode: Replace})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	second, first := noise(5, 300_000), noise(6, 300_000)
	for at, data := range map[int64][]byte{300_000: second, 0: first} {
		if err := w.Write(ctx, &at, [][]byte{data}, nil); err != nil {
			t.Fatal(err)
		}
	}
	f, err := w.Finish(ctx, nil)
	if err != nil || f.Size != 600_000 {
		t.Errorf("%d bytes, %v", f.Size, err)
	}
}

// Holes that are reported take no memory that anybody could keep.
func TestKeepOfHoles(t *testing.T) {
	b := newBench(t, smallZNS, Options{ReadLimit: minReadLimit})
	e := b.open()
	writeAt(t, e, "f", 5_000_000, noise(7, 10_000))
	syncAll(t, e)
	r, err := e.OpenReader(context.Background(), ReadRequest{Ref: Ref{Name: "f"}, ReportHoles: true})
	if err != nil {
		t.Fatal(err)
	}
	at, pieces := int64(0), 0
	for _, k := range stall(t, r) {
		if k.Offset != at {
			t.Fatalf("a piece at %d follows %d", k.Offset, at)
		}
		at += k.Hole + int64(len(k.Data))
		pieces++
		k.giveBack(len(k.Data))
	}
	if at != 5_010_000 || pieces > 8 {
		t.Errorf("%d bytes in %d pieces", at, pieces)
	}
	r.Close()
	checkQuiet(t, e)
}

// The account agrees with a simple model, and its bounds hold, whatever is taken, given back and
// abandoned in whatever order.
func TestReadMemoryModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newReadMemory(minReadLimit)
		type window struct {
			b    *readBuffer
			left int64
		}
		type reader struct {
			h    *holdings
			out  []*window
			gone bool
		}
		var readers []*reader
		pick := func(t *rapid.T) *reader {
			if len(readers) == 0 {
				t.Skip("no reader")
			}
			return readers[rapid.IntRange(0, len(readers)-1).Draw(t, "reader")]
		}
		account := func() (used, lent int64) {
			for _, r := range readers {
				for _, w := range r.out {
					if !r.gone {
						used += int64(len(w.b.b))
						if w.b.large() {
							lent += readWindow
						}
					}
				}
			}
			return used, lent
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				if len(m.readers) == cap(m.readers) {
					t.Skip("all are open")
				}
				if err := m.enter(context.Background(), time.Hour); err != nil {
					t.Fatal(err)
				}
				readers = append(readers, &reader{h: newHoldings(m)})
			},
			"take": func(t *rapid.T) {
				r := pick(t)
				if r.gone {
					t.Skip("closed")
				}
				large := rapid.Bool().Draw(t, "large")
				_, lent := account()
				kept, small := int64(0), false
				for _, w := range r.out {
					kept += w.left
					small = small || !w.b.large()
				}
				most := rapid.SampledFrom([]int64{0, 4096, 1 << 30}).Draw(t, "most")
				b := r.h.tryTake(most, large)
				wantLarge := large && lent+readWindow <= m.lendable
				if want := kept <= most && (wantLarge || !small); (b != nil) != want {
					t.Fatalf("taken %t, want %t", b != nil, want)
				}
				if b == nil {
					return
				}
				if b.large() != wantLarge {
					t.Fatalf("a large one: %t, want %t", b.large(), wantLarge)
				}
				n := int64(rapid.IntRange(1, len(b.b)/extent.BlockSize).Draw(t, "blocks")) * extent.BlockSize
				b.left.Store(n)
				r.h.keep(n)
				r.out = append(r.out, &window{b, n})
			},
			"give": func(t *rapid.T) {
				r := pick(t)
				if len(r.out) == 0 {
					t.Skip("nothing is out")
				}
				i := rapid.IntRange(0, len(r.out)-1).Draw(t, "window")
				w := r.out[i]
				n := rapid.Int64Range(1, w.left).Draw(t, "bytes")
				w.b.giveBack(n, true)
				if w.left -= n; w.left == 0 {
					r.out = append(r.out[:i], r.out[i+1:]...)
				}
			},
			"close": func(t *rapid.T) {
				r := pick(t)
				if r.gone {
					t.Skip("closed")
				}
				r.h.abandon()
				m.exit()
				r.gone = true
			},
			"": func(t *rapid.T) {
				used, lent := account()
				if m.inUse.Load() != used || m.lent.Load() != lent {
					t.Fatalf("%d bytes in use and %d lent, want %d and %d", m.inUse.Load(), m.lent.Load(), used, lent)
				}
				if used > minReadLimit || m.peak.Load() > minReadLimit {
					t.Fatalf("%d bytes in use, %d at most", used, m.peak.Load())
				}
				open, seen := 0, map[*readBuffer]bool{}
				for _, r := range readers {
					if !r.gone {
						open++
					}
					for _, w := range r.out {
						if seen[w.b] {
							t.Fatal("a buffer is out twice")
						}
						seen[w.b] = true
					}
				}
				if len(m.readers) != open {
					t.Fatalf("%d readers, want %d", len(m.readers), open)
				}
			},
		})
	})
}
