package e2e

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// small is a device that is quickly made and copied.
const small = "size=64MiB&zone-size=1MiB&max-open=4&max-active=6"

func smallDevice(t *testing.T) (path string, flag []string) {
	path = filepath.Join(t.TempDir(), "device")
	return path, []string{"--device", "file:" + path + "?" + small}
}

// TestFirstStart makes a store with nothing but a folder, and finds it again.
func TestFirstStart(t *testing.T) {
	s := started(t)
	if !strings.HasSuffix(s.line, "data in "+s.data+" (new store, 16 GiB emulated ZNS device)") {
		t.Errorf("the first start says %q", s.line)
	}
	put := s.clientCommand("put", "-q", "-", "hello")
	put.Stdin = strings.NewReader("hello")
	must(t, put.Run())
	s.stop()
	s.start()
	if !strings.HasSuffix(s.line, "data in "+s.data+" (16 GiB emulated ZNS device)") {
		t.Errorf("the second start says %q", s.line)
	}
	if got := s.client("cat", "hello"); got != "hello" {
		t.Errorf("hello reads %q", got)
	}
	s.stop()
	s.check()
}

// TestFirstStartGoesOnAfterACrash leaves behind what a first start leaves that was killed at each
// of its steps, and starts again.
func TestFirstStartGoesOnAfterACrash(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(t *testing.T, s *store)
	}{
		{"folder made", func(t *testing.T, s *store) { must(t, os.Mkdir(s.data, 0o700)) }},
		{"device half made", func(t *testing.T, s *store) {
			must(t, os.Mkdir(s.data, 0o700))
			must(t, os.WriteFile(filepath.Join(s.data, "device.new"), make([]byte, 5000), 0o600))
		}},
		{"device formatted", func(t *testing.T, s *store) {
			if out, code := execute(t, programs.engine, "format", "--data", s.data); code != 0 {
				t.Fatalf("format exits with %d: %s", code, out)
			}
			must(t, os.Remove(filepath.Join(s.data, "metadata.db")))
		}},
		{"metadata half made", func(t *testing.T, s *store) {
			if out, code := execute(t, programs.engine, "format", "--data", s.data); code != 0 {
				t.Fatalf("format exits with %d: %s", code, out)
			}
			must(t, os.Rename(filepath.Join(s.data, "metadata.db"), filepath.Join(s.data, "metadata.db.new")))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			c.leave(t, s)
			s.start()
			if !strings.Contains(s.line, "new store") {
				t.Errorf("the engine says %q", s.line)
			}
			s.stop()
			s.check()
		})
	}
}

// TestKilledFirstStart kills first starts at any moment; the next one always serves.
func TestKilledFirstStart(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for i := range rounds {
		s := newStore(t)
		cmd := exec.Command(programs.engine, "--data", s.data, "--listen", s.addr)
		cmd.Env = environment()
		must(t, cmd.Start())
		time.Sleep(time.Duration(i*40/rounds) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		s.start()
		s.stop()
	}
}

// TestVariablesAndAdmin configures the engine through its environment.
func TestVariablesAndAdmin(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	cmd := exec.Command(programs.engine)
	cmd.Env = append(environment(), "SHINGLE_DATA="+data, "SHINGLE_LISTEN=127.0.0.1:0", "SHINGLE_ADMIN_LISTEN=127.0.0.1:0",
		"SHINGLE_COMPRESSION=none", "SHINGLE_NODELALLOC=1", "SHINGLE_LOG_LEVEL=debug")
	log := &record{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	s := &store{t: t, addr: servingLine.FindStringSubmatch(line)[1]}
	info := s.client("info", "--output", "json")
	for _, want := range []string{`"none"`, `"write.nodelalloc"`} {
		if !strings.Contains(info, want) {
			t.Errorf("info has no %s: %s", want, info)
		}
	}
	_, rest, ok := strings.Cut(log.String(), "admin pages on ")
	if !ok {
		t.Fatalf("where are the admin pages? %s", log)
	}
	admin, _, _ := strings.Cut(rest, `"`)
	for path, want := range map[string]string{"/healthz": "OK", "/readyz": "SERVING", "/debug/pprof/cmdline": "engine"} {
		r, err := http.Get("http://" + admin + path)
		must(t, err)
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		must(t, err)
		if r.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s answers %d: %s", path, r.StatusCode, b)
		}
	}
	must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Errorf("after an interrupt: %v\n%s", err, log)
	}
}
