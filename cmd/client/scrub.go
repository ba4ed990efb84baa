package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

const (
	scrubRunning  = shinglev1.ScrubState_SCRUB_STATE_RUNNING
	scrubFinished = shinglev1.ScrubState_SCRUB_STATE_FINISHED
)

// cancelGrace is how long a scrub that is interrupted from the keyboard may take to be cancelled; the
// engine promises a second.
const cancelGrace = 10 * time.Second

func (a *app) scrubCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "read all that is stored and find what is bad",
		Long: `scrub reads what is stored, and the metadata, and holds it against its checksums, in the words of
btrfs scrub. There is one at a time. It goes on in the background, at a pace that leaves clients'
reads first; what it has done is kept when the engine stops, and resume goes on there.

Exit status, as of btrfs scrub:
  0  ok
  1  error, usage too; one that was watched ended before its end
  2  resume: there is nothing to resume
  3  finished, and something could not be corrected (start -B, resume -B, watch, status)
  5  unavailable: no engine answers, or it is going down`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usagef("name a command")
		},
	}
	cmd.AddCommand(
		a.scrubStartCommand(), a.scrubStatusCommand(), a.scrubWatchCommand(), a.scrubPauseCommand(), a.scrubResumeCommand(),
		a.scrubCancelCommand(), a.scrubLimitCommand(), a.scrubFindingsCommand(),
	)
	return cmd
}

func (a *app) scrubStartCommand() *cobra.Command {
	var o client.ScrubOptions
	var limit byteValue
	var slot uint32
	var foreground, raw bool
	cmd := &cobra.Command{
		Use:   "start",
		Short: "begin a scrub",
		Long: `start begins a scrub of the store, or of a file, a block group (see zones) or a device. It goes on in
the background; with -B start waits for its end, and cancels it when it is interrupted.

A limit is bytes a second that are read from the device: whole bytes, or a number with K, M, G, T
(powers of 1024).`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			switch {
			case raw && !foreground:
				return errRawInBackground
			case f.Changed("file") && o.File == "":
				return usagef("--file: give a name")
			case f.Changed("device") && o.Device == "":
				return usagef("--device: give a number")
			case f.Changed("block-group"):
				o.BlockGroup = &slot
			}
			if o.File != "" {
				name, _ := storeName(o.File)
				o.File = name
			}
			o.Limit = limit.n
			s, err := a.c.StartScrub(cmd.Context(), o)
			switch {
			case client.IsScrubRunning(err):
				return fmt.Errorf("%s; see `client scrub status`; `client scrub cancel` ends it", a.sentence(err))
			case err != nil:
				return err
			case foreground:
				return a.scrubForeground(cmd.Context(), s.GetScrubId(), raw)
			}
			return a.scrubDone(s, "scrub started, id %s; see `client scrub status`", s.GetScrubId())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&foreground, "foreground", "B", false, "wait for the end, and say how it ended")
	f.BoolVarP(&o.ReadOnly, "read-only", "r", false, "correct nothing")
	f.BoolVarP(&raw, "raw", "R", false, "with -B: all counters instead of a summary")
	f.Var(&limit, "limit", "read at most so much a second; 0: no limit")
	f.StringVar(&o.File, "file", "", "only this file")
	f.Uint32Var(&slot, "block-group", 0, "only this block group")
	f.StringVar(&o.Device, "device", "", "only this device, by its number in device ls")
	cmd.MarkFlagsMutuallyExclusive("file", "block-group", "device")
	return cmd
}

func (a *app) scrubResumeCommand() *cobra.Command {
	var foreground, raw bool
	cmd := &cobra.Command{
		Use:   "resume [ID]",
		Short: "go on with a scrub that was paused, cancelled or interrupted",
		Long: `resume goes on with the latest scrub where it stopped; with an id only if that is the latest, for an
older one cannot be resumed. With -B it waits for its end as start -B does. Exit status 2: there is
nothing to resume.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if raw && !foreground {
				return errRawInBackground
			}
			s, err := a.c.ResumeScrub(cmd.Context(), scrubID(args))
			switch {
			case err != nil && a.nothingToResume(cmd.Context(), scrubID(args), err):
				return &statusError{exitNothingToResume, fmt.Errorf("nothing to resume: %s", a.sentence(err))}
			case err != nil:
				return err
			case foreground:
				return a.scrubForeground(cmd.Context(), s.GetScrubId(), raw)
			}
			return a.scrubDone(s, "scrub resumed, id %s; see `client scrub status`", s.GetScrubId())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&foreground, "foreground", "B", false, "wait for the end, and say how it ended")
	f.BoolVarP(&raw, "raw", "R", false, "with -B: all counters instead of a summary")
	return cmd
}

// errRawInBackground is a -R that would show nothing.
var errRawInBackground = usagef("-R is for the summary that -B waits for; `client scrub status -R` shows all counters")

// nothingToResume tells a scrub that is over, or none, from one that runs or a store that takes no changes.
func (a *app) nothingToResume(ctx context.Context, id string, err error) bool {
	if client.IsNotFound(err) {
		return true
	}
	if !client.IsPrecondition(err) || client.ReasonOf(err) == "READ_ONLY" {
		return false
	}
	s, serr := a.c.ScrubStatus(ctx, id)
	return serr == nil && s.GetState() != scrubRunning
}

func (a *app) scrubPauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause [ID]",
		Short: "stop the scrub that runs, to go on with later",
		Long: `pause stops the scrub that runs. It stays paused when the engine is started again, until resume goes on
with it or cancel ends it; until then none else begins.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.c.PauseScrub(cmd.Context(), scrubID(args))
			if err != nil {
				return err
			}
			return a.scrubDone(s, "scrub paused at %s %% of %s; `client scrub resume` goes on", scrubPercent(s), size(s.GetTotalBytes()))
		},
	}
}

func (a *app) scrubCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel [ID]",
		Short: "end a scrub before its end",
		Long:  "cancel ends the latest scrub, if it runs, is paused or was interrupted. It is incomplete; resume goes on with it.",
		Args:  usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.c.CancelScrub(cmd.Context(), scrubID(args))
			if err != nil {
				return err
			}
			return a.scrubDone(s, "scrub cancelled, incomplete, at %s %% of %s; `client scrub resume` goes on", scrubPercent(s), size(s.GetTotalBytes()))
		},
	}
}

func (a *app) scrubLimitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "limit [SIZE]",
		Short: "show or change how much the scrub may read a second",
		Long: `limit changes the most bytes that the latest scrub reads from the device in a second, at once and for
as long as it lasts: whole bytes, or a number with K, M, G, T (powers of 1024); 0 is no limit. Without
a size it says what the limit is.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			var s *client.Scrub
			if len(args) == 0 {
				s, err = a.c.ScrubStatus(cmd.Context(), "")
			} else {
				n, perr := parseBytes(args[0])
				if perr != nil {
					return usagef("%v", perr)
				}
				s, err = a.c.SetScrubLimit(cmd.Context(), n)
			}
			if err != nil {
				return err
			}
			text := "no limit"
			if n := s.GetLimitBytesPerSecond(); n > 0 {
				text = size(n) + "/s"
			}
			if len(args) == 0 { // asked for, so said with --quiet too
				return a.answer(scrubToJSON(s), func(w io.Writer) error {
					_, err := fmt.Fprintln(w, text)
					return err
				})
			}
			return a.scrubDone(s, "%s", text)
		},
	}
}

// scrubID is the argument, or "" for the latest scrub.
func scrubID(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// scrubDone answers a verb that has taken a scrub to a state.
func (a *app) scrubDone(s *client.Scrub, format string, args ...any) error {
	return a.done(scrubToJSON(s), format, args...)
}

// scrubForeground waits for the end of a scrub and says how it ended. Interrupted, it cancels the scrub.
func (a *app) scrubForeground(ctx context.Context, id string, raw bool) error {
	line := a.scrubProgress()
	s, err := a.c.WatchScrub(ctx, id, 0, line.show)
	line.wipe()
	// The engine, which knows the deadline too, may be the first to see it pass.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return a.scrubInterrupted(ctx, id, raw, a.sentence(err))
	}
	if err != nil {
		return fmt.Errorf("the scrub goes on or can be resumed, but it cannot be watched: %w", err)
	}
	return a.scrubEnded(ctx, s, raw)
}

// scrubInterrupted cancels a scrub whose end is not waited for any more, for the reason why.
func (a *app) scrubInterrupted(ctx context.Context, id string, raw bool, why string) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
	defer cancel()
	s, err := a.c.CancelScrub(late, id)
	if client.IsPrecondition(err) { // it was over before
		if s, err = a.c.ScrubStatus(late, id); err == nil {
			return a.scrubEnded(late, s, raw)
		}
	}
	if err != nil {
		return fmt.Errorf("%s, but the scrub could not be cancelled: %w", why, err)
	}
	return errors.Join(a.scrubSummary(late, s, raw),
		fmt.Errorf("%s: the scrub is cancelled; `client scrub resume` goes on with it", why))
}

// scrubEnded says how a scrub ended, and returns an error unless it ended well.
func (a *app) scrubEnded(ctx context.Context, s *client.Scrub, raw bool) error {
	if err := a.scrubSummary(ctx, s, raw); err != nil {
		return err
	}
	return scrubVerdict(s)
}

// scrubSummary shows a scrub that was waited for.
func (a *app) scrubSummary(ctx context.Context, s *client.Scrub, raw bool) error {
	if a.quiet && a.output != "json" {
		return nil
	}
	return a.scrubShow(ctx, s, raw)
}

// scrubVerdict is the error of a scrub that does not run any more; nil if it has read everything and all is
// well, or mended.
func scrubVerdict(s *client.Scrub) error {
	switch s.GetState() {
	case scrubFinished:
		if n := s.GetCounters().GetUncorrectableErrors(); n > 0 {
			return &statusError{exitUncorrectable, fmt.Errorf("%s; see `client scrub findings %s`", count(n, "uncorrectable error"), s.GetScrubId())}
		}
		return nil
	case shinglev1.ScrubState_SCRUB_STATE_FAILED:
		return fmt.Errorf("the scrub failed: %s", s.GetError())
	}
	why := ""
	if s.GetError() != "" {
		why = ": " + s.GetError()
	}
	return fmt.Errorf("the scrub is %s, incomplete%s; `client scrub resume` goes on with it", scrubState(s), why)
}
