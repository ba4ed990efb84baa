package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/compress"
	"github.com/shingle-store/shingle/internal/delalloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// Engine is an open store. Its methods may be called from any goroutine.
type Engine struct {
	o     Options
	dev   zone.Device
	geo   zone.Geometry
	st    *store.Store
	group *store.Group
	al    *alloc.Allocator
	arena *slab.Arena
	comp  *compress.Compressor
	pool  *compress.Pool
	// mode is of the dirty indexes, pendingMode of the indexes of what is on its way.
	mode, pendingMode *delalloc.Mode

	uuid      [16]byte
	boot      uint64
	starts    uint64 // start counter of this run
	started   time.Time
	codec     extent.Codec // the store's default
	maxExtent int64        // bytes
	frameSize int64        // bytes
	zones     []int        // slot -> zone

	files    fileTable
	sessions sessions
	epochs   *epochs
	readSem  chan struct{}
	placeSem *semaphore.Weighted
	// The turns are tokens like a file's write: channels, for they are held over device I/O and waits.
	memTurn, openTurn, retireTurn chan struct{}
	reads                         *readMemory

	reserveMu sync.Mutex

	ready struct {
		sync.Mutex
		files map[*file]struct{} // have something to publish
	}
	records struct {
		sync.Mutex
		m map[uint32]bgRecord
	}
	freed   freedRuns
	trimmed trimmed
	trims   trims
	scrubs  scrubs
	ids     struct {
		sync.Mutex
		next uint64
	}

	generation atomic.Int64 // low part
	reserved   atomic.Int64 // bytes that writes hold reserved
	stuck      atomic.Int64 // of them, bytes that cannot be made durable
	waiting    atomic.Int64 // bytes placed by nodelalloc and not committed
	inlining   atomic.Int64 // ranges to be stored inline and not committed
	memWaiters atomic.Int64
	ticks      atomic.Int64 // waits so far that are kept apart
	orphans    atomic.Int64 // deleted files not freed yet
	resetting  atomic.Int64
	doubt      doubt
	rc         reclaimer
	closing    atomic.Bool // a block group waits to be finished
	draining   atomic.Bool
	failure    atomic.Pointer[error]

	publishMax   int // most ranges a commit publishes, 0: any number; of the group commit's goroutine
	publishLeast int // 0, or below it nothing gets on: ranges that only go together

	flushKick, pressure, orphanKick, resetKick, vacateKick kick

	count counters
	cond  conditions

	broken chan struct{} // closed by failWrites
	stop   chan struct{} // ends background work
	halt   chan struct{} // ends waits for places, after background work
	wg     sync.WaitGroup
	ranges sync.WaitGroup
	redone sync.WaitGroup // ranges that the group commit's goroutine has placed again
	once   sync.Once
}

// Open opens a formatted store, mends what a crash left (see recover.go) and starts the
// background work; Close ends it. The device belongs to the engine, also after an error.
//
// Errors are sentences that say which part is wrong and what to do: DEVICE_MISMATCH for a
// foreign, wrong or stale device or metadata file, Corruption, IN_USE, UNKNOWN_FEATURE.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if o.Device == nil && len(o.Devices) > 0 { // PLACEHOLDER, see Options.Devices
		o.Device = o.Devices[0].Device
		for _, d := range o.Devices[1:] {
			d.Close()
		}
	}
	if err := o.Validate(); err != nil {
		if o.Device != nil {
			o.Device.Close()
		}
		return nil, err
	}
	g := o.Device.Geometry()
	o.setDefaults(g)
	e := &Engine{o: o, dev: o.Device, geo: g, started: o.Now(), epochs: newEpochs()}
	if err := e.open(ctx); err != nil {
		if e.st != nil {
			e.st.Close()
		}
		if e.arena != nil {
			e.arena.Close()
		}
		e.dev.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context) error {
	var boot [8]byte
	if _, err := io.ReadFull(e.o.Random, boot[:]); err != nil {
		return errdefs.Wrap(errdefs.Internal, "", "engine.Open", "boot id", err)
	}
	e.boot = binary.LittleEndian.Uint64(boot[:]) | 1 // never 0, which stands for none
	e.files.byID = map[uint64]*file{}
	e.sessions.byID = map[string]*Writer{}
	e.ready.files = map[*file]struct{}{}
	e.records.m = map[uint32]bgRecord{}
	e.cond.m = map[string]Condition{}
	e.readSem = make(chan struct{}, maxReads)
	e.reads = newReadMemory(e.o.ReadLimit)
	e.placeSem = semaphore.NewWeighted(placeBytes)
	e.memTurn, e.openTurn, e.retireTurn = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	e.flushKick, e.pressure, e.orphanKick, e.resetKick, e.vacateKick = newKick(), newKick(), newKick(), newKick(), newKick()
	e.trims.turn = make(chan struct{}, 1)
	e.stop, e.halt, e.broken = make(chan struct{}), make(chan struct{}), make(chan struct{})
	capacity := e.geo.ZoneCapacity
	e.maxExtent = extent.MaxExtentSize(e.geo.AppendLimit, capacity-alloc.HeaderSize)
	e.frameSize = extent.FrameSize(e.maxExtent)
	e.mode, e.pendingMode = delalloc.NewMode(e.o.collect), delalloc.NewMode(0)
	if e.o.NoDelalloc {
		if err := e.mode.Disable(); err != nil {
			return err
		}
	}
	var err error
	e.st, err = store.Open(e.o.MetadataPath, store.Options{MaxBytes: e.o.MetadataLimit, NoSync: e.o.MetadataNoSync, Around: e.o.AroundCommit, Freed: e.noteFreed})
	if err != nil {
		return err
	}
	e.newReclaimer()
	if err := e.recover(ctx); err != nil {
		return err
	}
	if err := e.openScrubs(); err != nil {
		return err
	}
	e.arena = slab.New(e.o.DirtyLimit)
	e.comp = compress.New()
	e.pool = compress.NewPool(e.o.Workers)
	e.group = store.NewGroup(e.st, store.GroupOptions{Before: e.o.before(e.beforeCommit)})
	for _, run := range []func(){e.flusher, e.resetter, e.vacater, e.orphanWorker, e.reclaimRun} {
		e.wg.Go(run)
	}
	e.orphanKick.set()
	e.resetKick.set()
	e.rc.kick.set()
	return nil
}

// maxReads bounds the reads of the device under way for clients, each with 1.25 MiB of scratch
// memory at most besides the window that it fills (Options.ReadLimit).
const maxReads = 32

// spawn runs f in a goroutine that Close waits for.
func (e *Engine) spawn(f func()) { e.ranges.Go(f) }

// Draining makes new writes answer Unavailable / DRAINING. Syncs and reads go on.
func (e *Engine) Draining() { e.draining.Store(true) }

// Close makes everything received durable, stops the background work and closes store and device.
// Nobody may be inside another method. If ctx ends first, or the final sync fails, the rest is done
// without it: what is still in memory is lost. The error is that of the final sync or of closing.
func (e *Engine) Close(ctx context.Context) error {
	var err error
	e.once.Do(func() {
		e.Draining()
		_, err = e.Sync(ctx, nil, nil)
		close(e.stop)
		e.scrubs.turn <- struct{}{} // for good: a scrub that is being begun begins before the wait
		e.wg.Wait()
		if err != nil {
			close(e.halt) // what could not be synced must not be waited for
		}
		e.ranges.Wait()
		if err == nil {
			close(e.halt)
		}
		if gerr := e.group.Close(); err == nil {
			err = gerr
		}
		e.redone.Wait() // a flush that failed in the group's last batch has them placed again
		e.ranges.Wait()
		e.pool.Close()
		if err == nil && e.failed() == nil {
			err = e.st.UpdateFreeing(func(tx *store.Tx) error {
				tx.SetSuperblock(func(s *store.Superblock) { s.Clean = true })
				return e.putRecords(tx, e.takeRecords())
			})
		}
		if cerr := e.st.Close(); err == nil {
			err = cerr
		}
		if ferr := e.dev.Flush(); err == nil {
			err = ferr
		}
		if derr := e.dev.Close(); err == nil {
			err = derr
		}
		e.dropMemory()
		e.arena.Close()
	})
	return err
}

// dropMemory lets go of what could not be made durable.
func (e *Engine) dropMemory() {
	for _, f := range e.files.byID {
		for _, o := range append(f.mu.queue, f.mu.failed...) {
			o.rng.Release()
		}
		f.dirty.Drop(0, extent.MaxFileSize)
		f.pending.Drop(0, extent.MaxFileSize)
	}
}

// writable returns why the store takes no changes, or nil.
func (e *Engine) writable(op string) error { return e.takesChanges(op, e.stop) }

// takesChanges returns why nothing can be changed, or nil; ended is closed when the engine is.
func (e *Engine) takesChanges(op string, ended <-chan struct{}) error {
	if err := e.failed(); err != nil {
		return errdefs.Wrap(errdefs.ReadOnly, errdefs.ReasonReadOnly, op, "", err)
	}
	select {
	case <-ended:
		return errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, op, "", "the engine is closed")
	default:
		return nil
	}
}

func (e *Engine) failed() error {
	if p := e.failure.Load(); p != nil {
		return *p
	}
	if e.st.ReadOnly() {
		return errdefs.New(errdefs.ReadOnly, errdefs.ReasonReadOnly, "store", "", "the metadata takes no changes")
	}
	return nil
}

// failWrites stops writing until the store is opened again; reading goes on.
func (e *Engine) failWrites(err error) {
	if e.failure.CompareAndSwap(nil, &err) {
		e.o.Logger.Error("metadata commit failed; the store is read-only until it is opened again", "error", err)
		e.cond.set(Condition{
			Reason: "READ_ONLY", Severity: Error, Object: "store", Since: e.o.Now(),
			Message: fmt.Sprintf("a metadata commit failed: %v", err),
			Advice:  "see to the disk that holds the metadata, then restart the engine",
		})
		close(e.broken)
	}
}

// flushCommits waits for a commit that begins after the call.
func (e *Engine) flushCommits() error { return e.group.Flush(context.Background()) }

// memoryReturned lets waiters for memory or space look again.
func (e *Engine) memoryReturned() {
	if e.memWaiters.Load() > 0 {
		e.pressure.set()
	}
}

// nextGeneration returns a file generation that was never given out: the start counter in the
// high bits, so not even a crash makes one repeat.
func (e *Engine) nextGeneration() int64 {
	return int64(e.starts)<<40 | (e.generation.Add(1) & (1<<40 - 1))
}

// idLease is how many node ids a commit sets aside at a time.
const idLease = 1 << 20

// newID returns a node id. Ids come from a lease on record, so a crash cannot repeat one; the lease is
// renewed by every commit that finds it half used (extendIDs).
func (e *Engine) newID() uint64 {
	e.ids.Lock()
	defer e.ids.Unlock()
	id := e.ids.next
	e.ids.next++
	return id
}

// extendIDs renews the lease in the transaction when half of it is gone.
func (e *Engine) extendIDs(tx *store.Tx) error {
	e.ids.Lock()
	defer e.ids.Unlock()
	// What counts is the lease on record: an extension may have come to nothing with its transaction.
	if limit := tx.Superblock().NodeIDLimit; limit-min(limit, e.ids.next) > idLease/2 {
		return nil
	}
	limit := e.ids.next + idLease
	tx.SetSuperblock(func(s *store.Superblock) { s.NodeIDLimit = limit })
	return nil
}

// zoneOf returns the zone under a slot.
func (e *Engine) zoneOf(slot uint32) int { return e.zones[slot] }

// addr returns the logical address of an offset in a slot's zone.
func (e *Engine) addr(slot uint32, off int64) extent.Addr {
	return extent.Addr(int64(slot)*e.geo.ZoneSize + off)
}

// split is the inverse of addr.
func (e *Engine) split(a extent.Addr) (slot uint32, off int64) {
	return uint32(int64(a) / e.geo.ZoneSize), int64(a) % e.geo.ZoneSize
}

// header returns the encoded zone header of a block group that is being opened.
func (e *Engine) header(bg alloc.BlockGroup) []byte {
	return label.EncodeHeader(label.Header{
		Store: e.uuid, Slot: bg.Slot, Generation: bg.Generation, Zone: bg.Zone, Class: uint8(bg.Class),
	})
}

// scratchBuffer is aligned memory of at most a window for reads that cannot go where they belong.
type scratchBuffer struct{ b []byte }

// scratchBuffers keeps *scratchBuffers for the next read, of any engine of the process.
var scratchBuffers sync.Pool

func scratch(n int64) *scratchBuffer {
	if s, ok := scratchBuffers.Get().(*scratchBuffer); ok && int64(len(s.b)) >= n {
		return s
	}
	return &scratchBuffer{b: slab.Aligned(max(n, readWindow+2*extent.MaxFrameSize))}
}

func (s *scratchBuffer) done() { scratchBuffers.Put(s) }
