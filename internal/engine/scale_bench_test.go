package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
)

// extentsPerZone are the extents of one block each that lie in a full zone of a made-up store, with
// every third block between them dead.
const extentsPerZone = 168

// makeUp fills four fifths of a store's zones with extents that only the metadata and the write
// pointers know of: a file a zone.
func makeUp(b *bench, g zone.Geometry) (full int) {
	t := b.t
	t.Helper()
	full = g.Zones * 4 / 5
	s, err := store.Open(b.meta, store.Options{NoSync: true, MaxBytes: b.opts.MetadataLimit})
	if err != nil {
		t.Fatal(err)
	}
	const batch = 100
	for from := 0; from < full; from += batch {
		err := s.Update(func(tx *store.Tx) error {
			for slot := from; slot < min(full, from+batch); slot++ {
				if err := makeUpZone(tx, g, slot); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var zones []int
	err = s.View(func(tx *store.Tx) error {
		return tx.BlockGroups(func(g store.BlockGroup) error {
			if int(g.Slot) < full {
				zones = append(zones, int(g.Places[0].Zone))
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, z := range zones {
		if err := b.dev.Finish(z); err != nil {
			t.Fatal(err)
		}
	}
	return full
}

func fileOfZone(slot int) string { return fmt.Sprintf("d%d/f%d", slot/1000, slot) }

func makeUpZone(tx *store.Tx, g zone.Geometry, slot int) error {
	id := uint64(1<<20 + 2*slot)
	tx.SetSuperblock(func(s *store.Superblock) { s.NodeIDLimit = max(s.NodeIDLimit, id+2) })
	parent, leaf, err := tx.MakeParents(fileOfZone(slot), func() (store.Node, error) { return store.Node{ID: id + 1}, nil })
	if err != nil {
		return err
	}
	group, err := tx.BlockGroup(uint32(slot))
	if err != nil {
		return err
	}
	group.Class, group.Flags = 1, store.BGFinished
	if err := tx.PutBlockGroup(group); err != nil {
		return err
	}
	n := store.Node{ID: id, Kind: store.File, Generation: id}
	if err := tx.Link(parent, leaf, n); err != nil {
		return err
	}
	exts := make([]store.NewExtent, extentsPerZone)
	for i := range exts {
		at := int64(slot)*g.ZoneSize + int64(1+i+i/2)*extent.BlockSize
		exts[i] = store.NewExtent{Addr: extent.Addr(at), Blocks: 1, Sums: []uint32{uint32(at)}, Length: extent.BlockSize}
	}
	added, err := tx.InsertExtents(id, 0, exts)
	if err != nil {
		return err
	}
	if n, err = tx.Node(id); err != nil {
		return err
	}
	n.Add(added)
	n.Size = extentsPerZone * extent.BlockSize
	return tx.PutNode(n)
}

// timesOf measures fn n times and returns the median.
func timesOf(n int, fn func(i int)) time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		start := time.Now()
		fn(i)
		all[i] = time.Since(start)
	}
	slices.Sort(all)
	return all[n/2]
}

// BenchmarkManyZones opens and uses a store of 75,000 zones with 10 million extents beside one of
// 100 zones, the metadata of both made up: what an open takes after a clean close and after a crash,
// a write with its sync, a delete, df, and a trim of all. The ratios are of the larger to the smaller.
func BenchmarkManyZones(b *testing.B) {
	type figures struct{ made, clean, crash, write, del, df, trim time.Duration }
	measure := func(b *testing.B, zones int) (f figures) {
		ctx := context.Background()
		g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: zones, MaxOpen: 14, MaxActive: 14}
		o := Options{MetadataLimit: 16 << 30}
		o.Reclaim.Threshold, o.Reclaim.Low = 100, 1 // nothing by itself
		t := newBench(b, g, o)
		start := time.Now()
		full := makeUp(t, g)
		f.made = time.Since(start)
		e := t.open()
		if err := e.Close(ctx); err != nil {
			b.Fatal(err)
		}
		start = time.Now()
		e = t.open()
		f.clean = time.Since(start)
		f.write = timesOf(50, func(i int) {
			writeAt(b, e, "new", int64(i)*extent.BlockSize, noise(uint64(i), extent.BlockSize))
			syncAll(b, e)
		})
		f.del = timesOf(20, func(i int) { deleteFile(b, e, fileOfZone(i)) })
		f.df = timesOf(50, func(int) { _ = e.Usage() })
		e.vanish()
		start = time.Now()
		e = t.open()
		f.crash = time.Since(start)
		start = time.Now()
		r, err := e.Trim(ctx, TrimRequest{Length: trim.ToEnd}, nil)
		f.trim = time.Since(start)
		if err != nil || r.Trimmed < uint64(g.Zones-full-20)<<20 {
			b.Fatalf("%+v, %v", r, err)
		}
		if u := e.Usage(); u.Used < int64(full-20)*extentsPerZone*extent.BlockSize {
			b.Fatalf("%+v", u)
		}
		if err := e.Close(ctx); err != nil {
			b.Fatal(err)
		}
		return f
	}
	for range b.N {
		small, large := measure(b, 100), measure(b, 75_000)
		b.ReportMetric(large.made.Seconds(), "made-s")
		b.ReportMetric(large.clean.Seconds(), "open-s")
		b.ReportMetric(large.crash.Seconds(), "open-after-crash-s")
		b.ReportMetric(large.trim.Seconds(), "trim-s")
		b.ReportMetric(large.df.Seconds()*1e6, "df-us")
		b.ReportMetric(float64(large.write)/float64(small.write), "write-ratio")
		b.ReportMetric(float64(large.del)/float64(small.del), "delete-ratio")
	}
}
