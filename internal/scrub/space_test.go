package scrub

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/extent"
)

// block is one of a testSpace's.
type block struct {
	live, later bool // later: placed after the scrub began
	bad         bool // at rest
	unreadable  bool
	flaky       int // reads that go wrong before it reads well
}

// testSpace is a store in memory. Every block's content is its number.
type testSpace struct {
	zone    int64 // blocks
	headers bool  // the first block of each zone is a header

	mu       sync.Mutex
	blocks   []block
	records  int // of metadata, each of 10 bytes
	badRecs  map[int]bool
	labels   []Finding
	met      []Finding
	known    map[int64]bool
	others   uint64
	dead     bool // the device
	pins     int
	bytes    int64 // read of the device
	reads    int
	stall    chan struct{} // unless nil, reads wait for it
	onRead   func()
	onMend   func(context.Context)
	failSave error
	touched  map[int64]bool // blocks read, if it is wanted
	saved    []Batch
}

var errMedia = errors.New("medium error")

func content(i int64) []byte {
	b := make([]byte, extent.BlockSize)
	binary.LittleEndian.PutUint64(b, uint64(i))
	return b
}

func (s *testSpace) Labels() ([]Finding, int) { return s.labels, 2 }

func (s *testSpace) Scan(bucket string, key []byte) (scan Scan, err error) {
	i := 0
	if bucket != "" {
		i = int(binary.BigEndian.Uint32(key))
	}
	for ; i < s.records && scan.Records < 7; i++ {
		scan.Records, scan.Bytes = scan.Records+1, scan.Bytes+10
		if s.badRecs[i] {
			scan.Damaged = append(scan.Damaged, Finding{Object: "metadata/test", Outcome: Uncorrectable, Address: uint64(i)})
		}
	}
	if i < s.records {
		scan.Bucket, scan.Key = "test", binary.BigEndian.AppendUint32(nil, uint32(i))
	}
	return scan, nil
}

func (s *testSpace) Look(at, end, room int64) (Look, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	look := Look{Next: end, ExtentLookups: 1, SumLookups: 1}
	if s.headers && at%(s.zone*extent.BlockSize) == 0 {
		look.Pieces = append(look.Pieces, Piece{At: at, Header: true})
		at += extent.BlockSize
	}
	for i := at / extent.BlockSize; i < end/extent.BlockSize; i++ {
		if !s.blocks[i].live || s.blocks[i].later {
			continue
		}
		if look.Blocks == room {
			look.Next = i * extent.BlockSize
			break
		}
		look.Blocks++
		look.Pieces = append(look.Pieces, Piece{At: i * extent.BlockSize, Sums: []uint32{csum.Sum(content(i))}})
		look.LastPhysical = uint64(i+1) * extent.BlockSize
	}
	s.pins++
	look.Release = func() {
		s.mu.Lock()
		s.pins--
		s.mu.Unlock()
	}
	return look, nil
}

func (s *testSpace) Read(slot uint32, _ int, off int64, p []byte) error {
	s.mu.Lock()
	stall, hook := s.stall, s.onRead
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
	if stall != nil {
		<-stall
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	s.bytes += int64(len(p))
	if s.dead {
		return errMedia
	}
	var err error
	first := int64(slot)*s.zone + off/extent.BlockSize
	for i := range int64(len(p)) / extent.BlockSize {
		b := &s.blocks[first+i]
		if s.touched != nil {
			s.touched[first+i] = true
		}
		data := content(first + i)
		switch {
		case b.unreadable:
			err = errMedia
		case b.flaky > 0:
			b.flaky--
			data[9] ^= 1
		case b.bad:
			data[7] ^= 1
		}
		copy(p[i*extent.BlockSize:], data)
	}
	return err
}

func (s *testSpace) Header(slot uint32, _ int, p []byte) bool {
	return csum.Sum(p) == csum.Sum(content(int64(slot)*s.zone))
}

func (s *testSpace) JudgeHeader(slot uint32, _ int, _ []byte, err error) (Finding, Verdict) {
	return Finding{Super: true, Object: "header", Address: uint64(int64(slot) * s.zone * extent.BlockSize), Unreadable: err != nil, Outcome: Uncorrectable}, Bad
}

func (s *testSpace) Judge(at int64, _ int, _, _ uint32, err error) (Finding, Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.blocks[at/extent.BlockSize]; !b.live || b.later {
		return Finding{}, Moved
	}
	if s.known[at] {
		return Finding{}, Known
	}
	return Finding{File: "f", Address: uint64(at), Unreadable: err != nil, Outcome: Uncorrectable}, Bad
}

func (s *testSpace) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return errMedia
	}
	return nil
}

func (s *testSpace) Met() []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.met
	s.met = nil
	return m
}

func (s *testSpace) Others() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.others
}

func (s *testSpace) Record(_ context.Context, b Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failSave != nil {
		return s.failSave
	}
	s.saved = append(s.saved, b)
	return nil
}

// plan is that of a scrub that begins now.
func (s *testSpace) plan() Plan {
	p := Plan{Labels: true, Metadata: true, MetadataTotal: int64(s.records) * 12, To: int64(len(s.blocks)) * extent.BlockSize}
	p.Span = s.zone * extent.BlockSize
	p.Marks = make([]int64, max(1, (int64(len(s.blocks))+s.zone-1)/s.zone))
	for i, b := range s.blocks {
		if b.live && !b.later {
			p.Marks[int64(i)/s.zone] += extent.BlockSize
		}
	}
	return p
}

func (s *testSpace) options(rate int64) Options {
	return Options{
		Group: MinGroup, ZoneSize: s.zone * extent.BlockSize, Now: time.Now, After: time.After,
		Limit: NewLimiter(rate, time.Now, time.After), Go: func(f func()) { go f() },
	}
}

// Mend puts right what Judge said could be.
func (s *testSpace) Mend(ctx context.Context, fs []Finding) error {
	s.mu.Lock()
	hook := s.onMend
	s.mu.Unlock()
	if hook != nil {
		hook(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range fs {
		if fs[i].Mend {
			s.blocks[fs[i].Address/extent.BlockSize].bad = false
			fs[i].Outcome = Repaired
		}
	}
	return ctx.Err()
}
