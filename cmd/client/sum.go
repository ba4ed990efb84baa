package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// sumJSON is the checksum of a file.
type sumJSON struct {
	Name      string `json:"name"`
	Algorithm string `json:"algorithm"`
	Sum       string `json:"sum"` // hexadecimal
	Size      int64  `json:"size"`
}

// algorithms are those that sum knows.
var algorithms = map[string]func() hash.Hash{
	"sha256": sha256.New,
	"crc32c": func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
}

func (a *app) sumCommand() *cobra.Command {
	var algorithm string
	var recursive bool
	cmd := &cobra.Command{
		Use:   "sum NAME...",
		Short: "print checksums of files",
		Long: `sum reads files, each block held against its stored checksum on the way, and prints a checksum of
their content in the format of sha256sum, which can check local copies with it:

  client sum -r docs | (cd /where/they/are && sha256sum -c)

A file that cannot be read is told of, and the others go on. JSON: {"sums": [...]}.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if algorithms[algorithm] == nil {
				return usagef("--algorithm %q: sha256 or crc32c", algorithm)
			}
			return a.sum(cmd.Context(), args, algorithm, recursive)
		},
	}
	cmd.Flags().StringVarP(&algorithm, "algorithm", "a", "sha256", "sha256 or crc32c (Castagnoli)")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "directories with everything in them")
	return cmd
}

func (a *app) sum(ctx context.Context, args []string, algorithm string, recursive bool) error {
	out := listing[sumJSON]{a: a, key: "sums", text: func(j sumJSON) error {
		_, err := fmt.Fprintln(a.out, sumLine(j))
		return err
	}}
	b := a.batch(ctx, 1, len(args) == 1 && !recursive)
	one := func(name string) error {
		j, err := a.sumOf(b.ctx, name, algorithm)
		if b.fail(name, err); err != nil {
			return b.ctx.Err()
		}
		return out.add(j, j)
	}
	for _, arg := range args {
		name, _ := storeName(arg)
		directory := name == ""
		if recursive && !directory {
			f, err := a.c.Stat(b.ctx, name)
			if err != nil {
				b.fail(name, err)
				continue
			}
			directory = isDirectory(f)
		}
		if !directory || !recursive {
			if err := one(name); err != nil {
				break
			}
			continue
		}
		for f, err := range a.c.List(b.ctx, name, client.ListOptions{Recursive: true}) {
			if err != nil {
				b.fail(name, err)
				break
			}
			if isDirectory(f) {
				continue
			}
			if err := one(f.GetName()); err != nil {
				break
			}
		}
	}
	err := b.wait(ctx)
	if b.alone && err != nil {
		return err
	}
	if eerr := out.end(); err == nil {
		err = eerr
	}
	return err
}

// sumOf reads a file to its end.
func (a *app) sumOf(ctx context.Context, name, algorithm string) (sumJSON, error) {
	r, err := a.c.Read(ctx, name, client.ReadOptions{})
	if err != nil {
		return sumJSON{}, err
	}
	defer r.Close()
	h := algorithms[algorithm]()
	n, err := r.WriteTo(h)
	if err != nil {
		return sumJSON{}, err
	}
	return sumJSON{Name: name, Algorithm: algorithm, Sum: hex.EncodeToString(h.Sum(nil)), Size: n}, nil
}

// sumLine is a line as sha256sum prints it: a name with a line break or a backslash in it is escaped, and
// the line then begins with a backslash.
func sumLine(j sumJSON) string {
	name := strings.NewReplacer("\\", "\\\\", "\n", "\\n", "\r", "\\r").Replace(j.Name)
	if name != j.Name {
		return "\\" + j.Sum + "  " + name
	}
	return j.Sum + "  " + name
}
