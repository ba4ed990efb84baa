package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocket serves on a unix socket, which is left behind by a kill -9 and taken over by the next run.
func TestSocket(t *testing.T) {
	s := newStore(t)
	dir, err := os.MkdirTemp("", "shingle") // the path of a socket must be short
	must(t, err)
	defer os.RemoveAll(dir)
	s.addr = "unix://" + filepath.Join(dir, "engine.sock")
	s.start()
	put := s.clientCommand("put", "-q", "-", "hello")
	put.Stdin = strings.NewReader("through a socket")
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("put: %v: %s", err, out)
	}
	s.restart()
	if got := s.client("cat", "hello"); got != "through a socket" {
		t.Errorf("hello reads %q", got)
	}
	if out, code := execute(t, programs.engine, "healthcheck", "--listen", s.addr); code != 0 || out != "SERVING\n" {
		t.Errorf("the health check exits with %d: %s", code, out)
	}
	s.stop()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
