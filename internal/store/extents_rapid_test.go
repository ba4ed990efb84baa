package store

import (
	"fmt"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

// cell is where a byte of a file came from: the unit, and the byte in it.
type cell struct {
	unit extent.Addr // where the unit was written first; 0: a hole (no extent begins at address 0 here)
	at   int32
}

const (
	modelSize  = 28 << 10
	modelFiles = 4
)

// extentModel mirrors some files byte by byte and every unit ever written.
type extentModel struct {
	s     *Store
	files [modelFiles][modelSize]cell
	units map[extent.Addr]extent.Frame // by the address that it was written at
	next  extent.Addr
	// moved says of a block's address where the block was written first, if that is elsewhere.
	moved map[extent.Addr]extent.Addr
}

// written returns where the block at a was written first.
func (m *extentModel) written(a extent.Addr) extent.Addr {
	if o, ok := m.moved[a]; ok {
		return o
	}
	return a
}

func modelFile(i int) uint64 { return uint64(10 + i) }

func (m *extentModel) addFiles(t fataler) {
	update(t, m.s, func(tx *Tx) error {
		for i := range m.files {
			if err := addFile(tx, modelFile(i), fmt.Sprintf("d/f%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (m *extentModel) alloc(blocks int64) (extent.Addr, bool) {
	limit := int64(testZone - 2*extent.BlockSize)
	if off := int64(m.next % testZone); off+blocks*extent.BlockSize > limit {
		m.next = (m.next/testZone + 1) * testZone
	}
	if int64(m.next)/testZone >= testGroups {
		return 0, false
	}
	a := m.next
	m.next += extent.Addr(blocks * extent.BlockSize)
	return a, true
}

// put notes that the n bytes of file i from off on come from x.
func (m *extentModel) put(i int, off int64, x NewExtent) {
	frames := x.Frames
	if frames == nil {
		for range x.Blocks {
			frames = append(frames, extent.Frame{Raw: extent.BlockSize, Stored: extent.BlockSize})
		}
	}
	a, end := x.Addr, off+x.Length
	for _, f := range frames {
		m.units[a] = f
		for j := range int64(f.Raw) {
			if off < end {
				m.files[i][off] = cell{a, int32(j)}
				off++
			}
		}
		a += extent.Addr(f.Blocks() * extent.BlockSize)
	}
}

func (m *extentModel) live() (bytes int64) {
	seen := map[extent.Addr]bool{}
	for i := range m.files {
		for _, c := range m.files[i] {
			if c.unit != 0 && !seen[c.unit] {
				seen[c.unit] = true
				bytes += m.units[c.unit].Blocks() * extent.BlockSize
			}
		}
	}
	return bytes
}

// placed returns the stored bytes of the units that are mapped, by block group.
func (m *extentModel) placed(tx *Tx) (perSlot map[uint32]int64, err error) {
	seen := map[extent.Addr]bool{}
	perSlot = map[uint32]int64{}
	for i := range m.files {
		pieces, err := tx.Map(modelFile(i), 0, modelSize)
		if err != nil {
			return nil, err
		}
		for _, p := range pieces {
			for a, n := p.Addr, p.Blocks; n > 0; a, n = a+extent.BlockSize, n-1 {
				if !seen[a] {
					seen[a] = true
					perSlot[uint32(a/testZone)] += extent.BlockSize
				}
			}
		}
	}
	return perSlot, nil
}

// verify reads all of a file through Map and compares it byte by byte.
func (m *extentModel) verify(tx *Tx, i int, off, end int64) error {
	pieces, err := tx.Map(modelFile(i), off, end)
	if err != nil {
		return err
	}
	got := make([]cell, end-off)
	for _, p := range pieces {
		if p.FileOff < off || p.FileOff+p.Len > end || int64(len(p.Sums)) != p.Blocks {
			return fmt.Errorf("piece %+v is not clipped to [%d,%d)", p, off, end)
		}
		for j, s := range p.Sums {
			if s != testSum(m.written(p.Addr+extent.Addr(j*extent.BlockSize))) {
				return fmt.Errorf("wrong checksum for block %d of piece at %d", j, p.FileOff)
			}
		}
		frames := p.Frames
		if p.Codec == extent.CodecNone {
			for range p.Blocks {
				frames = append(frames, extent.Frame{Raw: extent.BlockSize, Stored: extent.BlockSize})
			}
		}
		decoded := make([]cell, 0, p.Blocks*extent.BlockSize)
		a := p.Addr
		for _, f := range frames {
			unit := m.written(a)
			if m.units[unit] != f {
				return fmt.Errorf("unit at %#x is %+v, written was %+v", uint64(a), f, m.units[unit])
			}
			for j := range f.Raw {
				decoded = append(decoded, cell{unit, int32(j)})
			}
			a += extent.Addr(f.Blocks() * extent.BlockSize)
		}
		if p.Skip >= int64(frames[0].Raw) || p.Skip+p.Len <= int64(len(decoded))-int64(frames[len(frames)-1].Raw) {
			return fmt.Errorf("piece at %d reads more units than it needs", p.FileOff)
		}
		copy(got[p.FileOff-off:], decoded[p.Skip:p.Skip+p.Len])
	}
	for j, c := range got {
		if want := m.files[i][off+int64(j)]; c != want {
			return fmt.Errorf("file %d byte %d comes from %v, want %v", i, off+int64(j), c, want)
		}
	}
	return nil
}

func (m *extentModel) wipe(i int, off, end int64) {
	for j := off; j < end; j++ {
		m.files[i][j] = cell{}
	}
}

func drawRange(t *rapid.T, most int64) (off, end int64) {
	// Block borders and their neighbours are where the rules differ.
	near := rapid.Custom(func(t *rapid.T) int64 {
		b := rapid.Int64Range(0, modelSize/extent.BlockSize).Draw(t, "block") * extent.BlockSize
		return min(max(b+rapid.SampledFrom([]int64{0, 0, 0, -1, 1, 100, 2000}).Draw(t, "near"), 0), modelSize)
	})
	a, b := near.Draw(t, "a"), near.Draw(t, "b")
	if a > b {
		a, b = b, a
	}
	return a, min(b, a+most)
}

func (m *extentModel) insert(t *rapid.T) {
	i := rapid.IntRange(0, modelFiles-1).Draw(t, "file")
	off, end := drawRange(t, 20<<10)
	if off == end {
		return
	}
	var exts []NewExtent
	for at := off; at < end; {
		n := min(end-at, int64(rapid.IntRange(1, 12<<10).Draw(t, "extent")))
		if n < end-at && rapid.Bool().Draw(t, "raw") || n == end-at && rapid.Bool().Draw(t, "raw") {
			a, ok := m.alloc(extent.BlocksFor(n))
			if !ok {
				return
			}
			exts = append(exts, rawExtent(a, n))
		} else {
			var frames []extent.Frame
			var blocks int64
			for left := n; left > 0; {
				raw := min(left, int64(rapid.IntRange(1, 5000).Draw(t, "frame")))
				f := extent.Frame{Raw: uint32(raw), Stored: uint32(rapid.Int64Range(1, raw).Draw(t, "stored")), Codec: extent.CodecZstd}
				frames = append(frames, f)
				blocks += f.Blocks()
				left -= raw
			}
			a, ok := m.alloc(blocks)
			if !ok {
				return
			}
			exts = append(exts, framedExtent(a, frames...))
		}
		at += n
	}
	before := m.live()
	m.wipe(i, off, end)
	wiped := m.live()
	var dropped, added Delta
	update(t, m.s, func(tx *Tx) (err error) {
		dropped, added, err = write(tx, modelFile(i), off, exts...)
		return err
	})
	if dropped.FreedBytes != before-wiped {
		t.Fatalf("the drop freed %d bytes, want %d", dropped.FreedBytes, before-wiped)
	}
	at := off
	for _, x := range exts {
		m.put(i, at, x)
		at += x.Length
	}
	after := m.live()
	if added.Stored != after-wiped || added.Allocated != end-off {
		t.Fatalf("the insert added %d stored bytes, want %d; %d allocated, want %d", added.Stored, after-wiped, added.Allocated, end-off)
	}
}

func (m *extentModel) cut(t *rapid.T) {
	i := rapid.IntRange(0, modelFiles-1).Draw(t, "file")
	off, end := drawRange(t, modelSize)
	limit := rapid.IntRange(0, 3).Draw(t, "limit")
	before := m.live()
	m.wipe(i, off, end)
	after := m.live()
	var sum Delta
	for at, done := off, false; !done; {
		update(t, m.s, func(tx *Tx) error {
			n, err := tx.Node(modelFile(i))
			if err != nil {
				return err
			}
			d, dn, next, err := tx.DropRange(modelFile(i), at, end, limit)
			if err != nil {
				return err
			}
			if !dn && next <= at && limit != 0 && next != off {
				return fmt.Errorf("a limited drop does not get on from %d", at)
			}
			at, done = next, dn
			sum.Merge(d)
			n.Add(d)
			return tx.PutNode(n)
		})
	}
	if sum.FreedBytes != before-after {
		t.Fatalf("the drop freed %d bytes, want %d", sum.FreedBytes, before-after)
	}
}

func (m *extentModel) clone(t *rapid.T) {
	i := rapid.IntRange(0, modelFiles-1).Draw(t, "file")
	j := rapid.IntRange(0, modelFiles-1).Draw(t, "target")
	off, end := drawRange(t, modelSize)
	shift := rapid.SampledFrom([]int64{0, 0, 4096, -4096, 8192, 100, -3000}).Draw(t, "shift")
	off = max(off, -shift)
	end = min(end, modelSize-shift)
	if off >= end || i == j && shift < end-off && -shift < end-off {
		return
	}
	src := m.files[i]
	m.wipe(j, off+shift, end+shift)
	update(t, m.s, func(tx *Tx) error {
		if _, err := drop(tx, modelFile(j), off+shift, end+shift); err != nil {
			return err
		}
		return clone(tx, modelFile(i), modelFile(j), off, end, shift)
	})
	copy(m.files[j][off+shift:end+shift], src[off:end])
}

// cloneRange replaces a range of a file by a clone of the same range of another, in steps.
func (m *extentModel) cloneRange(t *rapid.T) {
	i := rapid.IntRange(0, modelFiles-1).Draw(t, "file")
	j := rapid.IntRange(0, modelFiles-1).Draw(t, "target")
	off, end := drawRange(t, modelSize)
	if rapid.Bool().Draw(t, "whole") {
		off, end = 0, modelSize
	}
	if i == j || off == end {
		return
	}
	limit := rapid.IntRange(0, 3).Draw(t, "limit")
	update(t, m.s, func(tx *Tx) error {
		_, err := drop(tx, modelFile(j), off, end)
		return err
	})
	m.wipe(j, off, end)
	before := m.live()
	stored := m.stored(j)
	var sum Delta
	for at, done := off, false; !done; {
		update(t, m.s, func(tx *Tx) error {
			n, err := tx.Node(modelFile(j))
			if err != nil {
				return err
			}
			d, dn, next, err := tx.CloneRange(modelFile(i), modelFile(j), at, end, limit)
			if err != nil {
				return err
			}
			if !dn && next <= at && at != off {
				return fmt.Errorf("a limited clone does not get on from %d", at)
			}
			at, done = next, dn
			sum.Merge(d)
			n.Add(d)
			n.Size = modelSize
			return tx.PutNode(n)
		})
	}
	copy(m.files[j][off:end], m.files[i][off:end])
	after := m.live()
	if after != before || sum.FreedBytes != 0 || sum.Freed != nil || sum.Added != nil {
		t.Fatalf("a clone is worth no bytes: %+v, live %d, %d before", sum, after, before)
	}
	if got := m.stored(j) - stored; sum.Stored != got {
		t.Fatalf("the clone added %d stored bytes, want %d", sum.Stored, got)
	}
}

// stored returns what Node.StoredBytes is for file i: each unit once for each place in the file.
func (m *extentModel) stored(i int) (n int64) {
	type place struct {
		unit extent.Addr
		off  int64
	}
	seen := map[place]bool{}
	for off, c := range m.files[i] {
		if p := (place{c.unit, int64(off) - int64(c.at)}); c.unit != 0 && !seen[p] {
			seen[p] = true
			f := m.units[c.unit]
			n += f.Blocks() * extent.BlockSize
		}
	}
	return n
}

// mapped holds Mapped against the model: every byte once, in order, and shared exactly if some
// unit of the range is in use elsewhere.
func (m *extentModel) mapped(tx *Tx, i int) error {
	users := map[extent.Addr]map[[2]int64]bool{}
	for j := range m.files {
		for off, c := range m.files[j] {
			if c.unit == 0 {
				continue
			}
			if users[c.unit] == nil {
				users[c.unit] = map[[2]int64]bool{}
			}
			users[c.unit][[2]int64{int64(j), int64(off) - int64(c.at)}] = true
		}
	}
	var got [modelSize]cell
	for at, budget := int64(0), 1<<20; ; {
		p, ok, err := tx.Mapped(modelFile(i), at, modelSize, &budget)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if p.Off < at || p.Len <= 0 || p.Skip < 0 {
			return fmt.Errorf("a range %+v from %d on", p, at)
		}
		a, skip, stored, shared := p.Addr, p.Skip, int64(0), false
		for off := p.Off; off < p.Off+p.Len; {
			f := m.units[m.written(a)]
			for ; skip < int64(f.Raw) && off < p.Off+p.Len; skip, off = skip+1, off+1 {
				got[off] = cell{m.written(a), int32(skip)}
			}
			stored += f.Blocks() * extent.BlockSize
			shared = shared || len(users[m.written(a)]) > 1
			a += extent.Addr(f.Blocks() * extent.BlockSize)
			skip = 0
		}
		if stored != p.Stored || shared != p.Shared {
			return fmt.Errorf("file %d: %+v, want %d stored bytes, shared %v", i, p, stored, shared)
		}
		at = p.Off + p.Len
	}
	if got != m.files[i] {
		return fmt.Errorf("file %d is mapped otherwise", i)
	}
	return nil
}

func (m *extentModel) check(t *rapid.T) {
	off, end := drawRange(t, modelSize)
	looked := rapid.IntRange(0, modelFiles-1).Draw(t, "mapped")
	m.checkStore(t, off, end, looked, m.live())
}

// checkStore holds the store against the model; live is what is stored. Of file looked, unless it is
// below 0, it is checked how it is mapped.
func (m *extentModel) checkStore(t *rapid.T, off, end int64, looked int, live int64) {
	view(t, m.s, func(tx *Tx) error {
		for i := range m.files {
			if err := m.verify(tx, i, 0, modelSize); err != nil {
				return err
			}
			if err := m.verify(tx, i, off, end); off < end && err != nil {
				return err
			}
		}
		if looked >= 0 {
			if err := m.mapped(tx, looked); err != nil {
				return err
			}
		}
		if sum := tx.Superblock().Totals; sum.Files != int64(len(m.files)) || sum.Stored != live {
			return fmt.Errorf("totals %+v, want %d files with %d stored bytes", sum, len(m.files), live)
		}
		perSlot, err := m.placed(tx)
		if err != nil {
			return err
		}
		return tx.BlockGroups(func(g BlockGroup) error {
			if g.LiveBytes != perSlot[g.Slot] {
				return fmt.Errorf("block group %d has %d live bytes, want %d", g.Slot, g.LiveBytes, perSlot[g.Slot])
			}
			return nil
		})
	})
	wantSound(t, m.s)
}

func TestExtentsAgainstByteModel(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		m := &extentModel{
			s:     newStoreAt(t, filepath.Join(dir, fmt.Sprint("meta", run)), testOptions),
			units: map[extent.Addr]extent.Frame{}, next: extent.BlockSize, moved: map[extent.Addr]extent.Addr{},
		}
		defer m.s.Close()
		m.addFiles(t)
		t.Repeat(map[string]func(*rapid.T){
			"insert": m.insert, "cut": m.cut, "clone": m.clone, "cloneRange": m.cloneRange, "move": m.move, "": m.check,
		})
	})
}
