package main

import (
	"fmt"
)

// would counts a file that a dry run leaves alone, and says so.
func (t *transfer) would(from, to string, bytes int64) {
	t.files.Add(1)
	t.bytes.Add(bytes)
	if t.a.output == "text" && !t.a.quiet {
		fmt.Fprintf(t.a.out, "%s -> %s (%s)\n", from, to, size(bytes))
	}
}
