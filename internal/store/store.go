package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

const (
	// DefaultMaxBytes bounds the metadata file when Options do not: about 3 million extents.
	DefaultMaxBytes = 1 << 30
	// MinMaxBytes is the smallest bound accepted: below it the reserved share holds no
	// useful transaction.
	MinMaxBytes = 1 << 20
	// FreelistSyncPages is the most free pages with which commits write the free list. Each
	// costs about 25 ns a commit (0.5 -> 2.4 ms at 86,000), so this bound is worth half a
	// millisecond; above it an open after a crash scans the pages instead.
	FreelistSyncPages = 20_000

	pageSize = 4096
	// freeingShare: 1/16 of the bound is kept for transactions that free.
	freeingShare = 16
)

// Options say how to open a store. The zero value is good for use.
type Options struct {
	// MaxBytes bounds the file; 0 means DefaultMaxBytes. The space is preallocated where the
	// file system can (without changing the file's length).
	MaxBytes int64
	// Freed, unless nil, is told after each commit which blocks of conventional block groups it
	// freed: they were part of an extent before it or during it, and are of none now. It runs in
	// the goroutine of the Update, before that returns, and must not use the store.
	Freed func([]Run)
	// NoSync leaves out syncing and preallocating: for tests only, a crash loses the store.
	NoSync bool
	// Around, unless nil, stands around every transaction that writes: it runs commit, once, and
	// answers for it, or answers an error and does not. It is called with no lock held and may
	// wait. For simulators: default none.
	Around func(commit func() error) error
}

// check fills in the default and rounds the bound down to whole pages.
func (o *Options) check(op string) error {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxBytes < MinMaxBytes {
		return errdefs.Invalid(op, "max_bytes", fmt.Sprintf("must be at least %d", MinMaxBytes))
	}
	o.MaxBytes = o.MaxBytes / pageSize * pageSize
	return nil
}

// Init is what a new store starts with.
type Init struct {
	// Superblock: ZoneSize and StoreUUID must be set. FormatVersion, CommitSequence,
	// Totals and a NodeIDLimit below 2 are filled in.
	Superblock  Superblock
	Devices     []Device
	BlockGroups []BlockGroup
}

// Stats are figures of the metadata file.
type Stats struct {
	FileBytes int64  // up to the highest page ever used
	UsedBytes int64  // in pages in use
	FreePages int64  // pages of 4 KiB inside FileBytes that are free, or will be once readers end
	MaxBytes  int64  // the bound
	SetAside  int64  // of the bound, what the disk is known to have room for
	Commits   uint64 // since the store was opened
}

// Store is an open metadata file. All methods may be called from several goroutines.
type Store struct {
	db       *bbolt.DB
	file     *os.File // bbolt's own; for growing and locking
	maxBytes int64
	noSync   bool
	around   func(commit func() error) error
	freed    func([]Run) // Options.Freed
	readOnly bool        // an unknown read-only-compatible feature
	// freelistSync is FreelistSyncPages; tests lower it.
	freelistSync int

	commits  atomic.Uint64
	sequence atomic.Uint64 // of the last commit of this run
	size     atomic.Int64  // FileBytes
	failure  atomic.Pointer[error]
	// wedged is set when bbolt panicked with locks that cannot be given back: no more
	// transactions can begin.
	wedged atomic.Bool
	aside  aside

	writer  sync.Mutex // held by the one Update, and by Close
	fileLen int64
	closed  bool
}

// Create makes a new metadata file at path with the root directory (node 1) in it. The file
// appears under its name complete and durable, or not at all. AlreadyExists if path exists;
// InvalidArgument for a bad Init.
func Create(path string, init Init, o Options) (err error) {
	const op = "store.Create"
	if err := init.complete(); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return errdefs.New(errdefs.AlreadyExists, "", op, path, "the metadata file exists already")
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errdefs.Wrap(errdefs.Internal, "", op, tmp, err)
	}
	if err := o.check(op); err != nil {
		return err
	}
	if err := writeNew(tmp, init, o); err != nil {
		os.Remove(tmp)
		if errdefs.Is(err, errdefs.NoSpace) {
			return err
		}
		return errdefs.Wrap(errdefs.Internal, "", op, path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		os.Remove(tmp)
		return errdefs.Wrap(errdefs.Internal, "", op, path, err)
	}
	if o.NoSync {
		return nil
	}
	return errdefs.Wrap(errdefs.Internal, "", op, path, syncPath(filepath.Dir(path)))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// complete checks an Init and fills in what the store decides.
func (in *Init) complete() error {
	const op = "store.Create"
	sb := &in.Superblock
	if sb.ZoneSize <= 0 || sb.ZoneSize%extent.BlockSize != 0 {
		return errdefs.Invalid(op, "zone_size", "must be a positive multiple of the block")
	}
	sb.FormatVersion = FormatVersion
	sb.NodeIDLimit = max(sb.NodeIDLimit, RootID+1)
	sb.CommitSequence, sb.Totals = 1, Totals{}
	for _, g := range in.BlockGroups {
		if g.Capacity <= 0 || g.Capacity > sb.ZoneSize {
			return errdefs.Invalid(op, "block_groups", fmt.Sprintf("block group %d: capacity is not in 1..zone size", g.Slot))
		}
	}
	return nil
}

func writeNew(path string, init Init, o Options) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: pageSize, NoSync: o.NoSync, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = db.Update(func(b *bbolt.Tx) error {
		for _, name := range bucketNames {
			if _, err := b.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		tx := newTx(b)
		tx.super = init.Superblock
		for _, d := range init.Devices {
			if err := tx.PutDevice(d); err != nil {
				return err
			}
		}
		for _, g := range init.BlockGroups {
			if err := tx.PutBlockGroup(g); err != nil {
				return err
			}
		}
		now := init.Superblock.Created
		root := Node{ID: RootID, Kind: Directory, Created: now, Updated: now, Generation: init.Superblock.StartCounter << 40}
		if err := tx.PutNode(root); err != nil {
			return err
		}
		return tx.finish()
	})
	err = errors.Join(err, db.Close())
	if err != nil || o.NoSync {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err = preallocate(f, o.MaxBytes); isFull(err) {
		err = errdefs.New(errdefs.NoSpace, errdefs.ReasonMetadataSpace, "store.Create", path,
			fmt.Sprintf("the disk has no room for the %d bytes set aside for metadata", o.MaxBytes))
	} else {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Open opens the metadata file at path. Errors: NotFound; Corruption if the file is cut
// short, is no metadata file, or its page tree or superblock is damaged;
// Precondition/UNKNOWN_FEATURE if it needs a newer engine; Unavailable/IN_USE if another
// process has it. Unknown read-only-compatible features open it for reading only.
//
// After an orderly Close it reads the branch pages of the tree, about a hundredth of the
// file; after a crash with more than FreelistSyncPages free pages it reads every page.
func Open(path string, o Options) (s *Store, err error) {
	if err := o.check("store.Open"); err != nil {
		return nil, err
	}
	s = &Store{maxBytes: o.MaxBytes, noSync: o.NoSync, freed: o.Freed, around: o.Around, freelistSync: FreelistSyncPages}
	if err := s.openDB(path); err != nil {
		s.release()
		return nil, err
	}
	err = s.View(func(tx *Tx) error {
		s.size.Store(tx.b.Size())
		s.readOnly, err = tx.super.features()
		return err
	})
	if err == nil {
		err = s.prepareFile()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// openDB locks and checks the file, then lets bbolt map it.
func (s *Store) openDB(path string) (err error) {
	// Not s.file below: bbolt's handle keeps the function, and the runtime keeps the handle, for its
	// pool of pages, over two collections; with s that would be all of a closed engine.
	var file *os.File
	defer func() { s.file = file }()
	defer guard("store.Open", path, &err)
	defer panicOnFault()()
	s.db, err = bbolt.Open(path, 0o600, &bbolt.Options{
		PageSize:     pageSize,
		NoSync:       s.noSync,
		FreelistType: bbolt.FreelistMapType,
		// Without this bbolt would commit at open to write the free list.
		NoFreelistSync: true,
		// The whole bound is mapped at once: mapping again later would wait for readers.
		InitialMmapSize: int(s.maxBytes),
		OpenFile: func(path string, _ int, _ os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return nil, openFailed(path, err)
			}
			if err = lock(f); err == nil {
				err = checkPages(f)
			}
			if err != nil {
				f.Close()
				return nil, err
			}
			file = f
			return f, nil
		},
	})
	var classified *errdefs.Error
	if err != nil && !errors.As(err, &classified) {
		err = errdefs.Wrap(errdefs.Corruption, errdefs.ReasonCorruption, "store.Open", path, err)
	}
	return err
}

func openFailed(path string, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return errdefs.Wrap(errdefs.NotFound, "", "store.Open", path, err)
	}
	return errdefs.Wrap(errdefs.Unavailable, "", "store.Open", path, err)
}

func (s *Store) prepareFile() error {
	fi, err := s.file.Stat()
	if err != nil {
		return errdefs.Wrap(errdefs.Internal, "", "store.Open", s.file.Name(), err)
	}
	s.fileLen = fi.Size()
	// Growth by bbolt itself is exact; growFile goes ahead of it in steps.
	s.db.AllocSize = 0
	s.aside.known.Store(s.maxBytes)
	if !s.noSync && !s.readOnly {
		s.setAside(fi)
	}
	return nil
}

// ReadOnly reports whether Updates are refused: because of an unknown feature, or since a
// commit failed.
func (s *Store) ReadOnly() bool { return s.readOnly || s.failure.Load() != nil }

// Stats returns the figures of the file.
func (s *Store) Stats() Stats {
	st := s.db.Stats()
	free := int64(st.FreePageN + st.PendingPageN)
	size := s.size.Load()
	return Stats{
		FileBytes: size, UsedBytes: size - free*pageSize, FreePages: free,
		MaxBytes: s.maxBytes, SetAside: s.aside.known.Load(), Commits: s.commits.Load(),
	}
}

// Close waits for transactions to end, writes the free list if running commits left it out,
// and gives the file back. Closing twice is no error.
func (s *Store) Close() (err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.wedged.Load() {
		s.release()
		return nil
	}
	defer guard("store.Close", s.file.Name(), &err)
	defer panicOnFault()()
	if s.db.NoFreelistSync && s.commits.Load() > 0 && !s.ReadOnly() {
		err = s.syncFreelist()
	}
	if s.noSync {
		return errors.Join(err, s.db.Close())
	}
	return errors.Join(err, errdefs.Wrap(errdefs.Internal, "", "store.Close", s.file.Name(), s.file.Sync()), s.db.Close())
}

// release gives up the lock and the descriptor of a file whose bbolt handle cannot be closed.
// The lock is dropped by name: the mapping, which is lost, would keep it.
func (s *Store) release() {
	if s.file != nil {
		unix.Flock(int(s.file.Fd()), unix.LOCK_UN)
		s.file.Close()
	}
}
