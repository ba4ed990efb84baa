package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

type rmOptions struct {
	recursive, force, dry bool
	match                 matchFlag
}

func (a *app) rmCommand() *cobra.Command {
	var o rmOptions
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "delete files",
		Long: `rm deletes files and empty directories. They are gone for good when it exits with 0; their
space comes back in the background.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.rm(cmd.Context(), args, o) },
	}
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "r", false, "directories with everything in them")
	cmd.Flags().BoolVarP(&o.force, "force", "f", false, "a missing name is no error")
	cmd.Flags().BoolVarP(&o.dry, "dry-run", "n", false, "delete nothing, say what would be deleted")
	o.match.flag(cmd, "")
	return cmd
}

// removed is what rm answers.
type removed struct {
	Deleted int64 `json:"deleted"`
	Freed   int64 `json:"freed_bytes"`
	Pending int64 `json:"pending_bytes"`
	Failed  int   `json:"failed"`
	DryRun  bool  `json:"dry_run,omitempty"` // then nothing was deleted
}

// remover carries out one rm.
type remover struct {
	a *app
	*batch
	rmOptions
	ifMatch                 *client.Preconditions // of the only file; nil: nothing is asked
	deleted, freed, pending atomic.Int64
}

func (a *app) rm(ctx context.Context, args []string, o rmOptions) error {
	single := len(args) == 1 && !o.recursive
	ifMatch, err := o.match.of(single && !o.dry)
	if err != nil {
		return err
	}
	jobs := defaultJobs
	if o.dry {
		jobs = 1 // in order
	}
	r := remover{a: a, batch: a.batch(ctx, jobs, single), ifMatch: ifMatch, rmOptions: o}
	for _, arg := range args {
		name, _ := storeName(arg)
		if name == "" {
			return usagef("the root stays; name what is in it")
		}
		if !o.recursive {
			r.delete(name, o.force)
			continue
		}
		r.tree(ctx, name, o.force)
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	return a.answer(removed{r.deleted.Load(), r.freed.Load(), r.pending.Load(), r.failures(), o.dry}, noText)
}

// tree deletes name and everything below it: files as they are listed, then directories,
// the deepest first.
func (r *remover) tree(ctx context.Context, name string, force bool) {
	f, err := r.a.c.Stat(ctx, name)
	switch {
	case client.IsNotFound(err) && force:
		return
	case err != nil:
		r.fail(name, err)
		return
	case !isDirectory(f):
		r.delete(name, force)
		return
	}
	directories := []string{name}
	for f, err := range r.a.c.List(r.ctx, name, client.ListOptions{Recursive: true}) {
		if err != nil {
			r.fail(name, err)
			return
		}
		if isDirectory(f) {
			directories = append(directories, f.GetName())
			continue
		}
		r.delete(f.GetName(), true)
	}
	_ = r.g.Wait()
	if r.failures() > 0 {
		return
	}
	for _, d := range slices.Backward(directories) {
		r.fail(d, r.one(r.ctx, d, true))
	}
}

// delete deletes one name when there is room.
func (r *remover) delete(name string, missing bool) {
	r.do(name, func(ctx context.Context) error { return r.one(ctx, name, missing) })
}

// one deletes one name.
func (r *remover) one(ctx context.Context, name string, missing bool) error {
	if r.dry {
		return r.would(ctx, name, missing)
	}
	freed, err := r.a.c.Delete(ctx, name, client.DeleteOptions{IfMatch: r.ifMatch, AllowMissing: missing})
	if err != nil {
		return err
	}
	r.deleted.Add(1)
	r.freed.Add(freed.GetFreedBytes())
	r.pending.Add(freed.GetPendingBytes())
	return nil
}

// would says that a name would be deleted.
func (r *remover) would(ctx context.Context, name string, missing bool) error {
	f, err := r.a.c.Stat(ctx, name)
	switch {
	case client.IsNotFound(err) && missing:
		return nil
	case err != nil:
		return err
	}
	if isDirectory(f) && !r.recursive {
		for _, err := range r.a.c.List(ctx, name, client.ListOptions{PageSize: 1}) {
			if err == nil {
				err = errors.New("is not empty; use -r")
			}
			return err
		}
	}
	r.deleted.Add(1)
	if r.a.output == "json" || r.a.quiet {
		return nil
	}
	if isDirectory(f) {
		name += "/"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err = fmt.Fprintln(r.a.out, name)
	return err
}
