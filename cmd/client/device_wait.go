package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/shingle-store/shingle/api/client"
)

// deviceWait is a change of the devices whose end is waited for.
type deviceWait struct {
	old   *client.Device // leaves
	added *client.Device // takes its place; nil: none does
	what  string         // "replaced" or "removed"
	begun time.Time
}

// changedJSON is what replace and remove answer.
type changedJSON struct {
	Device  *deviceJSON  `json:"device,omitempty"` // the new one
	Done    bool         `json:"done"`
	Rebuild *rebuildJSON `json:"rebuild,omitempty"`
}

func (w deviceWait) json(done bool, r *rebuildJSON) changedJSON {
	j := changedJSON{Done: done, Rebuild: r}
	if w.added != nil {
		d := deviceToJSON(w.added)
		j.Device = &d
	}
	return j
}

// deviceWait waits until the old device is no part of the store any more. What hinders the work is said, on
// standard error, when it begins to. Interrupted, it leaves the work going, and returns an error that says so.
func (a *app) deviceWait(ctx context.Context, w deviceWait) error {
	var pace rebuildPace
	var last rebuildJSON
	var moved int64
	line := a.rebuildLine()
	devices, err := a.c.WatchDevices(ctx, 0, func(_ []*client.Device, r *client.Rebuild) {
		before := last
		last = rebuildToJSON(r, pace.at(time.Now(), r))
		moved = max(moved, last.BytesDone)
		if last.Stuck != "" && last.Stuck != before.Stuck {
			line.wipe()
			a.warn("it does not get on: %s", last.Stuck)
		}
		line.show(last)
	})
	line.wipe()
	// The engine, which knows the deadline too, may be the first to see it pass.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: device %s is still being %s, and that goes on; `client device watch` follows it", a.sentence(err), w.old.GetDevice(), w.what)
	}
	if err != nil {
		return fmt.Errorf("device %s is being %s, which goes on, but it cannot be watched: %w", w.old.GetDevice(), w.what, err)
	}
	for _, d := range devices {
		if d.GetDevice() == w.old.GetDevice() {
			why := d.GetMessage()
			if why == "" {
				why = "it is " + deviceState(d)
			}
			return fmt.Errorf("device %s could not be %s: %s; see `client device ls`", d.GetDevice(), w.what, why)
		}
	}
	if w.added != nil { // it has what it was given by now
		for _, d := range devices {
			if d.GetDevice() == w.added.GetDevice() {
				w.added = d
			}
		}
	}
	return a.answer(w.json(true, &last), func(out io.Writer) error {
		if a.quiet {
			return nil
		}
		_, err := fmt.Fprintln(out, w.text(moved))
		return err
	})
}

// text says that it is done, after so many bytes, and what the engine is to be started with from now on.
func (w deviceWait) text(moved int64) string {
	text := fmt.Sprintf("device %s is %s", w.old.GetDevice(), w.what)
	if w.added != nil {
		text += fmt.Sprintf(" by device %s", w.added.GetDevice())
	}
	if moved > 0 {
		text += fmt.Sprintf(", %s moved in %s", size(moved), hours(time.Since(w.begun)))
	}
	old := "the --device of the old one"
	if w.old.GetPath() != "" {
		old = "--device " + w.old.GetPath()
	}
	if w.added != nil {
		return text + fmt.Sprintf("; start the engine with --device %s instead of %s from now on", w.added.GetPath(), old)
	}
	return text + fmt.Sprintf("; start the engine without %s from now on", old)
}

// rebuildLine is the line of progress on a terminal; w is nil where nobody watches.
type rebuildLine struct{ w io.Writer }

func (a *app) rebuildLine() *rebuildLine {
	f, ok := a.err.(*os.File)
	if !ok || a.quiet || !term.IsTerminal(int(f.Fd())) {
		return &rebuildLine{}
	}
	return &rebuildLine{f}
}

func (l *rebuildLine) show(j rebuildJSON) {
	if l.w != nil && j.Running {
		fmt.Fprint(l.w, "\r\x1b[K"+rebuildText(j))
	}
}

func (l *rebuildLine) wipe() {
	if l.w != nil {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}
