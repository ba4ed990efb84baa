package store

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// View runs fn in a read transaction: a consistent snapshot that no Update changes. fn must
// be short: pages freed meanwhile cannot be used again. Errors are fn's, or Unavailable
// after Close, or Corruption.
func (s *Store) View(fn func(*Tx) error) error {
	defer panicOnFault()()
	b, err := s.begin(false)
	if err != nil {
		return err
	}
	defer s.rollback(b)
	tx, err := load(b)
	if err != nil {
		return err
	}
	return fn(tx)
}

// Update runs fn in the one write transaction and commits it: on nil everything fn did is
// durable, in one commit with a commit sequence one higher; on an error nothing is. Errors
// are fn's; NoSpace/METADATA_SPACE when the file would pass its bound or the disk is full; ReadOnly when the
// store takes no changes; Corruption; and, for a commit that failed, ReadOnly, after which
// every later Update is refused until the store is opened again (whether the failed commit
// is on the disk is not known before that, and readers may see it).
func (s *Store) Update(fn func(*Tx) error) error { return s.update(false, fn) }

// UpdateFreeing is Update for transactions that give space back. It may use the share of
// the bound (1/16) that Update leaves alone, so that deletes work on a full store.
func (s *Store) UpdateFreeing(fn func(*Tx) error) error { return s.update(true, fn) }

func (s *Store) update(freeing bool, fn func(*Tx) error) error {
	var freed []Run
	write := func() (err error) {
		freed, err = s.write(freeing, fn)
		return err
	}
	var err error
	if s.around == nil {
		err = write()
	} else {
		err = s.around(write)
	}
	if err == nil {
		s.reportFreed(freed) // not before whoever stands around the commit has said that it stands
	}
	return err
}

// write runs fn in a transaction and commits it; freed is for reportFreed.
func (s *Store) write(freeing bool, fn func(*Tx) error) (freed []Run, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if err := s.writable(); err != nil {
		return nil, err
	}
	if err := s.room(freeing); err != nil {
		return nil, err
	}
	defer panicOnFault()()
	b, err := s.begin(true)
	if err != nil {
		return nil, err
	}
	committing := false
	defer func() { // also when fn panics
		if !committing {
			s.rollback(b)
		}
	}()
	tx, err := load(b)
	if err != nil {
		return nil, err
	}
	tx.super.CommitSequence++
	if err := fn(tx); err != nil {
		return nil, err
	}
	if err := tx.finish(); err != nil {
		return nil, err
	}
	committing = true
	if err := s.commit(b); err != nil {
		return nil, err
	}
	s.sequence.Store(tx.super.CommitSequence)
	return tx.freed, nil
}

func (s *Store) writable() error {
	const op = "store.Update"
	switch {
	case s.closed:
		return errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, op, "metadata", "the store is closed")
	case s.readOnly:
		return errdefs.New(errdefs.ReadOnly, errdefs.ReasonReadOnly, op, "metadata", "the store uses features that this engine can only read")
	}
	if f := s.failure.Load(); f != nil {
		return errdefs.Wrap(errdefs.ReadOnly, errdefs.ReasonReadOnly, op, "metadata",
			fmt.Errorf("an earlier commit failed, open the store again: %w", *f))
	}
	return nil
}

// fail makes the store refuse Updates and returns err as the failed commit's own answer.
func (s *Store) fail(err error) error {
	s.failure.CompareAndSwap(nil, &err)
	return errdefs.Wrap(errdefs.ReadOnly, errdefs.ReasonReadOnly, "store.Update", "commit", err)
}

// room refuses a transaction when the pages left are not enough for its kind, and tells
// bbolt how far the file may grow.
func (s *Store) room(freeing bool) error {
	st := s.Stats()
	limit, reserve := s.maxBytes, s.maxBytes/freeingShare
	if freeing {
		reserve = 0
	} else {
		s.Room(min(2*reserve, s.maxBytes-st.UsedBytes)) // how much the transaction takes is not known yet
		limit = s.aside.known.Load()
	}
	if limit-st.UsedBytes <= reserve {
		return s.noRoom(nil)
	}
	// Free pages inside the file count towards the reserve, so only the rest of it bounds
	// the growth.
	s.db.MaxSize = int(limit - max(0, reserve-st.FreePages*pageSize))
	return nil
}

// noRoom is the refusal when the bound is reached, or the disk is full: cause is then what the
// system said, if it said so to a commit.
func (s *Store) noRoom(cause error) error {
	st := s.Stats()
	e := &errdefs.Error{
		Kind: errdefs.NoSpace, Reason: errdefs.ReasonMetadataSpace, Op: "store.Update", Object: "metadata",
		Msg: "the metadata file has reached its bound",
		Meta: map[string]string{
			"used": strconv.FormatInt(st.UsedBytes, 10),
			"max":  strconv.FormatInt(st.MaxBytes, 10),
		},
		Err: cause,
	}
	if cause != nil || st.SetAside < st.MaxBytes {
		e.Msg = "the disk that holds the metadata file is full"
		e.Meta["set_aside"] = strconv.FormatInt(st.SetAside, 10)
	}
	return e
}

func (s *Store) begin(write bool) (b *bbolt.Tx, err error) {
	if s.wedged.Load() {
		return nil, corrupt("store.begin", "metadata", "the metadata file was found damaged; open the store again")
	}
	// bbolt panics in Begin with locks held when both meta pages went bad under it.
	held := true
	defer func() {
		if held {
			p := recover()
			s.wedge(fmt.Errorf("bbolt: %v", p))
			err = corrupt("store.begin", "metadata", fmt.Sprint(p))
		}
	}()
	b, err = s.db.Begin(write)
	held = false
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return nil, errdefs.Wrap(errdefs.Unavailable, errdefs.ReasonDraining, "store.begin", "metadata", err)
	}
	return b, errdefs.Wrap(errdefs.Internal, "", "store.begin", "metadata", err)
}

func (s *Store) wedge(err error) {
	s.wedged.Store(true)
	s.failure.CompareAndSwap(nil, &err)
}

func (s *Store) rollback(b *bbolt.Tx) {
	ended := false
	defer func() {
		if !ended {
			s.wedge(fmt.Errorf("bbolt: rollback: %v", recover()))
		}
	}()
	b.Rollback()
	ended = true
}

// commit makes b durable. A commit that failed for lack of room leaves the store as it was.
func (s *Store) commit(b *bbolt.Tx) (err error) {
	st := s.db.Stats()
	s.db.NoFreelistSync = st.FreePageN+st.PendingPageN > s.freelistSync
	if err := s.growFile(b.Size()); err != nil {
		s.rollback(b)
		if isFull(err) {
			return s.noRoom(err)
		}
		return s.fail(err)
	}
	id := b.ID()
	err = s.commitGuarded(b)
	switch {
	case err == nil:
		s.commits.Add(1)
		s.noteSize()
		return nil
	case errors.Is(err, bolterrors.ErrMaxSizeReached):
		return s.noRoom(nil)
	case isFull(err) && s.lastID() < id:
		// No meta page speaks of it, so it is not there and cannot come to be: its pages are free.
		return s.noRoom(err)
	}
	return s.fail(err)
}

// lastID returns the number of the transaction that readers see, or the highest number if that cannot
// be told.
func (s *Store) lastID() int {
	b, err := s.begin(false)
	if err != nil {
		return math.MaxInt
	}
	defer s.rollback(b)
	return b.ID()
}

func (s *Store) commitGuarded(b *bbolt.Tx) (err error) {
	returned := false
	defer func() {
		if !returned {
			err = fmt.Errorf("bbolt: %v", recover())
			s.rollback(b)
		}
	}()
	err = b.Commit()
	returned = true
	return err
}

// noteSize remembers how far the file is in use. What goes wrong here is the next
// transaction's to report: the commit stands.
func (s *Store) noteSize() {
	if b, err := s.begin(false); err == nil {
		s.size.Store(b.Size())
		s.rollback(b)
	}
}

const (
	smallGrowth = 1 << 20
	largeGrowth = 16 << 20
)

// growFile lengthens the file when a commit may soon pass its end, so that most commits
// change no file length and their syncs stay cheap.
func (s *Store) growFile(used int64) error {
	step := int64(smallGrowth)
	if used >= largeGrowth {
		step = largeGrowth
	}
	if s.fileLen-used >= step/2 || s.fileLen >= s.maxBytes {
		return nil
	}
	n := min(s.maxBytes, (used/step+2)*step)
	if err := s.file.Truncate(n); err != nil {
		return err
	}
	if !s.noSync {
		if err := s.file.Sync(); err != nil {
			return err
		}
	}
	s.fileLen = n
	return nil
}

// syncFreelist commits nothing but the free list, so that the next open need not scan.
func (s *Store) syncFreelist() error {
	b, err := s.begin(true)
	if err != nil {
		return err
	}
	s.db.NoFreelistSync = false
	s.db.MaxSize = int(s.maxBytes)
	err = s.commitGuarded(b)
	if errors.Is(err, bolterrors.ErrMaxSizeReached) {
		return nil // the next open scans
	}
	return errdefs.Wrap(errdefs.Internal, "", "store.Close", "metadata", err)
}
