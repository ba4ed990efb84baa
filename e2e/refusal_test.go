package e2e

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copyFile copies a file without reading its holes' worth into memory; the devices here are small.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	must(t, err)
	defer in.Close()
	out, err := os.Create(to)
	must(t, err)
	_, err = io.Copy(out, in)
	must(t, err)
	must(t, out.Close())
}

// TestRefusals starts the engine where it must not serve: one sentence says what is wrong and
// what to do, the exit status is 1, and nothing was changed: put right again, the store serves.
func TestRefusals(t *testing.T) {
	path, flag := smallDevice(t)
	s := newStore(t, flag...)
	meta := filepath.Join(s.data, "metadata.db")
	s.start()
	s.stop()
	old := t.TempDir()
	oldMeta, oldDevice := filepath.Join(old, "meta"), filepath.Join(old, "device")
	copyFile(t, meta, oldMeta)
	copyFile(t, path, oldDevice)
	for range 2 { // two starts on, the copies are stale
		s.start()
		s.stop()
	}
	otherPath, otherFlag := smallDevice(t)
	other := newStore(t, otherFlag...)
	other.start()
	other.stop()

	busy, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer busy.Close()
	foreign := filepath.Join(t.TempDir(), "foreign")
	must(t, os.WriteFile(foreign, make([]byte, 1<<20), 0o600))
	shelf := filepath.Join(t.TempDir(), "shelf")
	aside := func(p string) (undo func()) {
		must(t, os.Rename(p, shelf))
		return func() { must(t, os.Rename(shelf, p)) }
	}
	replaced := func(p, by string) (undo func()) {
		undo = aside(p)
		copyFile(t, by, p)
		return undo
	}

	for _, c := range []struct {
		name  string
		args  []string // instead of the store's own --data and --device
		upset func() (undo func())
		code  int
		say   []string
	}{
		{name: "port taken", args: []string{"--data", s.data, "--listen", busy.Addr().String()},
			code: 1, say: []string{"another program listens on " + busy.Addr().String(), "--listen"}},
		{name: "foreign device", args: []string{"--data", s.data, "--device", "file:" + foreign},
			code: 1, say: []string{foreign + " is not a Shingle device file", "choose another --device"}},
		{name: "foreign device, new folder", args: []string{"--data", t.TempDir(), "--device", "file:" + foreign},
			code: 1, say: []string{foreign + " is not a Shingle device file"}},
		{name: "another store's device", args: []string{"--data", s.data, "--device", "file:" + otherPath},
			code: 1, say: []string{"the device belongs to store", "belong together"}},
		{name: "a store's device, new folder", args: []string{"--data", t.TempDir(), "--device", "file:" + path},
			code: 1, say: []string{path + " holds store", "metadata file", "is missing", "--force"}},
		{name: "metadata missing", upset: func() func() { return aside(meta) },
			code: 1, say: []string{meta + " is missing", "put that back"}},
		{name: "device missing", upset: func() func() { return aside(path) },
			code: 1, say: []string{path + " is missing", "put it back"}},
		{name: "device missing, no size", args: []string{"--data", t.TempDir(), "--device", "file:" + shelf},
			code: 1, say: []string{"there is no device file " + shelf, "give its size"}},
		{name: "stale device", upset: func() func() { return replaced(path, oldDevice) },
			code: 1, say: []string{"the device is stale", "old copy of the device: put the latest one back"}},
		{name: "stale metadata", upset: func() func() { return replaced(meta, oldMeta) },
			code: 1, say: []string{"the metadata is stale", "old copy of the metadata: put the latest one back"}},
		{name: "metadata is something else", upset: func() func() { return replaced(meta, foreign) },
			code: 1, say: []string{meta}},
		{name: "other geometry", args: []string{"--data", s.data, "--device", "file:" + path + "?zone-size=2MiB"},
			code: 1, say: []string{"zone-size=2MiB was asked for, but the device has 1MiB"}},
		{name: "too small", args: []string{"--data", t.TempDir(), "--device", "file:" + shelf + "?size=5MiB&zone-size=1MiB"},
			code: 1, say: []string{"device " + shelf + " cannot be used: it has 5 sequential zones; at least 6 are needed"}},
		{name: "a disk too small", args: []string{"--data", t.TempDir(), "--device", "file:" + shelf + "?size=2MiB&zone-size=1MiB&conventional=2&dialect=smr"},
			code: 1, say: []string{"device " + shelf + " cannot be used: it has 2 zones, all of them conventional; at least 3 are needed"}},
		{name: "unknown key", args: []string{"--data", s.data, "--device", "file:" + path + "?zonesize=2MiB"},
			code: 2, say: []string{`"zonesize" is no key of a device`, "zone-size"}},
		{name: "bad value", args: []string{"--data", s.data, "--dirty-limit", "1kB"}, code: 2, say: []string{"--dirty-limit", "KiB"}},
		{name: "format over a store", args: append([]string{"format", "--data", s.data}, flag...),
			code: 1, say: []string{s.data + " holds a store already", "--force"}},
		{name: "check without a store", args: []string{"check", "--data", shelf}, code: 1, say: []string{"there is no data folder " + shelf}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := c.args
			if args == nil {
				args = append([]string{"--data", s.data}, flag...)
			}
			if c.upset != nil {
				defer c.upset()()
			}
			if len(args) > 0 && args[0] != "format" && args[0] != "check" && !contains(args, "--listen") {
				args = append(args, "--listen", "127.0.0.1:0")
			}
			refused(t, c.code, c.say, args...)
		})
	}

	s.start() // as it was
	t.Run("a second engine", func(t *testing.T) {
		refused(t, 1, []string{"data folder " + s.data + " is in use by another engine", "choose another --data"},
			append([]string{"--data", s.data, "--listen", "127.0.0.1:0"}, flag...)...)
	})
	t.Run("a second engine on the device", func(t *testing.T) {
		refused(t, 1, []string{"device file " + path + " is in use by another engine"},
			append([]string{"--data", other.data, "--listen", "127.0.0.1:0"}, flag...)...)
	})
	for _, verb := range [][]string{{"check"}, {"format", "--force"}} {
		t.Run(verb[0]+" while it serves", func(t *testing.T) {
			refused(t, 1, []string{"is in use by another engine"}, append(append(verb, "--data", s.data), flag...)...)
		})
	}
	s.stop()
	s.check()
}

func contains(args []string, s string) bool {
	for _, a := range args {
		if a == s {
			return true
		}
	}
	return false
}

// refused runs the engine and expects one line on stderr that says all of say.
func refused(t *testing.T, code int, say []string, args ...string) {
	t.Helper()
	out, got := execute(t, programs.engine, args...)
	if got != code {
		t.Errorf("exit status %d, want %d", got, code)
	}
	if strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "engine: ") {
		t.Errorf("not one sentence: %q", out)
	}
	for _, s := range say {
		if !strings.Contains(out, s) {
			t.Errorf("%q does not say %q", out, s)
		}
	}
	t.Log(strings.TrimSpace(out))
}

// TestFormatByForce destroys a store only when told to.
func TestFormatByForce(t *testing.T) {
	path, flag := smallDevice(t)
	s := newStore(t, flag...)
	s.start()
	put := s.clientCommand("put", "-q", "-", "gone")
	put.Stdin = strings.NewReader("soon")
	must(t, put.Run())
	s.stop()
	for _, device := range [][]string{flag, {"--device", "file:" + path}} {
		out, code := execute(t, programs.engine, append([]string{"format", "--force", "--compression", "none", "--data", s.data}, device...)...)
		if code != 0 || !strings.HasPrefix(out, "formatted "+s.data+" (64 MiB emulated ZNS device): ") {
			t.Fatalf("format answers %d: %s", code, out)
		}
		s.check()
		s.start()
		if u := s.df(); u.Files != 0 {
			t.Errorf("%d files are left", u.Files)
		}
		if info := s.client("info"); !strings.Contains(info, "compression: none") {
			t.Errorf("%s", info)
		}
		s.stop()
	}
}

// TestCheckFindsDamage flips a byte of stored data: check says which file, and exits with 4.
func TestCheckFindsDamage(t *testing.T) {
	path, flag := smallDevice(t)
	s := newStore(t, flag...)
	s.start()
	marker := strings.Repeat("find this text in the device. ", 300)
	w := s.clientCommand("put", "-q", "-", "damaged")
	w.Stdin = io.MultiReader(io.LimitReader(&noise{}, 1<<20), strings.NewReader(marker))
	must(t, w.Run())
	s.stop()
	s.check()
	first := make([]byte, 4096)
	_, _ = (&noise{}).Read(first)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	all, err := io.ReadAll(f)
	must(t, err)
	at := strings.Index(string(all), string(first))
	if at < 0 {
		t.Fatal("the noise is not on the device as it is")
	}
	_, err = f.WriteAt([]byte{first[100] ^ 1}, int64(at)+100)
	must(t, err)
	out, code := execute(t, programs.engine, append([]string{"check", "--read-data", "--data", s.data}, flag...)...)
	if code != 4 || !strings.Contains(out, "damaged") || !strings.Contains(out, "1 problem found") {
		t.Errorf("check exits with %d: %s", code, out)
	}
	s.start()
	get := s.clientCommand("cat", "damaged")
	if err := get.Run(); get.ProcessState.ExitCode() != 4 {
		t.Errorf("reading damaged bytes: %v", err)
	}
}
