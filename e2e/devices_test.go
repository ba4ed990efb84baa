package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// deviceDoc is a part of what device ls answers of a device.
type deviceDoc struct {
	Device     string `json:"device"`
	Path       string `json:"path"`
	State      string `json:"state"`
	Stored     int64  `json:"stored_bytes"`
	Incomplete int    `json:"incomplete_block_groups"`
}

// devices asks the engine for its devices, and whether a rebuild runs.
func (s *store) devices() (all []deviceDoc, rebuilding bool) {
	s.t.Helper()
	var d struct {
		Devices []deviceDoc
		Rebuild struct{ Running bool }
	}
	must(s.t, json.Unmarshal([]byte(s.client("device", "ls", "--output", "json")), &d))
	return d.Devices, d.Rebuild.Running
}

// states are the devices by number, each with its state: "0 online, 1 missing".
func (s *store) states() string {
	s.t.Helper()
	all, _ := s.devices()
	words := make([]string, len(all))
	for i, d := range all {
		words[i] = d.Device + " " + d.State
	}
	return strings.Join(words, ", ")
}

// deviceArgs name device files, which are made on first start.
func deviceArgs(paths ...string) (args []string) {
	for _, p := range paths {
		args = append(args, "--device", "file:"+p+"?size=128MiB&zone-size=4MiB")
	}
	return args
}

// twoCopies is a served store on two device files, and where the files are; a third is not made yet.
func twoCopies(t *testing.T) (s *store, a, b, c string) {
	t.Helper()
	dir := t.TempDir()
	a, b, c = filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	s = started(t, append(deviceArgs(a, b), "--copies", "2", "--compression", "none")...)
	if !strings.Contains(s.line, "new store, 2 emulated ZNS devices, 256 MiB") {
		t.Errorf("the first start says %q", s.line)
	}
	return s, a, b, c
}

// noiseFiles are files of noise by name.
type noiseFiles map[string][]byte

func (f noiseFiles) put(s *store, name string, size int) {
	s.t.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(len(f) + 1)}).Read(content)
	path := filepath.Join(s.t.TempDir(), "file")
	must(s.t, os.WriteFile(path, content, 0o600))
	s.client("put", "-q", path, name)
	f[name] = content
}

// same fails the test unless the store has all of them.
func (f noiseFiles) same(s *store) {
	s.t.Helper()
	for name, content := range f {
		if got := s.client("cat", name); got != string(content) {
			s.t.Errorf("%s has %d bytes, which differ", name, len(got))
		}
	}
}

// TestTwoCopies: what rots in one copy is read from the other and mended, a store goes on without one of
// its devices, and has two copies again when that was replaced.
func TestTwoCopies(t *testing.T) {
	s, a, b, c := twoCopies(t)
	kept := noiseFiles{}
	kept.put(s, "one", 9<<20)
	kept.put(s, "two", 300_000)
	if states := s.states(); states != "0 online, 1 online" {
		t.Fatalf("the devices are %s", states)
	}
	if df := s.client("df"); !strings.Contains(df, "raw, copies 2") {
		t.Errorf("df says:\n%s", df)
	}
	all, _ := s.devices()
	if all[0].Stored != all[1].Stored || all[0].Stored < 9<<20 {
		t.Errorf("the devices hold %+v", all)
	}

	// A block in each copy, not the same one.
	rot(t, b, kept["one"], 5<<20)
	rot(t, a, kept["one"], 2<<20)
	kept.same(s)
	s.scrub(0, "start", "-B")
	s.scrub(0, "start", "-B")
	if d := s.scrubStatus(0); d.Counters["csum_errors"] != 0 || d.Counters["uncorrectable_errors"] != 0 {
		t.Errorf("after it was mended: %+v", d)
	}
	kept.same(s)

	// Without one of them, in another order. Its size is given, and it is not made anew.
	s.kill()
	must(t, os.Remove(b))
	s.args = append(deviceArgs(b, a), "--compression", "none")
	s.start()
	if !strings.Contains(s.log.String(), "the device file "+b+" is missing and left out") || !strings.Contains(s.line, "need") {
		t.Errorf("the start without a device says %q", s.line)
	}
	if states := s.states(); states != "0 online, 1 missing" {
		t.Errorf("the devices are %s", states)
	}
	kept.same(s)
	kept.put(s, "three", 6<<20)
	s.client("rm", "two")
	delete(kept, "two")
	s.restart()
	kept.same(s)
	if _, err := os.Stat(b); err == nil {
		t.Error("the missing device was made anew")
	}

	said := s.client("device", "replace", "missing", "file:"+c+"?size=128MiB&zone-size=4MiB")
	if !strings.Contains(said, "device 1 is replaced by device 2") || !strings.Contains(said, "--device file:"+c) {
		t.Errorf("replace says %q", said)
	}
	all, rebuilding := s.devices()
	if rebuilding || s.states() != "0 online, 2 online" || all[0].Incomplete != 0 || all[1].Incomplete != 0 {
		t.Errorf("after the replacement: %+v, a rebuild runs: %v", all, rebuilding)
	}
	kept.same(s)
	s.stop()
	s.args = append(deviceArgs(a, c), "--compression", "none")
	s.check()

	// Both copies are there: the other device goes now.
	must(t, os.Remove(a))
	s.start()
	kept.same(s)
	s.stop()
}

// TestReplaceGoesOn kills the engine while a device that is there is being replaced: the work goes on with
// the next start, and nothing is lost.
func TestReplaceGoesOn(t *testing.T) {
	s, a, b, c := twoCopies(t)
	kept := noiseFiles{}
	for i := range 6 {
		kept.put(s, fmt.Sprint("file", i), 7<<20)
	}
	s.client("device", "replace", "0", "file:"+c+"?size=128MiB&zone-size=4MiB", "--no-wait")
	s.args = append(deviceArgs(a, b, c), "--compression", "none")
	for range 3 {
		time.Sleep(50 * time.Millisecond)
		s.restart()
		kept.same(s)
	}
	s.client("device", "watch")
	if states := s.states(); states != "1 online, 2 online" {
		t.Errorf("the devices are %s", states)
	}
	kept.put(s, "more", 1<<20)
	s.stop()
	s.args = append(deviceArgs(b, c), "--compression", "none")
	s.check()
	must(t, os.Remove(b))
	s.start()
	kept.same(s)
	s.stop()
}

// TestDevicesComeAndGo: a store of one copy grows by a device and is moved off another, while it is read.
func TestDevicesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	s := started(t, append(deviceArgs(a), "--compression", "none")...)
	kept := noiseFiles{}
	kept.put(s, "one", 9<<20)
	before := s.df()
	if said := s.client("device", "add", "file:"+b+"?size=128MiB&zone-size=4MiB"); !strings.HasPrefix(said, "added device 1, file:"+b) {
		t.Errorf("add says %q", said)
	}
	s.args = append(deviceArgs(a, b), "--compression", "none")
	s.restart()
	kept.put(s, "two", 5<<20)
	if after := s.df(); after.Stored != before.Stored+5<<20 {
		t.Errorf("%d bytes were stored, now %d", before.Stored, after.Stored)
	}
	if said := s.client("device", "remove", "0"); !strings.Contains(said, "device 0 is removed") {
		t.Errorf("remove says %q", said)
	}
	if states := s.states(); states != "1 online" {
		t.Errorf("the devices are %s", states)
	}
	s.stop()
	must(t, os.Remove(a))
	s.args = append(deviceArgs(b), "--compression", "none")
	s.start()
	kept.same(s)
	s.stop()
	s.check()
}

// TestCopiesAreRefused: what cannot be, said in a sentence with the way out.
func TestCopiesAreRefused(t *testing.T) {
	s, a, b, _ := twoCopies(t)
	refused := func(code int, say string, args ...string) {
		t.Helper()
		cmd := s.clientCommand(append([]string{"device"}, args...)...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), say) {
			t.Errorf("client device %q exits with %d and says %q, want %d and %q", args, got, out, code, say)
		}
	}
	refused(3, "9", "remove", "9")
	refused(1, "", "remove", "1") // two copies need two devices
	refused(1, "", "add", "file:"+a)
	refused(1, "", "add", "file:"+filepath.Join(filepath.Dir(a), "other")+"?size=128MiB&zone-size=8MiB")
	refused(3, "there is no device file", "add", "file:"+a+"-none")
	refused(1, "is no device: write file:PATH", "add", a)
	if states := s.states(); states != "0 online, 1 online" {
		t.Errorf("the devices are %s", states)
	}
	s.stop()
	args := slices.Concat([]string{"--data", s.data, "--listen", s.addr, "--copies", "1"}, deviceArgs(a, b))
	if out, code := execute(t, programs.engine, args...); code != 1 || !strings.Contains(out, "was made with 2; leave --copies out") {
		t.Errorf("with another number of copies the engine exits with %d and says %s", code, out)
	}
	s.check()
}
