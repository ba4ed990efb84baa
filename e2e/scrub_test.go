package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

type scrubDoc struct {
	ID       string            `json:"scrub_id"`
	State    string            `json:"state"`
	Total    uint64            `json:"total_bytes"`
	Done     uint64            `json:"done_bytes"`
	Limit    uint64            `json:"limit_bytes_per_second"`
	Active   float64           `json:"active_seconds"`
	Findings uint64            `json:"findings"`
	Counters map[string]uint64 `json:"counters"`
}

type findingDoc struct {
	Name     string `json:"name"`
	Offset   int64  `json:"offset"`
	Length   int64  `json:"length"`
	Expected uint32 `json:"expected_crc32c"`
	Actual   uint32 `json:"actual_crc32c"`
	Outcome  string `json:"outcome"`
}

// scrubStore is a served store with a file "a" of noise, stored as it is, and its device file.
func scrubStore(t *testing.T, size int) (s *store, device string, content []byte) {
	t.Helper()
	device = filepath.Join(t.TempDir(), "device")
	s = started(t, "--device", "file:"+device+"?size=96MiB&zone-size=4MiB", "--compression", "none")
	content = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{5}).Read(content)
	path := filepath.Join(t.TempDir(), "a")
	must(t, os.WriteFile(path, content, 0o600))
	s.client("put", "-q", path, "a")
	return s, device, content
}

// scrub runs client scrub, which must exit with code, and returns what it prints to standard output.
func (s *store) scrub(code int, args ...string) string {
	s.t.Helper()
	cmd := s.clientCommand(append([]string{"scrub"}, args...)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		s.t.Fatalf("client scrub %s exits with %d, want %d:\n%s%s", strings.Join(args, " "), got, code, &out, &log)
	}
	return out.String()
}

func (s *store) scrubStatus(code int) (d scrubDoc) {
	s.t.Helper()
	must(s.t, json.Unmarshal([]byte(s.scrub(code, "status", "--output", "json")), &d))
	if d.Done > d.Total {
		s.t.Errorf("more than all is done: %+v", d)
	}
	return d
}

// rot flips a bit of a block of content where it lies in the device file.
func rot(t *testing.T, device string, content []byte, offset int64) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	all, err := io.ReadAll(f)
	must(t, err)
	at := bytes.Index(all, content[offset:offset+4096])
	if at < 0 {
		t.Fatalf("the block at %d is not in the device file", offset)
	}
	_, err = f.WriteAt([]byte{all[at+99] ^ 4}, int64(at)+99)
	must(t, err)
	must(t, f.Sync())
}

// TestScrub: what rots in the device file is found, counted exactly and named, with the exit statuses of
// btrfs scrub.
func TestScrub(t *testing.T) {
	s, device, content := scrubStore(t, 24<<20)
	if out := s.scrub(0, "status"); !strings.Contains(out, "no stats available") {
		t.Errorf("says %q", out)
	}
	s.scrub(2, "resume")
	out := s.scrub(0, "start", "-B")
	for _, want := range []string{"UUID:", "Scrub started:", "Status:           finished\n", "(100.00%)", "Error summary:    no errors found\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("says %q, without %q", out, want)
		}
	}
	if d := s.scrubStatus(0); d.State != "finished" || d.Done != d.Total || d.Counters["data_bytes_scrubbed"] < 24<<20 || d.Counters["tree_bytes_scrubbed"] == 0 {
		t.Errorf("%+v", d)
	}
	offsets := []int64{0, 8192, 4<<20 + 4096, 24<<20 - 4096}
	for _, off := range offsets {
		rot(t, device, content, off)
	}
	for _, args := range [][]string{{"start", "-B"}, {"start", "-B", "-r"}, {"start", "-B", "--file", "a"}} {
		if out := s.scrub(3, args...); !strings.Contains(out, "Error summary:    csum=4\n") {
			t.Errorf("%q says %q", args, out)
		}
		if d := s.scrubStatus(3); d.Counters["csum_errors"] != 4 || d.Findings != 4 {
			t.Errorf("%q: %+v", args, d)
		}
		var list struct{ Findings []findingDoc }
		must(t, json.Unmarshal([]byte(s.scrub(0, "findings", "--output", "json")), &list))
		if len(list.Findings) != 4 {
			t.Fatalf("%q: %+v", args, list)
		}
		for i, f := range list.Findings {
			if f.Name != "a" || f.Offset != offsets[i] || f.Length != 4096 || f.Actual == f.Expected || f.Outcome == "repaired" {
				t.Errorf("%q: %+v", args, f)
			}
		}
	}
	if out := s.scrub(0, "findings"); strings.Count(out, "\n") != 4 || !strings.HasPrefix(out, "a at offset 0, 4.00 KiB: crc32c ") {
		t.Errorf("says %q", out)
	}
	s.restart()
	if d := s.scrubStatus(3); d.Findings != 4 || d.State != "finished" {
		t.Errorf("after a kill: %+v", d)
	}
	s.client("rm", "a")
	for until := time.Now().Add(startTime); s.df().Used > 1<<20; time.Sleep(50 * time.Millisecond) { // it is freed in the background
		if time.Now().After(until) {
			t.Fatalf("the space of a does not come back: %+v", s.df())
		}
	}
	s.scrub(0, "start", "-B")
	s.stop()
	s.check()
}

// TestScrubGoesOn: a scrub that is killed with its engine, or interrupted from the keyboard, goes on where it
// was, under the limit it had.
func TestScrubGoesOn(t *testing.T) {
	s, _, _ := scrubStore(t, 32<<20)
	begin := func() (cmd *exec.Cmd, said *record) {
		said = &record{}
		cmd = s.clientCommand("scrub", "start", "-B", "--limit", "8M")
		cmd.Stdout, cmd.Stderr = said, said
		must(t, cmd.Start())
		for until := time.Now().Add(startTime); ; time.Sleep(50 * time.Millisecond) {
			if d := s.scrubStatus(0); d.State == "running" && d.Done*5 >= d.Total {
				return cmd, said
			}
			if time.Now().After(until) {
				t.Fatalf("the scrub does not get on: %s", said)
			}
		}
	}
	exited := func(cmd *exec.Cmd, said *record, code int, message string) {
		t.Helper()
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(said.String(), message) {
			t.Errorf("start -B exits with %d and says %q; want %d, %q", got, said, code, message)
		}
	}
	goOn := func(state string, before scrubDoc) {
		t.Helper()
		d := s.scrubStatus(0)
		if d.State != state || d.ID != before.ID || d.Total != before.Total || d.Done < before.Done || d.Done >= d.Total || d.Limit != 8<<20 {
			t.Errorf("%+v, before %+v", d, before)
		}
		s.scrub(0, "resume")
		s.scrub(0, "limit", "0")
		s.scrub(0, "watch")
		end := s.scrubStatus(0)
		if end.State != "finished" || end.Total != before.Total || end.Done != end.Total || end.Findings != 0 ||
			end.Counters["data_bytes_scrubbed"] < 32<<20 || end.Active < d.Active {
			t.Errorf("%+v, before %+v", end, d)
		}
		s.scrub(2, "resume")
	}

	cmd, said := begin()
	before := s.scrubStatus(0)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	exited(cmd, said, 1, "interrupted: the scrub is cancelled; `client scrub resume` goes on with it")
	goOn("cancelled", before)

	cmd, said = begin()
	time.Sleep(time.Second) // what is recorded each group is behind what is shown
	s.restart()
	exited(cmd, said, 1, "the scrub is interrupted, incomplete")
	d := s.scrubStatus(0)
	goOn("interrupted", d)

	cmd, said = begin()
	before = s.scrubStatus(0)
	s.scrub(0, "pause")
	exited(cmd, said, 1, "the scrub is paused, incomplete")
	s.restart()
	goOn("paused", before)
	s.stop()
	s.check()
}
