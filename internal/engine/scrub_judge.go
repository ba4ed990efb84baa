package engine

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone/array"
)

// foundKey tells the findings of a scrub apart: blocks by their address.
type foundKey struct {
	object string
	addr   uint64
	device uint32 // of blocks and labels: each copy is one of its own
	zone   uint32
	file   uint64 // of records that are a file's
	off    int64
}

// normal leaves out what a block may have another of at another time.
func (k foundKey) normal() foundKey {
	if k.object == "" {
		k.file, k.off = 0, 0
	}
	return k
}

func keyOf(f *scrub.Finding) foundKey {
	return foundKey{f.Object, f.Address, f.Device, f.Zone, f.FileID, f.Offset}.normal()
}

// maxKnown is how many findings are remembered. When there are more, others' are not taken any more, so
// that none is counted twice.
const maxKnown = 64 << 10

// claim reports whether the finding is a new one; then it is not new any more.
func (s *scrubSpace) claim(k foundKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.mu.known[k]; ok {
		return false
	}
	if len(s.mu.known) < maxKnown {
		s.mu.known[k] = struct{}{}
	}
	return true
}

// outcome is what becomes of what is bad if it cannot be mended.
func (s *scrubSpace) outcome() scrub.Outcome {
	if s.rec.ReadOnly {
		return scrub.NotRepairedReadOnly
	}
	return scrub.Uncorrectable
}

// Judge implements scrub.Space.
func (s *scrubSpace) Judge(at int64, copy int, want, got uint32, err error) (scrub.Finding, scrub.Verdict) {
	e, addr := s.e, extent.Addr(at)
	other := false
	if e.copies > 1 {
		other, _ = e.readCopies(addr, want, scratchBlock())
	}
	f, verdict := s.judge(addr, badCopy{copy, got, err}, want, other, false)
	if verdict == scrub.Bad {
		e.count.corruptions.Add(1)
		f.Mend = other && !s.rec.ReadOnly && f.Outcome == scrub.Uncorrectable
	}
	if slot, _ := e.split(addr); err != nil && verdict != scrub.Moved {
		e.zoneGone(slot, err)
	}
	return f, verdict
}

// mostSharing bounds the references to a bad block that are counted.
const mostSharing = 1000

// judge looks again whether the block is what was looked up, and if so who refers to it. spare: another copy
// of it is good. others: it is not the scrub's own, and is not claimed.
func (s *scrubSpace) judge(at extent.Addr, bad badCopy, want uint32, spare, others bool) (f scrub.Finding, v scrub.Verdict) {
	e := s.e
	slot, off := e.split(at)
	place, got, cause := e.placeAt(slot, bad.copy), bad.got, bad.err
	f = scrub.Finding{
		Address: uint64(at), Device: uint32(place.Device), Zone: uint32(place.Zone), ZoneOffset: off, Expected: want, Actual: got, Unreadable: cause != nil,
		Outcome: s.outcome(), Time: e.o.Now(),
	}
	if cause != nil {
		f.Actual = 0
	}
	var piece store.Piece
	found := false
	err := e.st.View(func(tx *store.Tx) error {
		sum, ok, err := tx.LiveBlock(at, s.rec.Placement)
		if err != nil || !ok || sum != want {
			v = scrub.Moved
			return err
		}
		refs, err := tx.RefsTo(at, mostSharing)
		if err != nil {
			e.o.Logger.Warn("it is not known who refers to a bad block", "address", uint64(at), "error", err)
		}
		if err == nil && allDeleted(tx, refs) {
			f.Outcome = scrub.Gone // what has not come back yet is its space
		}
		files := map[uint64]bool{}
		for _, ref := range refs {
			if files[ref.File] {
				continue
			}
			files[ref.File] = true
			if own := s.rec.Scope == scopeFile && ref.File == s.rec.FileID; f.File == "" || own {
				name, _ := tx.Path(ref.File) // a deleted file has none, and is named if there is no other
				if len(files) == 1 || name != "" {
					piece, found = pieceAt(tx, ref, at)
					f.FileID, f.File = ref.File, name
				}
			}
		}
		f.OtherReferences = max(0, len(files)-1)
		if others && s.rec.Scope == scopeFile && !files[s.rec.FileID] {
			v = scrub.Moved // none of this scrub's
		}
		return nil
	})
	if err != nil || v == scrub.Moved {
		return f, scrub.Moved
	}
	if !others && !s.claim(keyOf(&f)) { // others' are claimed when Met can have them
		return f, scrub.Known
	}
	if !found {
		e.o.Logger.Error("stored data is bad, and no file's", "address", f.Address, "zone", f.Zone, "offset", f.ZoneOffset)
		return f, scrub.Bad
	}
	block := int64(at-piece.Addr) / extent.BlockSize
	hangs := pieceBytes(piece, block)
	f.Offset, f.Length = hangs.Off, hangs.Len()
	switch file := (&file{id: f.FileID}); {
	case others, f.Outcome == scrub.Gone: // who met it has said so; nobody misses it
	case spare:
		e.o.Logger.Warn("a copy of stored data is bad; another is good", "file", f.File, "offset", f.Offset, "place", zoneName(f.Device, int(f.Zone)), "zone_offset", off)
	case s.said.Add(1) > maxConditions: // of a whole zone that is lost, a part is enough; findings has all
	case cause != nil:
		_ = e.readFailed(file, piece, block, cause)
	default:
		_ = e.corruption(file, piece, block, want, got)
	}
	return f, scrub.Bad
}

// allDeleted reports whether everybody who refers to a block is a file that has been deleted. A clone
// that is being made looks like one too, but has a source.
func allDeleted(tx *store.Tx, refs []store.FileExtent) bool {
	for _, ref := range refs {
		if kind, _, err := tx.Orphan(ref.File); err != nil || kind != store.OrphanDeleted {
			return false
		}
	}
	return len(refs) > 0
}

// pieceAt returns the piece of a mapping that uses the block at a.
func pieceAt(tx *store.Tx, ref store.FileExtent, at extent.Addr) (store.Piece, bool) {
	pieces, err := tx.Map(ref.File, ref.Off, ref.End())
	if err != nil {
		return store.Piece{}, false
	}
	for _, x := range pieces {
		if at >= x.Addr && at < x.Addr+extent.Addr(x.Blocks*extent.BlockSize) {
			return x, true
		}
	}
	return store.Piece{}, false
}

// scrubMet tells a scrub that runs of a bad copy of a block that somebody else has met. mended: it has been
// put right since.
func (e *Engine) scrubMet(at extent.Addr, bad badCopy, want uint32, mended bool) {
	s := e.scrubs.met.Load()
	if s == nil {
		return
	}
	slot, _ := e.split(at)
	place := e.placeAt(slot, bad.copy)
	if s.rec.Scope == scopeGroup && slot != s.rec.Slot || s.rec.Scope == scopeDevice && s.rec.Device != fmt.Sprint(place.Device) {
		return
	}
	if !s.wants(foundKey{addr: uint64(at), device: uint32(place.Device), zone: uint32(place.Zone)}) {
		return
	}
	f, v := s.judge(at, bad, want, mended, true)
	if v != scrub.Bad || bad.err != nil && s.Alive() != nil { // of a device that is gone no block is bad
		return
	}
	if mended {
		f.Outcome = scrub.Repaired
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Together: who passes over the block as known may be the last to look for what was met.
	if k := keyOf(&f); s.wantsLocked(k) {
		s.mu.known[k] = struct{}{}
		s.mu.met = append(s.mu.met, f)
	}
}

// wants reports whether the scrub takes a finding of others.
func (s *scrubSpace) wants(k foundKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wantsLocked(k)
}

func (s *scrubSpace) wantsLocked(k foundKey) bool {
	_, ok := s.mu.known[k]
	return !ok && len(s.mu.known) < maxKnown
}

// Met implements scrub.Space.
func (s *scrubSpace) Met() []scrub.Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.mu.met
	s.mu.met = nil
	return m
}

// superFinding is a label or zone header that is not what it must be.
func (s *scrubSpace) superFinding(object string, place array.Place, at extent.Addr, p []byte, err error) scrub.Finding {
	f := scrub.Finding{
		Object: object, Super: true, Device: uint32(place.Device), Zone: uint32(place.Zone), Address: uint64(at), Unreadable: err != nil,
		Outcome: s.outcome(), Time: s.e.o.Now(),
	}
	if err == nil {
		f.Expected, f.Actual = storedSum(p), csum.Sum(p[:len(p)-4])
	}
	s.bad(object, "is not what was written there", err)
	return f
}

// JudgeHeader implements scrub.Space.
func (s *scrubSpace) JudgeHeader(slot uint32, copy int, p []byte, err error) (scrub.Finding, scrub.Verdict) {
	place := s.e.placeAt(slot, copy)
	f := s.superFinding(zoneName(uint32(place.Device), place.Zone)+"/header", place, s.e.addr(slot, 0), p, err)
	f.Mend = f.Outcome == scrub.Uncorrectable
	return f, scrub.Bad
}

// recordFinding is a damaged record of the metadata.
func (s *scrubSpace) recordFinding(d store.DamagedRecord) scrub.Finding {
	f := scrub.Finding{
		Object: "metadata/" + d.Bucket, Expected: d.Expected, Actual: d.Actual, Outcome: s.outcome(), Time: s.e.o.Now(),
	}
	switch d.Bucket {
	case "extents", "checksums", "back_references":
		if len(d.Key) >= 8 {
			f.Address = binary.BigEndian.Uint64(d.Key)
		}
	case "nodes", "file_extents":
		if len(d.Key) >= 8 {
			f.FileID = binary.BigEndian.Uint64(d.Key)
		}
		if len(d.Key) == 16 {
			f.Offset = int64(min(binary.BigEndian.Uint64(d.Key[8:]), extent.MaxFileSize))
		}
	}
	s.bad(f.Object, "record "+hex.EncodeToString(d.Key)+" is damaged", nil)
	return f
}

// bad says that something is bad that is no block of data.
func (s *scrubSpace) bad(object, what string, cause error) {
	s.e.count.corruptions.Add(1)
	log := []any{"object", object, "detail", what}
	msg := object + ": " + what
	if cause != nil {
		log = append(log, "error", cause)
		msg = fmt.Sprintf("%s cannot be read: %s", object, errdefs.Sentence(cause))
	}
	s.e.o.Logger.Error("a scrub met damage", log...)
	s.e.cond.set(Condition{
		Reason: "CORRUPTION", Severity: Error, Object: object, Since: s.e.o.Now(), Message: msg,
		Advice: "run `engine check` for what hangs on it",
	})
}
