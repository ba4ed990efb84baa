package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

// transferOptions are the flags of put and get.
type transferOptions struct {
	recursive bool
	jobs      int
	dry       bool // move nothing, say what would be moved
}

// flags adds o's to cmd; folders is what -r takes.
func (o *transferOptions) flags(cmd *cobra.Command, folders string) {
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "r", false, folders+" with everything in them")
	cmd.Flags().IntVarP(&o.jobs, "jobs", "j", defaultJobs, "files at a time")
	cmd.Flags().BoolVarP(&o.dry, "dry-run", "n", false, "move nothing, say what would be moved")
}

func (o *transferOptions) check() error {
	if o.jobs < 1 {
		return usagef("--jobs %d: at least 1", o.jobs)
	}
	return nil
}

// single reports whether srcs are one file, whose error then is that of the whole.
func (o *transferOptions) single(srcs []string) bool { return len(srcs) == 1 && !o.recursive }

// transfer moves files between here and the store. end is its end.
type transfer struct {
	a *app
	*progress
	*batch
	dry bool
}

func (a *app) transfer(ctx context.Context, srcs []string, o transferOptions) transfer {
	return transfer{a: a, progress: a.progress(), batch: a.batch(ctx, o.jobs, o.single(srcs)), dry: o.dry}
}

// end waits for all files and answers what became of them.
func (t transfer) end(ctx context.Context, verb string) error {
	err := t.wait(ctx)
	t.done()
	if err != nil && t.failures() <= 1 && t.alone {
		return err
	}
	if t.dry {
		verb = "would have " + verb
	}
	return errors.Join(err, t.answer(t.a, verb, t.failures(), t.dry))
}
