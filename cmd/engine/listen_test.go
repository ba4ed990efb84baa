package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// socketFolder is a folder whose path is short enough for a socket in it.
func socketFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestServeOnASocket(t *testing.T) {
	data, device := layout(t)
	path := filepath.Join(socketFolder(t), "engine.sock")
	flags := []string{"--data", data, "--device", "file:" + device + smallQuery, "--listen", "unix://" + path}
	s := startServing(t, flags...)
	if s.addr != "unix://"+path {
		t.Errorf("it says that it serves on %s", s.addr)
	}
	r, err := healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", r, err)
	}
	if code, out, err := invoke(nil, "healthcheck", "--listen", "unix://"+path); code != exitOK || out != "SERVING\n" {
		t.Errorf("healthcheck exits with %d: %s%s", code, out, err)
	}
	if code, _, err := invoke(nil, flags...); code != exitError || !strings.Contains(err, "another program listens on unix://"+path+" already; stop it or choose another --listen") {
		t.Errorf("a second engine exits with %d: %s", code, err)
	}
	if strings.Contains(s.said(), "WARN") {
		t.Errorf("a run on a socket warns: %s", s.said())
	}
	s.signal()
	s.ended(exitOK)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// leaveSocket leaves a socket at path as a crash does.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must(t, err)
	lis.SetUnlinkOnClose(false)
	must(t, lis.Close())
}

func TestASocketLeftBehindIsReplaced(t *testing.T) {
	path := filepath.Join(socketFolder(t), "s")
	leaveSocket(t, path)
	lis, err := listen("--listen", "unix://"+path)
	must(t, err)
	must(t, lis.Close())
}

// Of engines that start at once over a socket left behind, one gets it, and keeps it.
func TestOneGetsTheSocket(t *testing.T) {
	path := filepath.Join(socketFolder(t), "s")
	for range 50 {
		leaveSocket(t, path)
		var wg sync.WaitGroup
		got := make(chan net.Listener, 4)
		for range cap(got) {
			wg.Go(func() {
				lis, err := listen("--listen", "unix://"+path)
				if err == nil {
					got <- lis
				} else if errdefs.ReasonOf(err) != errdefs.ReasonInUse {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(got) != 1 {
			t.Fatalf("%d listen on one socket", len(got))
		}
		conn, err := net.Dial("unix", path)
		must(t, err)
		must(t, conn.Close())
		must(t, (<-got).Close())
	}
}

func TestSocketsThatCannotBe(t *testing.T) {
	dir := socketFolder(t)
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, []byte("precious"), 0o600))
	for path, say := range map[string]string{
		file:                           "there is a file of that name, and it is no socket",
		filepath.Join(dir, "none/s"):   "no such file or directory",
		filepath.Join(file, "below/s"): "not a directory",
	} {
		_, err := listen("--admin-listen", "unix://"+path)
		if err == nil || !strings.HasPrefix(err.Error(), "cannot listen on unix://"+path+", choose another --admin-listen: ") || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v, want %s", path, err, say)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file reads %q, %v", b, err)
	}
}
