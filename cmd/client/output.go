package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// answer prints v as one JSON document or calls text, as --output says.
func (a *app) answer(v any, text func(io.Writer) error) error {
	if a.output == "json" {
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	return text(a.out)
}

// noText is for verbs that say nothing to people when all went well.
func noText(io.Writer) error { return nil }

// done answers a verb that has a result for programs and at most a line for people.
func (a *app) done(v any, format string, args ...any) error {
	return a.answer(v, func(w io.Writer) error {
		if a.quiet {
			return nil
		}
		_, err := fmt.Fprintf(w, format+"\n", args...)
		return err
	})
}

// table prints rows in columns, the first row being their heads. A column whose head begins
// with ">" is aligned right.
func table(w io.Writer, rows [][]string) error {
	width := make([]int, len(rows[0]))
	right := make([]bool, len(rows[0]))
	for i, head := range rows[0] {
		rows[0][i], right[i] = strings.CutPrefix(head, ">")
	}
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len(c))
		}
	}
	for _, r := range rows {
		var line strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-len(c))
			if right[i] {
				line.WriteString(pad + c + "  ")
			} else {
				line.WriteString(c + pad + "  ")
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// size prints bytes in IEC units with three digits: "0 B", "1023 B", "1.50 KiB", "12.0 MiB".
func size[T int64 | uint64](n T) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	// 999.5 would print as 1000.
	for ; v >= 999.5 && unit < 5; unit++ {
		v /= 1024
	}
	digits := 2
	switch {
	case v >= 99.95:
		digits = 0
	case v >= 9.995:
		digits = 1
	}
	return fmt.Sprintf("%.*f %ciB", digits, v, "KMGTPE"[unit])
}

// fileJSON is a file in JSON. Absent: not set, or zero times.
type fileJSON struct {
	Name        string            `json:"name"`
	Kind        string            `json:"kind"`
	FileID      uint64            `json:"file_id"`
	Generation  int64             `json:"generation"`
	Size        int64             `json:"size"`
	Allocated   int64             `json:"allocated_bytes"`
	Stored      int64             `json:"stored_bytes"`
	Dirty       int64             `json:"dirty_bytes"`
	Created     *time.Time        `json:"create_time,omitempty"`
	Updated     *time.Time        `json:"update_time,omitempty"`
	Mtime       *time.Time        `json:"mtime,omitempty"`
	Mode        *uint32           `json:"mode,omitempty"`
	Compression string            `json:"compression"`
	ContentCRC  *uint32           `json:"content_crc32c,omitempty"`
	Attributes  map[string]string `json:"attributes,omitempty"`
	RequestID   string            `json:"request_id,omitempty"`
	SyncFailed  bool              `json:"sync_failed"`
}

func toJSON(f *client.File) fileJSON {
	return fileJSON{
		Name: f.GetName(), Kind: enumWord(f.GetKind().String(), "FILE_KIND_"), FileID: f.GetFileId(), Generation: f.GetGeneration(),
		Size: f.GetSize(), Allocated: f.GetAllocatedBytes(), Stored: f.GetStoredBytes(), Dirty: f.GetDirtyBytes(),
		Created: moment(f.GetCreateTime()), Updated: moment(f.GetUpdateTime()), Mtime: moment(f.GetMtime()),
		Mode: f.Mode, Compression: enumWord(f.GetCompression().String(), "COMPRESSION_"), ContentCRC: f.ContentCrc32C,
		Attributes: f.GetAttributes(), RequestID: f.GetRequestId(), SyncFailed: f.GetSyncFailed(),
	}
}

// enumWord turns an enum value's name into a word: "ZONE_CONDITION_READ_ONLY" is "read-only".
func enumWord(name, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, prefix), "_", "-"))
}

// count is a number of things of which what is one.
func count(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// moment returns a time for JSON; nil if it is not set.
func moment(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}

// listing prints a list of any length as it comes: one JSON document {"key": [...]}, or what
// text makes of each.
type listing[T any] struct {
	a     *app
	key   string
	text  func(T) error
	begun bool
}

// add prints one more entry.
func (l *listing[T]) add(v T, doc any) error {
	if l.a.output != "json" {
		return l.text(v)
	}
	sep := ",\n"
	if !l.begun {
		l.begun, sep = true, fmt.Sprintf("{%q: [\n", l.key)
	}
	b, err := json.Marshal(doc)
	if err == nil {
		_, err = fmt.Fprintf(l.a.out, "%s  %s", sep, b)
	}
	return err
}

// end closes the document.
func (l *listing[T]) end() error {
	if l.a.output != "json" {
		return nil
	}
	if !l.begun {
		_, err := fmt.Fprintf(l.a.out, "{%q: []}\n", l.key)
		return err
	}
	_, err := fmt.Fprint(l.a.out, "\n]}\n")
	return err
}

// isDirectory reports whether f is one.
func isDirectory(f *client.File) bool { return f.GetKind() == shinglev1.FileKind_FILE_KIND_DIRECTORY }

// changed is the time that people mean: the source's if it was kept, else the server's.
func changed(f *client.File) time.Time {
	if f.GetMtime() != nil {
		return f.GetMtime().AsTime()
	}
	return f.GetUpdateTime().AsTime()
}
