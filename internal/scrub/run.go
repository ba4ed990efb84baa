package scrub

import (
	"context"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
)

// Options say how a scrub works. All fields but Memory and Group must be set.
type Options struct {
	// ZoneSize is how many addresses a slot has.
	ZoneSize int64
	// Memory bounds what reads are under way into, in bytes. Default 32 MiB; at least 1 MiB.
	Memory int64
	// Group bounds what is read and not recorded, in bytes. Default 256 MiB; at least 1 MiB.
	Group int64
	// Limit bounds what is read a second.
	Limit *Limiter
	// Now is the clock, After waits.
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
	// Go runs a function in a goroutine that somebody waits for.
	Go func(func())
}

// The defaults and bounds of Options.
const (
	DefaultMemory = 32 << 20
	DefaultGroup  = 256 << 20
	MinMemory     = readMost
	MinGroup      = 1 << 20
)

const (
	// stepMost bounds what one look finds, in bytes.
	stepMost = 8 << 20
	// recordEvery is how long something may be read and not recorded. A record costs the disk of the
	// metadata two flushes, which on a disk that has the data too hold up the reads, some milliseconds each.
	recordEvery = 500 * time.Millisecond
	// grace is how long reads under way are waited for when a scrub is told to stop. What has not ended
	// then is left to its goroutine, and read again by a resume.
	grace = 250 * time.Millisecond
	// depth is how many reads are under way, each into readMost bytes, and how many goroutines verify: so
	// many, or the number of processors if that is more; never more than Memory has room for.
	depth = 8
	// mostSteps bounds the looks that are being read.
	mostSteps = 64
)

// job is one run of a scrub.
type job struct {
	ctx   context.Context // of Run
	space Space
	plan  Plan
	o     Options
	wg    sync.WaitGroup // its goroutines

	// Of the goroutine of Run:
	at       Progress
	findings []Finding // not recorded
	unsaved  int64     // bytes read and not recorded
	saved    Progress  // as recorded last
	savedAt  time.Time
}

// Run goes on with a scrub from at until it is over, ctx ends, or something fails. What it answers is
// not recorded yet: its last progress, and findings. drained is closed when its goroutines have ended:
// reads of the device that do not return keep them, and their buffers.
//
// Errors: ctx's; of the device, when it does not read at all; those of Space.
func Run(ctx context.Context, space Space, plan Plan, at Progress, o Options) (last Batch, drained <-chan struct{}, err error) {
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	if o.Group == 0 {
		o.Group = DefaultGroup
	}
	j := &job{ctx: ctx, space: space, plan: plan, o: o, at: at, saved: at, savedAt: o.Now()}
	err = j.run(ctx)
	j.takeMet()
	over := make(chan struct{})
	o.Go(func() { j.wg.Wait(); close(over) })
	return Batch{j.at, j.findings}, over, err
}

func (j *job) spawn(f func()) {
	j.wg.Add(1)
	j.o.Go(func() { defer j.wg.Done(); f() })
}

func (j *job) run(ctx context.Context) error {
	if j.at.Phase == Labels {
		if err := j.labels(ctx); err != nil {
			return err
		}
	}
	if j.at.Phase == Metadata {
		if err := j.metadata(ctx); err != nil {
			return err
		}
	}
	if j.at.Phase == Data {
		return j.data(ctx)
	}
	return nil
}

func (j *job) labels(ctx context.Context) error {
	if j.plan.Labels {
		var bad []Finding
		reads, done := 0, make(chan struct{})
		j.spawn(func() { defer close(done); bad, reads = j.space.Labels() })
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err() // it takes milliseconds, or for ever
		}
		for i := range bad {
			if !bad[i].Unreadable {
				continue
			}
			if err := j.alive(ctx); err != nil {
				return err
			}
			break
		}
		j.found(bad)
		j.at.Counters.ReadOperations += uint64(reads)
		j.at.Counters.BytesRead += uint64(reads) * extent.BlockSize
	}
	j.at.Phase = Metadata
	return nil
}

// alive is Space.Alive, which reads, and may be left behind.
func (j *job) alive(ctx context.Context) error {
	answer := make(chan error, 1)
	j.spawn(func() { answer <- j.space.Alive() })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *job) found(fs []Finding) {
	for i := range fs {
		j.at.Counters.count(&fs[i])
	}
	j.findings = append(j.findings, fs...)
}

// takeMet takes over what others have met.
func (j *job) takeMet() { j.found(j.space.Met()) }

func (j *job) metadata(ctx context.Context) error {
	p := pacer{j: j, last: j.space.Others()}
	for j.plan.Metadata {
		began := j.o.Now()
		s, err := j.space.Scan(j.at.Bucket, j.at.Key)
		if err != nil {
			return err
		}
		j.at.Counters.TreeExtentsScrubbed += s.Records
		j.at.Counters.TreeBytesScrubbed += s.Bytes
		j.plan.records(&j.at, int64(s.Bytes))
		j.unsaved += int64(s.Bytes)
		j.found(s.Damaged)
		j.at.Bucket, j.at.Key = s.Bucket, s.Key
		if s.Bucket == "" {
			break
		}
		if j.due() {
			if err := j.record(ctx); err != nil {
				return err
			}
		}
		if err := p.rest(ctx, j.o.Now().Sub(began)); err != nil {
			return err
		}
	}
	j.plan.endMetadata(&j.at)
	return ctx.Err()
}

// due reports whether what was read is to be recorded now: with half of the group, so that the other half
// can be read meanwhile.
func (j *job) due() bool {
	return j.unsaved >= j.o.Group/2-slack || j.o.Now().Sub(j.savedAt) >= recordEvery
}

func (j *job) record(ctx context.Context) error {
	j.takeMet()
	if err := j.space.Record(ctx, Batch{j.at, j.findings}); err != nil {
		return err
	}
	j.saved, j.findings, j.unsaved, j.savedAt = j.at, nil, 0, j.o.Now()
	return nil
}

// pacer makes a scrub give way to clients.
type pacer struct {
	j    *job
	last uint64
}

// busy reports whether clients have used the store since the last call.
func (p *pacer) busy() bool {
	now := p.j.space.Others()
	was := p.last
	p.last = now
	return now != was
}

// rest sleeps after work of so long if clients use the store.
func (p *pacer) rest(ctx context.Context, worked time.Duration) error {
	if !p.busy() {
		return ctx.Err()
	}
	return p.sleep(ctx, worked)
}

func (p *pacer) sleep(ctx context.Context, worked time.Duration) error {
	if worked <= 0 {
		return ctx.Err()
	}
	select {
	case <-p.j.o.After(min(3*worked, time.Second)):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
