package main

import (
	"errors"
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// Exit statuses, as the help says.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitProblems = 4
)

// usageError is a command line, or an environment, that makes no sense.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// problemsError says that check found problems, which were printed already.
type problemsError struct{ n int }

func (e *problemsError) Error() string { return fmt.Sprintf("%d problems found", e.n) }

// explain prints err as one sentence, unless that was done, and returns the exit status.
func (a *app) explain(err error) int {
	var usage *usageError
	var problems *problemsError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &problems):
		return exitProblems
	}
	fmt.Fprintf(a.err, "engine: %s\n", errdefs.Sentence(err))
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}
