package main

import (
	"fmt"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

func (a *app) statCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stat NAME...",
		Short: "show all that is known of files",
		Long:  "stat shows all that the store knows of files and directories.\n\nJSON: {\"files\": [...]}.",
		Args:  usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := listing[*client.File]{a: a, key: "files", text: a.statText}
			for _, arg := range args {
				name, _ := storeName(arg)
				f, err := a.c.Stat(cmd.Context(), name)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				if err := out.add(f, toJSON(f)); err != nil {
					return err
				}
			}
			return out.end()
		},
	}
}

func (a *app) statText(f *client.File) error {
	j := toJSON(f)
	line := func(key, format string, args ...any) {
		fmt.Fprintf(a.out, "%-12s "+format+"\n", append([]any{key + ":"}, args...)...)
	}
	at := func(key string, t *time.Time) {
		if t != nil {
			line(key, "%s", t.Local().Format(time.RFC3339Nano))
		}
	}
	line("name", "%s", j.Name)
	line("kind", "%s", j.Kind)
	line("id", "%d, generation %d", j.FileID, j.Generation)
	line("size", "%s (%d bytes)", size(j.Size), j.Size)
	line("allocated", "%s", size(j.Allocated))
	line("stored", "%s, %s", size(j.Stored), j.Compression)
	if j.Dirty > 0 {
		line("dirty", "%s not durable yet", size(j.Dirty))
	}
	if j.Mode != nil {
		line("mode", "%04o", *j.Mode)
	}
	at("mtime", j.Mtime)
	at("created", j.Created)
	at("updated", j.Updated)
	if j.ContentCRC != nil {
		line("crc32c", "%08x", *j.ContentCRC)
	}
	if j.SyncFailed {
		line("sync", "failed: some bytes could not be made durable")
	}
	keys := make([]string, 0, len(j.Attributes))
	for k := range j.Attributes {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		line("attribute", "%s=%s", k, j.Attributes[k])
	}
	return nil
}
