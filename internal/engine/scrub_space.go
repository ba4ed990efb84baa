package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// scrubSpace is the store as a run of a scrub sees it. It implements scrub.Space; what becomes of what is
// bad is in scrub_judge.go.
type scrubSpace struct {
	e        *Engine
	run      *scrubRun
	rec      store.Scrub // as it was when the run began
	recorded uint64      // findings on record; of the goroutine of the run

	said atomic.Int64 // bad blocks of data

	mu struct {
		sync.Mutex
		known map[foundKey]struct{} // findings of this scrub
		met   []scrub.Finding       // of them, those that others have met and that are not taken yet
	}
}

// newScrubSpace makes what a run works on. It knows the findings that the scrub has already.
func (e *Engine) newScrubSpace(run *scrubRun, rec store.Scrub) (*scrubSpace, error) {
	s := &scrubSpace{e: e, run: run, rec: rec, recorded: rec.Findings}
	s.mu.known = map[foundKey]struct{}{}
	for after, more := uint64(0), true; more; {
		more = false
		err := e.st.View(func(tx *store.Tx) error {
			n := 0
			_, err := tx.Findings(rec.ID, after, func(f store.Finding) bool {
				if len(s.mu.known) == maxKnown {
					return false
				}
				s.mu.known[foundKey{f.Object, uint64(f.Addr), f.Device, f.Zone, f.FileID, f.Off}.normal()] = struct{}{}
				after, n = f.Seq, n+1
				more = n == maxFindings // the rest in a transaction of its own
				return !more
			})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Labels implements scrub.Space. A label that is bad is written anew.
func (s *scrubSpace) Labels() (bad []scrub.Finding, reads int) {
	for _, m := range s.e.dev.Members() {
		dev := s.e.dev.Member(m.Number)
		if dev == nil || s.rec.Scope == scopeDevice && s.rec.Device != fmt.Sprint(m.Number) {
			continue
		}
		b, n := s.labelsOf(uint32(m.Number), dev)
		bad, reads = append(bad, b...), reads+n
	}
	return bad, reads
}

func (s *scrubSpace) labelsOf(number uint32, dev zone.Device) (bad []scrub.Finding, reads int) {
	a, b, err := label.Zones(dev.Geometry())
	if err != nil {
		return nil, 0
	}
	for _, z := range []int{a, b} {
		p := slab.Aligned(extent.BlockSize)
		err := dev.ReadAt(z, 0, p)
		if reads++; err != nil || !s.isLabel(number, p) {
			err = dev.ReadAt(z, 0, p) // what passes is no damage
			reads++
		}
		if err == nil && s.isLabel(number, p) {
			continue
		}
		f := s.superFinding(deviceName(number)+"/label", array.Place{Device: int(number), Zone: z}, 0, p, err)
		if f.Outcome == scrub.Uncorrectable && s.e.writable("engine.Scrub") == nil && s.e.mendLabel(number, dev) == nil {
			f.Outcome = scrub.Repaired
			s.e.cond.clear("CORRUPTION", f.Object)
		}
		bad = append(bad, f)
	}
	return bad, reads
}

func (s *scrubSpace) isLabel(number uint32, p []byte) bool {
	l, err := label.DecodeLabel(p)
	return err == nil && l.Store == s.e.uuid && l.Device == number
}

// Alive implements scrub.Space: a device that reads anything at all is alive.
func (s *scrubSpace) Alive() error {
	for _, m := range s.e.dev.Members() {
		if dev := s.e.dev.Member(m.Number); dev != nil {
			if err := s.alive(m.Number, dev); err != nil {
				return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Scrub", fmt.Sprintf("device %d", m.Number), err)
			}
		}
	}
	return nil
}

func (s *scrubSpace) alive(number int, dev zone.Device) error {
	a, b, err := label.Zones(dev.Geometry())
	if err != nil {
		return err
	}
	p := slab.Aligned(extent.BlockSize)
	try := func(z int) bool {
		err = dev.ReadAt(z, 0, p)
		return err == nil || errors.Is(err, zone.ErrInvalidRead) || errors.Is(err, zone.ErrZoneOffline)
	}
	if try(a) || try(b) {
		return nil
	}
	tries := 0
	for slot := 0; slot < s.e.slots() && tries < aliveTries; slot++ {
		if g, _ := s.e.al.BlockGroup(uint32(slot)); g.Live == 0 {
			continue
		}
		for _, place := range s.e.dev.Places(slot) {
			if place.Device != number || place.Stale {
				continue
			}
			if tries++; try(place.Zone) {
				return nil
			}
		}
	}
	return err
}

// aliveTries is how many zones beside those of the labels must not be readable for the device not to be.
const aliveTries = 8

// scanRecords is about how many records a step through the metadata takes: some milliseconds' worth.
const scanRecords = 4096

// Scan implements scrub.Space.
func (s *scrubSpace) Scan(bucket string, key []byte) (out scrub.Scan, err error) {
	var scan store.RecordScan
	err = s.e.st.View(func(tx *store.Tx) (err error) {
		scan, err = tx.ScanRecords(bucket, key, scanRecords)
		return err
	})
	if err != nil {
		return out, err
	}
	out = scrub.Scan{Records: scan.Records, Bytes: scan.Bytes, Bucket: scan.Bucket, Key: scan.Key}
	for _, d := range scan.Damaged {
		f := s.recordFinding(d)
		s.claim(keyOf(&f))
		out.Damaged = append(out.Damaged, f)
	}
	return out, nil
}

// Look implements scrub.Space. The epoch keeps what is looked up from being reset until it was read.
func (s *scrubSpace) Look(at, end, room int64) (out scrub.Look, err error) {
	e := s.e
	epoch := e.epochs.enter()
	defer func() {
		if err != nil {
			e.epochs.exit(epoch)
		}
	}()
	slot, off := e.split(extent.Addr(at))
	room = max(1, room/int64(e.copies)) // each copy is read
	if s.rec.Scope != scopeFile {
		end = min(end, int64(e.addr(slot+1, 0))) // one zone at a time: its header comes first
	}
	if s.rec.Scope == scopeDevice && len(s.copiesOf(slot)) == 0 {
		return scrub.Look{Next: end, Apart: true, Release: func() { e.epochs.exit(epoch) }}, nil
	}
	var look store.LiveLook
	err = e.st.View(func(tx *store.Tx) (err error) {
		if s.rec.Scope == scopeFile {
			look, err = tx.LookFile(s.rec.FileID, at, room, s.rec.Placement)
		} else {
			look, err = tx.LookLive(extent.Addr(at), extent.Addr(end), room, s.rec.Placement)
		}
		return err
	})
	if err != nil {
		return out, err
	}
	out = scrub.Look{
		Blocks: look.Blocks, Extents: look.Extents, NoSums: look.NoSums, LooseSums: look.LooseSums, Next: look.Next,
		ExtentLookups: look.ExtentLookups, SumLookups: look.SumLookups, Apart: true,
		Release: func() { e.epochs.exit(epoch) },
	}
	e.scrubs.lookups.Add(look.ExtentLookups)
	e.scrubs.sumLookups.Add(look.SumLookups)
	for _, d := range look.Damaged {
		if f := s.recordFinding(d); s.claim(keyOf(&f)) {
			out.Damaged = append(out.Damaged, f)
		}
	}
	if len(look.Runs) == 0 {
		return out, nil
	}
	if s.rec.Scope != scopeFile {
		g, _ := e.al.BlockGroup(slot)
		// In a zone that takes appends, one may be under way between what is on record.
		out.Apart = !g.Conventional && (g.State != alloc.Full || g.Pending > 0)
		for _, c := range s.copiesOf(slot) {
			if off == 0 && !g.Conventional {
				out.Pieces = append(out.Pieces, scrub.Piece{At: at, Copy: c, Header: true})
			}
			for _, r := range look.Runs {
				out.Pieces = append(out.Pieces, scrub.Piece{At: int64(r.Addr), Copy: c, Sums: r.Sums})
			}
		}
	} else {
		for c := range e.copies {
			for _, r := range look.Runs {
				if slot, _ := e.split(r.Addr); slices.Contains(s.copiesOf(slot), c) {
					out.Pieces = append(out.Pieces, scrub.Piece{At: int64(r.Addr), Copy: c, Sums: r.Sums})
				}
			}
		}
	}
	last := look.Runs[len(look.Runs)-1]
	slot, off = e.split(last.Addr)
	out.LastPhysical = uint64(int64(e.zoneOf(slot))*e.geo.ZoneSize + off + int64(len(last.Sums))*extent.BlockSize)
	return out, nil
}

// copiesOf are the copies in a slot that the scrub reads: those that are in use, of a scrub of a device
// those on it.
func (s *scrubSpace) copiesOf(slot uint32) (out []int) {
	for i, p := range s.e.dev.Places(int(slot)) {
		if !p.Stale && s.e.dev.Member(p.Device) != nil && (s.rec.Scope != scopeDevice || s.rec.Device == fmt.Sprint(p.Device)) {
			out = append(out, i)
		}
	}
	return out
}

// Read implements scrub.Space.
func (s *scrubSpace) Read(slot uint32, copy int, off int64, p []byte) error {
	s.e.scrubs.reads.Add(1)
	s.e.scrubs.bytes.Add(uint64(len(p)))
	return s.e.dev.ReadCopy(int(slot), copy, off, p)
}

// Header implements scrub.Space.
func (s *scrubSpace) Header(slot uint32, copy int, p []byte) bool {
	g, _ := s.e.al.BlockGroup(slot)
	return s.e.isHeader(p, slot, g.Generation, copy, s.e.placeAt(slot, copy))
}

// Others implements scrub.Space.
func (s *scrubSpace) Others() uint64 { return s.e.foreground() }

// storedSum is the checksum at the end of a label or zone header.
func storedSum(p []byte) uint32 { return binary.LittleEndian.Uint32(p[len(p)-4:]) }
