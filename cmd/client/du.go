package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// taken is what a file, or a directory with everything below it, comes to, in bytes.
type taken struct {
	Name        string `json:"name"`
	Stored      int64  `json:"stored_bytes"`
	Allocated   int64  `json:"allocated_bytes"`
	Logical     int64  `json:"logical_bytes"`
	Files       int64  `json:"files"`
	Directories int64  `json:"directories"`
}

func (s *taken) add(x taken) {
	s.Stored += x.Stored
	s.Allocated += x.Allocated
	s.Logical += x.Logical
	s.Files += x.Files
	s.Directories += x.Directories
}

func takenBy(f *client.File) taken {
	return taken{Name: f.GetName(), Stored: f.GetStoredBytes(), Allocated: f.GetAllocatedBytes(), Logical: f.GetSize(), Files: 1}
}

func (a *app) duCommand() *cobra.Command {
	var summarize, human bool
	cmd := &cobra.Command{
		Use:   "du [NAME...]",
		Short: "show what directories take",
		Long: `du shows what each directory takes with everything below it, the inner ones first, and what files
take that are named; the whole store if nothing is. Three columns, in bytes, come before the name:

  stored     kept of it, compressed; what clones share counts in each of them
  allocated  of the content, not in holes
  logical    the sizes of the files

What is received and not durable yet counts in logical only. JSON: {"usage": [...]}.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{""}
			}
			return a.du(cmd.Context(), args, summarize, human)
		},
	}
	f := cmd.Flags()
	f.Bool("help", false, "help for du") // without -h, which is taken
	f.BoolVarP(&summarize, "summarize", "s", false, "only what is named, not the directories below it")
	f.BoolVarP(&human, "human-readable", "h", false, "sizes in KiB, MiB, GiB")
	return cmd
}

func (a *app) du(ctx context.Context, args []string, summarize, human bool) error {
	number := func(n int64) string { return fmt.Sprint(n) }
	if human {
		number = size[int64]
	}
	headed := a.quiet
	out := listing[taken]{a: a, key: "usage", text: func(x taken) error {
		if !headed {
			headed = true
			if _, err := fmt.Fprintf(a.out, "%12s  %12s  %12s\n", "stored", "allocated", "logical"); err != nil {
				return err
			}
		}
		name := x.Name
		if name == "" {
			name = "/"
		}
		_, err := fmt.Fprintf(a.out, "%12s  %12s  %12s  %s\n", number(x.Stored), number(x.Allocated), number(x.Logical), name)
		return err
	}}
	for _, arg := range args {
		name, _ := storeName(arg)
		if name != "" {
			f, err := a.c.Stat(ctx, name)
			if err != nil {
				return named(name, err)
			}
			if !isDirectory(f) {
				if err := out.add(takenBy(f), takenBy(f)); err != nil {
					return err
				}
				continue
			}
		}
		sum := treeSum{done: func(x taken, depth int) error {
			if summarize && depth > 0 {
				return nil
			}
			return out.add(x, x)
		}}
		sum.open(name)
		for f, err := range a.c.List(ctx, name, client.ListOptions{Recursive: true}) {
			if err == nil {
				err = sum.entry(f)
			}
			if err != nil {
				return named(name, err)
			}
		}
		if err := sum.close(); err != nil {
			return err
		}
	}
	return out.end()
}

// treeSum adds up directories while they are listed: a directory comes before what is in it, and is
// done when something comes that is not. It holds one sum a level.
type treeSum struct {
	stack []taken // from the top directory to the present one
	done  func(x taken, depth int) error
}

func (t *treeSum) open(name string) {
	t.stack = append(t.stack, taken{Name: name, Directories: 1})
}

// entry takes the next entry of the list.
func (t *treeSum) entry(f *client.File) error {
	for len(t.stack) > 1 && !strings.HasPrefix(f.GetName(), t.stack[len(t.stack)-1].Name+"/") {
		if err := t.pop(); err != nil {
			return err
		}
	}
	if isDirectory(f) {
		t.open(f.GetName())
		return nil
	}
	t.stack[len(t.stack)-1].add(takenBy(f))
	return nil
}

// close ends all that are open.
func (t *treeSum) close() error {
	for len(t.stack) > 0 {
		if err := t.pop(); err != nil {
			return err
		}
	}
	return nil
}

// pop ends the innermost directory.
func (t *treeSum) pop() error {
	depth := len(t.stack) - 1
	x := t.stack[depth]
	t.stack = t.stack[:depth]
	if depth > 0 {
		t.stack[depth-1].add(x)
	}
	return t.done(x, depth)
}
