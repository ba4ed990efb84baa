package client

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/csum"
)

func TestWindowLimits(t *testing.T) {
	w := window{limit: 10}
	if !w.fits(100) {
		t.Fatal("an empty window must take anything")
	}
	w.push(0, make([]byte, 6))
	for _, c := range []struct {
		n    int
		want bool
	}{{0, true}, {4, true}, {5, false}} {
		if w.fits(c.n) != c.want {
			t.Errorf("with 6 of 10 held, fits(%d) = %v", c.n, !c.want)
		}
	}
}

func TestWindowRefusesLies(t *testing.T) {
	w := window{limit: 100}
	w.push(0, make([]byte, 10))
	w.push(10, make([]byte, 10))
	w.pop()
	for _, c := range []struct {
		name              string
		received, durable int64
	}{
		{"received more than was sent", 11, 0},
		{"durable more than was sent", 10, 11},
		{"durable but not received", 5, 6},
	} {
		if _, err := w.progress(c.received, c.durable); err == nil {
			t.Errorf("%s: believed", c.name)
		}
	}
	if w.received != 0 || w.durable != 0 || len(w.msgs) != 2 {
		t.Errorf("a lie changed the window: %+v", w)
	}
	if _, err := w.progress(10, 7); err != nil {
		t.Fatal(err)
	}
	for _, pos := range []int64{6, 21} {
		if err := w.rewind(pos); err == nil {
			t.Errorf("rewound to %d although 7 were durable and 20 accepted", pos)
		}
	}
}

func TestWindowSplitsAtTheServersPosition(t *testing.T) {
	data := noise(1, 30)
	w := window{limit: 100}
	w.push(1000, data[:10:10])
	w.push(2000, data[10:])
	w.pop()
	w.pop()
	must(t, w.rewind(17))
	m := w.pop()
	if m.pos != 17 || m.off != 2007 || !bytes.Equal(m.data, data[17:]) || m.crc != csum.Sum(data[17:]) {
		t.Fatalf("the rest begins at %d (offset %d) with %d bytes", m.pos, m.off, len(m.data))
	}
	if !w.intact() {
		t.Fatal("the split left a wrong checksum")
	}
	if w.pop() != nil {
		t.Fatal("more than the rest is left")
	}
}

// TestWindowModel drives a window beside a server that is a slice of bytes and its durable
// prefix.
func TestWindowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := window{limit: 64}
		var all, server []byte
		durable := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				p := rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "data")
				if !w.fits(len(p)) {
					return
				}
				w.push(int64(len(all)), bytes.Clone(p))
				all = append(all, p...)
			},
			"send": func(t *rapid.T) {
				m := w.pop()
				if m == nil {
					return
				}
				if int(m.pos) != len(server) || int(m.off) != len(server) {
					t.Fatalf("position %d, offset %d sent to a server at %d", m.pos, m.off, len(server))
				}
				if csum.Sum(m.data) != m.crc {
					t.Fatal("wrong checksum")
				}
				server = append(server, m.data...)
			},
			"tell": func(t *rapid.T) {
				durable = rapid.IntRange(durable, len(server)).Draw(t, "durable")
				if _, err := w.progress(int64(len(server)), int64(durable)); err != nil {
					t.Fatal(err)
				}
			},
			"restart": func(t *rapid.T) {
				server = server[:rapid.IntRange(durable, len(server)).Draw(t, "left")]
				durable = len(server)
				if err := w.rewind(int64(len(server))); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if !bytes.Equal(server, all[:len(server)]) {
					t.Fatal("the server has other bytes than were pushed")
				}
				if w.base() > int64(durable) || w.sent() != int64(len(server)) || w.accepted != int64(len(all)) {
					t.Fatalf("base %d durable %d sent %d accepted %d of %d/%d", w.base(), durable, w.sent(),
						w.accepted, len(server), len(all))
				}
				if w.crc != csum.Sum(all) {
					t.Fatal("wrong checksum of the whole")
				}
			},
		})
	})
}

// TestRereadWindowModel is the same for a source that can be read again: the window is fed from
// where it is loaded, keeps nothing that was sent, and goes back as far as the server did.
func TestRereadWindowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "source")
		w := window{limit: 64, reread: true, accepted: int64(len(all))}
		var server []byte
		durable, pushed := 0, 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				rest := all[w.loaded:]
				if w.loaded < w.summed {
					rest = all[w.loaded:w.summed]
				}
				n := rapid.IntRange(0, 20).Draw(t, "bytes")
				if n = min(n, len(rest)); n == 0 || !w.fits(n) {
					return
				}
				w.push(w.loaded, bytes.Clone(rest[:n]))
				pushed = max(pushed, int(w.loaded))
			},
			"send": func(t *rapid.T) {
				m := w.pop()
				if m == nil {
					return
				}
				if int(m.pos) != len(server) || int(m.off) != len(server) || csum.Sum(m.data) != m.crc {
					t.Fatalf("position %d, offset %d sent to a server at %d", m.pos, m.off, len(server))
				}
				server = append(server, m.data...)
				m.buf.Free()
			},
			"tell": func(t *rapid.T) {
				durable = rapid.IntRange(durable, len(server)).Draw(t, "durable")
				if _, err := w.progress(int64(len(server)), int64(durable)); err != nil {
					t.Fatal(err)
				}
			},
			"restart": func(t *rapid.T) {
				server = server[:rapid.IntRange(durable, len(server)).Draw(t, "left")]
				durable = len(server)
				if err := w.rewind(int64(len(server))); err != nil {
					t.Fatal(err)
				}
			},
			"a lie": func(t *rapid.T) {
				if w.rewind(int64(pushed)+1) == nil || w.durable > 0 && w.rewind(w.durable-1) == nil {
					t.Fatal("rewound to what was never pushed, or before what was durable")
				}
			},
			"": func(t *rapid.T) {
				if !bytes.Equal(server, all[:len(server)]) || w.sent() != int64(len(server)) || w.base() != w.sent() {
					t.Fatalf("base %d, sent %d, the server has %d", w.base(), w.sent(), len(server))
				}
				if w.accepted != int64(len(all)) || w.crc != csum.Sum(all[:pushed]) || w.summed != int64(pushed) {
					t.Fatalf("accepted %d of %d, summed %d of %d", w.accepted, len(all), w.summed, pushed)
				}
			},
		})
		w.release()
	})
}
