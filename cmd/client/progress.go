package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// progress counts what was moved and, if somebody is watching, says so twice a second on
// standard error.
type progress struct {
	files, bytes, directories, skipped atomic.Int64
	start                              time.Time
	total                              atomic.Int64 // what there is to move, in bytes, if measured
	measured                           atomic.Bool
	helpers                            sync.WaitGroup
	stop, stopped                      chan struct{}
}

// progress returns a running one; end it with done.
func (a *app) progress() *progress {
	p := &progress{start: time.Now()}
	f, ok := a.err.(*os.File)
	if !ok || a.quiet || !term.IsTerminal(int(f.Fd())) {
		return p
	}
	p.stop, p.stopped = make(chan struct{}), make(chan struct{})
	go p.watch(f)
	return p
}

func (p *progress) watch(w io.Writer) {
	defer close(p.stopped)
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			fmt.Fprint(w, "\r\x1b[K")
			return
		case <-t.C:
			fmt.Fprint(w, "\r\x1b[K"+p.line(time.Since(p.start)))
		}
	}
}

// rate is the mean in bytes a second.
func (p *progress) rate() int64 {
	return int64(float64(p.bytes.Load()) / max(time.Since(p.start).Seconds(), 1e-3))
}

// done wipes the line.
func (p *progress) done() {
	if p.stop != nil {
		close(p.stop)
		<-p.stopped
		p.helpers.Wait()
	}
}

// moved is what put and get answer.
type moved struct {
	Files       int64   `json:"files"`
	Directories int64   `json:"directories"`
	Bytes       int64   `json:"bytes"`
	Skipped     int64   `json:"skipped"`
	Failed      int     `json:"failed"`
	Seconds     float64 `json:"seconds"`
	DryRun      bool    `json:"dry_run,omitempty"` // then nothing was moved
}

// answer says what was moved.
func (p *progress) answer(a *app, verb string, failed int, dry bool) error {
	m := moved{
		Files: p.files.Load(), Directories: p.directories.Load(), Bytes: p.bytes.Load(), Skipped: p.skipped.Load(),
		Failed: failed, Seconds: time.Since(p.start).Seconds(), DryRun: dry,
	}
	text := fmt.Sprintf("%s %s, %s", verb, count(uint64(m.Files), "file"), size(m.Bytes))
	if !dry {
		text += fmt.Sprintf(", %s/s", size(p.rate()))
	}
	if m.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", m.Skipped)
	}
	if m.Failed > 0 {
		text += fmt.Sprintf(", %d failed", m.Failed)
	}
	return a.done(m, "%s", text)
}

// counting adds what passes through it to the progress.
type counting struct {
	io.Reader
	p    *progress
	seen int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.p.bytes.Add(int64(n))
	c.seen += int64(n)
	return n, err
}

// forget takes back what was counted of a file that was not moved in the end.
func (c *counting) forget() { c.p.bytes.Add(-c.seen) }

// countingFile is a file that adds what is read of it for the first time to the progress. It
// must be read by one goroutine, from the start.
type countingFile struct {
	*os.File
	p    *progress
	seen int64
}

func (c *countingFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.File.ReadAt(b, off)
	if end := off + int64(n); end > c.seen {
		c.p.bytes.Add(end - c.seen)
		c.seen = end
	}
	return n, err
}

// forget takes back what was counted of a file that was not moved in the end.
func (c *countingFile) forget() { c.p.bytes.Add(-c.seen) }
