package store

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

func trimmedText(t fataler, s *Store, slot uint32) string {
	t.Helper()
	var b strings.Builder
	view(t, s, func(tx *Tx) error {
		runs, err := tx.TrimmedRuns(slot)
		for _, r := range runs {
			if r.Slot != slot {
				t.Fatalf("a run of another block group: %+v", r)
			}
			fmt.Fprintf(&b, "%d-%d ", r.Off/extent.BlockSize, (r.Off+r.Len)/extent.BlockSize)
		}
		return err
	})
	return strings.TrimSpace(b.String())
}

// Bits go in the transaction that stores an extent there, whatever else it says; they stay over
// everything else, over the borders of chunks and over a new open.
func TestTrimmedRuns(t *testing.T) {
	const bs = extent.BlockSize
	const zoneSize = 3 * chunkSpan
	path := filepath.Join(t.TempDir(), "meta")
	s, _ := newConventionalStore(t, path, zoneSize, zoneSize-5*bs)
	defer func() { s.Close() }()
	at := func(slot, block int64) extent.Addr { return extent.Addr(slot*zoneSize + block*bs) }
	set := func(trimmed bool, slot uint32, from, to int64) func(tx *Tx) error {
		return func(tx *Tx) error { return tx.SetTrimmedRun(Run{slot, from * bs, (to - from) * bs}, trimmed) }
	}
	put := func(file uint64, x NewExtent) func(tx *Tx) error {
		return func(tx *Tx) error { _, _, err := write(tx, file, 0, x); return err }
	}
	both := func(a, b func(tx *Tx) error) func(tx *Tx) error {
		return func(tx *Tx) error { return errors.Join(a(tx), b(tx)) }
	}
	for _, c := range []struct {
		name        string
		do          func(tx *Tx) error
		first, next string
	}{
		{"files", func(tx *Tx) error { return errors.Join(addFile(tx, 10, "a"), addFile(tx, 11, "b")) }, "", ""},
		{"nothing", set(true, 0, 5, 5), "", ""},
		{"a run over a border of chunks", set(true, 0, 8000, 8200), "8000-8200", ""},
		{"a run that touches it, and one of another group", both(set(true, 0, 8200, 8210), set(true, 1, 1, 2)), "8000-8210", "1-2"},
		{"a whole chunk, and more", set(true, 0, 8192, 16390), "8000-16390", "1-2"},
		{"an extent", put(10, rawExtent(at(0, 8190), 10*bs)), "8000-8190 8200-16390", "1-2"},
		{"an extent that is dropped leaves no trim", func(tx *Tx) error { _, err := drop(tx, 10, 0, 10*bs); return err }, "8000-8190 8200-16390", "1-2"},
		{"one that comes and goes in one transaction", both(put(10, rawExtent(at(0, 8300), bs)), func(tx *Tx) error { _, err := drop(tx, 10, 0, bs); return err }),
			"8000-8190 8200-8300 8301-16390", "1-2"},
		{"marks ahead of an extent", both(set(true, 1, 10, 20), put(11, rawExtent(at(1, 12), 3*bs))), "8000-8190 8200-8300 8301-16390", "1-2 10-12 15-20"},
		{"marks of what extents hold", set(true, 1, 11, 16), "8000-8190 8200-8300 8301-16390", "1-2 10-12 15-20"},
		{"written, and nothing came of it", set(false, 0, 8000, 16384), "16384-16390", "1-2 10-12 15-20"},
		{"the last ones", both(set(false, 0, 16384, 16390), set(false, 1, 0, 100)), "", ""},
		{"the end of the group", set(true, 0, 3*chunkBlocks-9, 3*chunkBlocks-5), "24567-24571", ""},
	} {
		update(t, s, c.do)
		if c.name == "an extent" {
			s.Close()
			var err error
			if s, err = Open(path, testOptions); err != nil {
				t.Fatal(err)
			}
		}
		if first, next := trimmedText(t, s, 0), trimmedText(t, s, 1); first != c.first || next != c.next {
			t.Errorf("%s: trimmed %q and %q, want %q and %q", c.name, first, next, c.first, c.next)
		}
		wantSound(t, s)
	}
	if n := trimmedText(t, s, 2); n != "" {
		t.Errorf("the sequential group has %q", n)
	}
}

// A damaged record costs discards, and nothing else; check names it and what cannot be.
func TestDamagedTrimState(t *testing.T) {
	const bs = extent.BlockSize
	const zoneSize = 3 * chunkSpan
	s, _ := newConventionalStore(t, filepath.Join(t.TempDir(), "meta"), zoneSize, zoneSize-5*bs)
	defer s.Close()
	update(t, s, func(tx *Tx) error {
		return errors.Join(addFile(tx, 10, "a"), tx.SetTrimmedRun(Run{0, 100 * bs, 9000 * bs}, true))
	})
	update(t, s, func(tx *Tx) error { _, _, err := write(tx, 10, 0, rawExtent(extent.Addr(0), 5*bs)); return err })
	spoil := func(k, v []byte) {
		t.Helper()
		update(t, s, func(tx *Tx) error { return tx.bucket(bTrimState).Put(k, v) })
	}
	one := func(what string) {
		t.Helper()
		if ps := problems(t, s); len(ps) != 1 || !strings.HasPrefix(ps[0], "trim_state ") {
			t.Errorf("%s: %v", what, ps)
		}
	}
	key := chunkKey(0, 0)
	var good []byte
	view(t, s, func(tx *Tx) error { good = bytes.Clone(tx.bucket(bTrimState).Get(key)); return nil })

	bad := bytes.Clone(good)
	bad[3] ^= 1
	spoil(key, bad)
	one("a flipped bit")
	if got := trimmedText(t, s, 0); got != "8192-9100" {
		t.Errorf("trimmed %q", got)
	}
	update(t, s, func(tx *Tx) error { return tx.SetTrimmedRun(Run{0, 50 * bs, bs}, true) })
	wantSound(t, s)
	if got := trimmedText(t, s, 0); got != "50-51 8192-9100" {
		t.Errorf("trimmed %q after a mark", got)
	}

	var over trimmedBits
	over.mark(3, 6, true)
	spoil(key, seal(bTrimState, key, over.encode()))
	one("a block that an extent holds")
	update(t, s, func(tx *Tx) error { _, err := drop(tx, 10, 0, bs); return err })
	wantSound(t, s)

	spoil(key, seal(bTrimState, key, putUint(nil, 1, 7)))
	one("another wire type")
	spoil(key, seal(bTrimState, key, over.encode()))
	update(t, s, func(tx *Tx) error { return tx.del(bTrimState, key) })
	for _, k := range [][]byte{chunkKey(2, 0), chunkKey(77, 0), key32(1)} {
		spoil(k, seal(bTrimState, k, over.encode()))
		one(fmt.Sprintf("key %x", k))
		update(t, s, func(tx *Tx) error { return tx.bucket(bTrimState).Delete(k) })
	}
	wantSound(t, s)
}

// TestTrimmedAgainstSet runs marks, extents and drops against a set of blocks.
func TestTrimmedAgainstSet(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		const bs = extent.BlockSize
		const blocks = 40 // around the border of two chunks
		const first = chunkBlocks - 20
		n++
		s, _ := newConventionalStore(t, filepath.Join(dir, fmt.Sprint(n)), 2*chunkSpan, 2*chunkSpan)
		defer s.Close()
		update(t, s, func(tx *Tx) error { return addFile(tx, 10, "a") })
		var trimmed, used [blocks]bool
		var content []int // block of the file -> block
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				var want []string
				for i := range blocks {
					if trimmed[i] && (i == 0 || !trimmed[i-1]) {
						want = append(want, fmt.Sprint(first+i, "-"))
					}
					if trimmed[i] && (i == blocks-1 || !trimmed[i+1]) {
						want[len(want)-1] += fmt.Sprint(first + i + 1)
					}
				}
				if got := trimmedText(t, s, 1); got != strings.Join(want, " ") {
					t.Fatalf("trimmed %q, want %v", got, want)
				}
				wantSound(t, s)
			},
			"transaction": func(t *rapid.T) {
				type mark struct {
					from, to int
					trimmed  bool
				}
				var marks []mark
				for range rapid.IntRange(0, 2).Draw(t, "marks") {
					from := rapid.IntRange(0, blocks-1).Draw(t, "from")
					marks = append(marks, mark{from, rapid.IntRange(from, blocks).Draw(t, "to"), len(marks) == 0})
				}
				cut := rapid.IntRange(0, len(content)).Draw(t, "keep")
				at := rapid.IntRange(0, blocks-1).Draw(t, "at")
				length := rapid.IntRange(0, 5).Draw(t, "length")
				for i := at; i < at+length; i++ {
					if i >= blocks || used[i] {
						length = i - at
						break
					}
				}
				update(t, s, func(tx *Tx) error {
					for _, m := range marks {
						if err := tx.SetTrimmedRun(Run{1, int64(first+m.from) * bs, int64(m.to-m.from) * bs}, m.trimmed); err != nil {
							return err
						}
					}
					if _, err := drop(tx, 10, int64(cut)*bs, int64(len(content))*bs); err != nil {
						return err
					}
					if length == 0 {
						return nil
					}
					x := rawExtent(extent.Addr(2*chunkSpan+int64(first+at)*bs), int64(length)*bs)
					_, _, err := write(tx, 10, int64(cut)*bs, x)
					return err
				})
				for _, m := range marks {
					for i := m.from; i < m.to; i++ {
						trimmed[i] = m.trimmed && !used[i]
					}
				}
				for _, b := range content[cut:] {
					used[b], trimmed[b] = false, false
				}
				content = content[:cut]
				for i := at; i < at+length; i++ {
					used[i], trimmed[i] = true, false
					content = append(content, i)
				}
			},
		})
	})
}

func FuzzTrimmed(f *testing.F) {
	f.Add([]byte("\x0a\x02\x01\x0e"))
	f.Add([]byte("\x10\x01"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		var b, again trimmedBits
		if b.decode(p) != nil {
			return
		}
		if err := again.decode(b.encode()); err != nil || again != b {
			t.Errorf("%x does not survive: %v", p, err)
		}
		total := int64(0)
		for _, r := range b.appendRuns(nil, 1, 2) {
			if r.Slot != 1 || r.Off < 2*chunkSpan || r.Off+r.Len > 3*chunkSpan || r.Len <= 0 {
				t.Errorf("%x has a run %+v", p, r)
			}
			total += r.Len
		}
		if total > chunkSpan {
			t.Errorf("%x has runs of %d bytes", p, total)
		}
	})
}
