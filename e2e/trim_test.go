package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

type trimmedDoc struct {
	State          string `json:"state"`
	Trimmed        uint64 `json:"bytes_trimmed"`
	AlreadyTrimmed uint64 `json:"bytes_skipped_already_trimmed"`
	Done           uint64 `json:"bytes_done"`
	Total          uint64 `json:"bytes_total"`
	InUse          uint64 `json:"bytes_in_use"`
	ZonesReset     uint64 `json:"zones_reset"`
	Commands       uint64 `json:"discard_commands"`
}

// TestTrim fills a store, deletes most of it and trims: the disk below gets its space back, a second
// trim finds nothing, after a kill neither, and what is left reads as it was.
func TestTrim(t *testing.T) {
	for name, device := range map[string]string{
		"zns":  "?size=96MiB&zone-size=4MiB",
		"disk": "?size=96MiB&zone-size=4MiB&dialect=smr&conventional=24",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "device")
			s := started(t, "--device", "file:"+path+device)
			dir := t.TempDir()
			keep, err := io.ReadAll(newMixed(1, 3<<20))
			must(t, err)
			large, err := io.ReadAll(newMixed(2, 40<<20))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "keep"), keep, 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "large"), large, 0o600))
			trim := func(args ...string) (d trimmedDoc) {
				t.Helper()
				must(t, json.Unmarshal([]byte(s.client(append([]string{"trim", "--output", "json"}, args...)...)), &d))
				if d.State != "complete" || d.Done != d.Total {
					t.Errorf("%+v", d)
				}
				return d
			}
			trim()
			s.client("put", "-q", filepath.Join(dir, "keep"), "keep")
			s.client("put", "-q", filepath.Join(dir, "large"), "large")
			before := onDisk(t, path)
			if d := trim(); d.InUse == 0 {
				t.Errorf("%+v", d)
			}
			s.client("rm", "large")
			dry := trim("--dry-run")
			d := trim()
			if d.Trimmed < 12<<20 || dry.Trimmed > d.Trimmed {
				t.Errorf("%+v, the dry run %+v", d, dry)
			}
			if now := onDisk(t, path); before > 0 && now > before-12<<20 {
				t.Errorf("the device file took %d bytes, and takes %d after %+v", before, now, d)
			}
			if again := trim(); again.Trimmed != 0 || again.Commands != 0 || again.AlreadyTrimmed < d.Trimmed {
				t.Errorf("again: %+v", again)
			}
			s.restart()
			// A zone that was being written to and holds nothing is reset at open, and trimmed again.
			if again := trim(); again.Trimmed > 4<<20 || again.AlreadyTrimmed < d.Trimmed-4<<20 {
				t.Errorf("after a kill: %+v, before %+v", again, d)
			}
			if again := trim(); again.Trimmed != 0 {
				t.Errorf("after a kill, again: %+v", again)
			}
			if text := s.client("trim", "-v"); !strings.HasPrefix(text, "0 B (0 bytes) trimmed\n") || !strings.Contains(text, "already trimmed") {
				t.Errorf("trim -v says %q", text)
			}
			if got := s.client("cat", "keep"); !bytes.Equal([]byte(got), keep) {
				t.Error("what was kept differs")
			}
			if out, code := execute(t, programs.client, "--addr", s.addr, "trim", "--offset", "1T"); code != 1 || !strings.Contains(out, "end of the address space") {
				t.Errorf("past the end: %d %q", code, out)
			}
			s.stop()
			s.check()
		})
	}
}

// onDisk is the space that a file takes on its disk, in bytes; 0 if that cannot be asked.
func onDisk(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	must(t, err)
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return 0
}
