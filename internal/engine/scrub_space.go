package engine

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
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
				s.mu.known[foundKey{f.Object, uint64(f.Addr), f.FileID, f.Off}.normal()] = struct{}{}
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

// Labels implements scrub.Space.
func (s *scrubSpace) Labels() (bad []scrub.Finding, reads int) {
	a, b, err := label.Zones(s.e.geo)
	if err != nil {
		return nil, 0
	}
	for _, z := range []int{a, b} {
		p := slab.Aligned(extent.BlockSize)
		err := s.e.dev.ReadAt(z, 0, p)
		if reads++; err != nil || !s.isLabel(p) {
			err = s.e.dev.ReadAt(z, 0, p) // what passes is no damage
			reads++
		}
		if err != nil || !s.isLabel(p) {
			bad = append(bad, s.superFinding("devices/0/label", z, 0, p, err))
		}
	}
	return bad, reads
}

func (s *scrubSpace) isLabel(p []byte) bool {
	l, err := label.DecodeLabel(p)
	return err == nil && l.Store == s.e.uuid && l.Device == 0
}

// Alive implements scrub.Space: a device that reads anything at all is alive.
func (s *scrubSpace) Alive() error {
	a, b, err := label.Zones(s.e.geo)
	if err != nil {
		return err
	}
	p := slab.Aligned(extent.BlockSize)
	try := func(z int) bool {
		err = s.e.dev.ReadAt(z, 0, p)
		return err == nil || errors.Is(err, zone.ErrInvalidRead) || errors.Is(err, zone.ErrZoneOffline)
	}
	if try(a) || try(b) {
		return nil
	}
	tries := 0
	for slot := 0; slot < len(s.e.zones) && tries < aliveTries; slot++ {
		if g := s.e.al.Snapshot(slot, 1)[0]; g.Live == 0 {
			continue
		}
		if tries++; try(s.e.zoneOf(uint32(slot))) {
			return nil
		}
	}
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Scrub", "device 0", err)
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
	if s.rec.Scope != scopeFile {
		end = min(end, int64(e.addr(slot+1, 0))) // one zone at a time: its header comes first
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
		if off == 0 && !g.Conventional {
			out.Pieces = append(out.Pieces, scrub.Piece{At: at, Header: true})
		}
	}
	for _, r := range look.Runs {
		out.Pieces = append(out.Pieces, scrub.Piece{At: int64(r.Addr), Sums: r.Sums})
	}
	last := look.Runs[len(look.Runs)-1]
	slot, off = e.split(last.Addr)
	out.LastPhysical = uint64(int64(e.zoneOf(slot))*e.geo.ZoneSize + off + int64(len(last.Sums))*extent.BlockSize)
	return out, nil
}

// Read implements scrub.Space.
func (s *scrubSpace) Read(slot uint32, off int64, p []byte) error {
	s.e.scrubs.reads.Add(1)
	s.e.scrubs.bytes.Add(uint64(len(p)))
	return s.e.dev.ReadAt(s.e.zoneOf(slot), off, p)
}

// Header implements scrub.Space.
func (s *scrubSpace) Header(slot uint32, p []byte) bool {
	h, err := label.DecodeHeader(p)
	g, _ := s.e.al.BlockGroup(slot)
	return err == nil && h.Store == s.e.uuid && h.Slot == slot && h.Zone == g.Zone && h.Device == 0 && h.Generation == g.Generation
}

// Others implements scrub.Space.
func (s *scrubSpace) Others() uint64 { return s.e.foreground() }

// storedSum is the checksum at the end of a label or zone header.
func storedSum(p []byte) uint32 { return binary.LittleEndian.Uint32(p[len(p)-4:]) }
