package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOrdinaryDisk formats and uses a device that is all conventional: what is deleted is free at
// once, a kill loses nothing that was answered, and check finds nothing.
func TestOrdinaryDisk(t *testing.T) {
	device := "file:" + filepath.Join(t.TempDir(), "disk") + "?size=64MiB&zone-size=4MiB&dialect=smr&conventional=16"
	s := newStore(t, "--device", device)
	out, code := execute(t, programs.engine, "format", "--data", s.data, "--device", device)
	if code != 0 || !strings.Contains(out, "64 MiB emulated SMR device") {
		t.Fatalf("format exits with %d: %s", code, out)
	}
	s.start()
	dir := t.TempDir()
	want := map[string][]byte{}
	for i, n := range []int{5_000, 300_000, 20 << 20, 25 << 20} {
		data, err := io.ReadAll(newMixed(uint64(i), int64(n)))
		must(t, err)
		path := filepath.Join(dir, string(rune('a'+i)))
		must(t, os.WriteFile(path, data, 0o600))
		s.client("put", "-q", path, filepath.Base(path))
		want[filepath.Base(path)] = data
	}
	df := func() (u struct {
		Total    int64 `json:"total_bytes"`
		Used     int64 `json:"used_bytes"`
		Free     int64 `json:"free_bytes"`
		Unusable int64 `json:"zone_unusable_bytes"`
		Classes  []struct {
			Conventional bool  `json:"conventional"`
			Groups       int   `json:"block_groups"`
			Used         int64 `json:"used_bytes"`
		} `json:"classes"`
	}) {
		must(t, json.Unmarshal([]byte(s.client("df", "--output", "json")), &u))
		if len(u.Classes) != 1 || !u.Classes[0].Conventional || u.Classes[0].Groups != 14 || u.Classes[0].Used != u.Used || u.Unusable != 0 {
			t.Errorf("df: %+v", u)
		}
		return u
	}
	if u := df(); u.Total != 56<<20 || u.Used == 0 {
		t.Errorf("df: %+v", u)
	}
	s.restart()
	for name, data := range want {
		if got := s.client("cat", name); !bytes.Equal([]byte(got), data) {
			t.Errorf("%s differs after a kill: %d bytes, want %d", name, len(got), len(data))
		}
	}
	// Again and again in place of the same: far more than the device holds, with no reset.
	for range 4 {
		s.client("rm", "d")
		s.client("put", "-q", filepath.Join(dir, "d"), "d")
	}
	if got := s.client("cat", "d"); !bytes.Equal([]byte(got), want["d"]) {
		t.Error("d differs")
	}
	zones := s.client("zones")
	if n := strings.Count(zones, "not-wp"); n != 16 || strings.Count(zones, "label") != 2 {
		t.Errorf("zones:\n%s", zones)
	}
	s.stop()
	s.check()
}

// TestKillUnderLoadOnConventionalZones is TestKillUnderLoad on a disk, and on a drive with zones of
// both kinds.
func TestKillUnderLoadOnConventionalZones(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for name, query := range map[string]string{
		"disk":  "size=512MiB&zone-size=8MiB&dialect=smr&conventional=64",
		"mixed": "size=1GiB&zone-size=8MiB&dialect=smr&conventional=8&max-open=4",
	} {
		t.Run(name, func(t *testing.T) {
			killUnderLoad(t, []string{"--device", "file:" + t.TempDir() + "/device?" + query}, rounds)
		})
	}
}
