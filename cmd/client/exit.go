package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client"
)

// Exit statuses, as the help says.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitDataLoss    = 4
	exitUnavailable = 5
	exitUnhealthy   = 6
)

// Exit statuses of scrub in place of 2, 3 and 4, which are those of btrfs scrub.
const (
	exitNothingToResume = 2
	exitUncorrectable   = 3
)

// statusError is an error with an exit status of its own.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string { return e.err.Error() }

func (e *statusError) Unwrap() error { return e.err }

// usageError is a command line that makes no sense.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// usageArgs makes cobra's complaints about arguments usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%v; see `%s --help`", err, cmd.CommandPath())
		}
		return nil
	}
}

// noArguments makes cobra's complaint about arguments a usage error.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		return usagef("%q is no command; see `%s --help`", args[0], cmd.CommandPath())
	}
	return usagef("%q: %s takes no arguments; see `%s --help`", strings.Join(args, " "), cmd.CommandPath(), cmd.CommandPath())
}

// failedError says that errors which were printed already make the run fail.
type failedError struct {
	code int
	n    int
}

func (e *failedError) Error() string { return fmt.Sprintf("%d of the files failed", e.n) }

// add counts one more failure.
func (e *failedError) add(code int) {
	e.n++
	e.code = graver(e.code, code)
}

// graver returns the exit status that says more.
func graver(a, b int) int {
	rank := [...]int{exitOK: 0, exitError: 1, exitUsage: 5, exitNotFound: 2, exitDataLoss: 4, exitUnavailable: 3, exitUnhealthy: 0}
	if rank[a] >= rank[b] {
		return a
	}
	return b
}

// explain prints err, of cmd, as one sentence, unless that was done, and returns the exit status.
func (a *app) explain(cmd *cobra.Command, err error) int {
	var failed *failedError
	if errors.As(err, &failed) {
		return failed.code
	}
	if err != nil {
		fmt.Fprintf(a.err, "client: %s\n", a.sentence(err))
	}
	code := exitCode(err)
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Name() == "scrub" {
			return scrubExitCode(code, err)
		}
	}
	return code
}

// scrubExitCode is the exit status of scrub for an error that elsewhere gives code: 2, 3 and 4 mean
// something else there, so scripts made for btrfs scrub must never see them for what they mean here.
func scrubExitCode(code int, err error) int {
	var own *statusError
	switch {
	case errors.As(err, &own):
		return own.code
	case code == exitOK || code == exitUnavailable:
		return code
	}
	return exitError
}

// exitCode maps an error to the exit status.
func exitCode(err error) int {
	var usage *usageError
	var own *statusError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &usage):
		return exitUsage
	case client.IsNotFound(err), errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	case client.IsDataLoss(err):
		return exitDataLoss
	case client.IsUnavailable(err):
		return exitUnavailable
	case strings.HasPrefix(err.Error(), "unknown command"): // cobra has no type for it
		return exitUsage
	}
	return exitError
}

// sentence says what went wrong and, where that is known, what helps.
func (a *app) sentence(err error) string {
	var e *client.Error
	if !errors.As(err, &e) {
		switch err {
		case context.DeadlineExceeded:
			return a.tookTooLong()
		case context.Canceled:
			return "interrupted"
		}
		return err.Error()
	}
	// What this program put before the engine's message, "a: ", stays there.
	prefix := strings.TrimSuffix(err.Error(), e.Error())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return prefix + a.tookTooLong()
	case errors.Is(err, context.Canceled):
		return prefix + "interrupted"
	case e.Code == codes.Unavailable && e.Reason == "":
		return prefix + fmt.Sprintf("no engine answers at %s; start one with `go run ./cmd/engine`", a.addr)
	case e.Code == codes.NotFound && prefix != "":
		return prefix + "no such file or directory in the store"
	case e.Code == codes.DataLoss && e.Corruption() != nil:
		c := e.Corruption()
		what := fmt.Sprintf("%q is", c.GetName())
		if prefix == c.GetName()+": " { // named once is enough
			what = "is"
		}
		s := prefix + fmt.Sprintf("%s damaged: %s at offset %d fail their checksum (device %s, zone %d)",
			what, size(c.GetLength()), c.GetOffset(), c.GetZone().GetDevice(), c.GetZone().GetZone())
		if c.GetOffset() > 0 {
			s += "; the bytes before are good"
		}
		return s
	case e.Code == codes.ResourceExhausted && e.Usage() != nil:
		u := e.Usage()
		return prefix + fmt.Sprintf("%s (%s): %s free, %s come back by reclaim", e.Message, e.Reason,
			size(u.GetFreeBytes()), size(u.GetZoneUnusableBytes()))
	}
	message := e.Message
	if e.Reason == "PRECONDITION" && e.Meta["generation"] != "" {
		message += "; it was changed meanwhile, or was never so: `client stat` shows what it is now"
	}
	for _, kind := range []string{"", "file ", "directory "} { // named once is enough
		message = strings.TrimPrefix(message, kind+prefix)
	}
	s := prefix + message
	if f := e.Fields(); len(f) > 0 && e.Code == codes.InvalidArgument {
		var parts []string
		for field, why := range f {
			if !strings.Contains(e.Message, why) {
				parts = append(parts, field+": "+why)
			}
		}
		sort.Strings(parts)
		if len(parts) > 0 {
			s += " (" + strings.Join(parts, "; ") + ")"
		}
	}
	return s
}

func (a *app) tookTooLong() string {
	if a.timeout > 0 {
		return fmt.Sprintf("not done within the %v of --timeout", a.timeout)
	}
	return "the deadline has passed"
}
