package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/api/client"
)

// containerVolume: what was synced is on the volume after a kill -9 of the container, and after an
// orderly stop. The engine is nobody in particular and has no root to write to; it says how it is.
func containerVolume(t *testing.T, c *containers) {
	p := c.contain(t, nil)
	status, err := os.ReadFile("/proc/" + p.process() + "/status")
	must(t, err)
	for _, want := range []string{"Uid:\t65532\t65532", "Gid:\t65532\t65532", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), "\n"+want) {
			t.Errorf("no %q in what the process is:\n%s", want, status)
		}
	}
	if out := c.do(t, "exec", p.name, "/engine", "healthcheck"); out != "SERVING\n" {
		t.Errorf("the health check says %q", out)
	}
	out, err := c.try(t.Context(), slices.Concat(p.hardened, []string{"--rm", c.image, "--data", "/elsewhere", "--listen", "127.0.0.1:0"})...)
	if err == nil || !strings.Contains(out, "read-only file system") {
		t.Errorf("a data folder that is not on the volume: %v, %s", err, out)
	}

	big := make([]byte, 8<<20)
	_, _ = (&noise{}).Read(big)
	file := filepath.Join(t.TempDir(), "big")
	must(t, os.WriteFile(file, big, 0o600))
	p.client("put", "-q", file, "big")
	put := p.clientCommand("put", "-q", "-", "hello")
	put.Stdin = strings.NewReader("from outside")
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("put: %v: %s", err, out)
	}
	expect := func(after string) {
		t.Helper()
		if got := c.do(t, "exec", "-e", "SHINGLE_ADDR="+p.addr, p.name, "/client", "cat", "hello"); got != "from outside" {
			t.Errorf("hello reads %q after %s", got, after)
		}
		if got := p.client("cat", "big"); !bytes.Equal([]byte(got), big) {
			t.Errorf("big reads %d other bytes after %s", len(got), after)
		}
	}
	c.do(t, "kill", "-s", "KILL", p.name)
	if err := p.exited(); err == nil {
		t.Error("a killed container exits with 0")
	}
	p.again()
	expect("kill -9")
	p.end()
	p.again()
	expect("a stop")
	p.end()
	c.do(t, slices.Concat(p.hardened, []string{"--rm", c.image, "check", "--read-data"})...)
}

// containerDrain: what stops a container stops the engine in order.
func containerDrain(t *testing.T, c *containers) {
	p := c.contain(t, nil, "--drain-timeout", "10s")
	ended := make(chan string, 1)
	drainUnderLoad(t, p.store, func() {
		go func() {
			out, err := c.try(context.Background(), "stop", "-t", "60", p.name)
			ended <- fmt.Sprint(out, err)
		}()
	}, func() {
		t.Logf("stop: %s", <-ended)
		p.again()
	})
	p.end()
}

// containerMemory: an engine whose limits are told to fit into the container's memory is not ended for
// it, whatever streams through; what its device lies on may be cached, and is dropped.
func containerMemory(t *testing.T, c *containers) {
	const limit = 320 << 20
	if strings.Contains(strings.Join(c.run, " "), "--cgroups=disabled") {
		leaveOut(t, "no cgroup can be made here, so there is no memory limit to keep")
	}
	p := c.contain(t, []string{"--memory=320m"}, "--dirty-limit", "64MiB", "--read-limit", "32MiB")
	if got, err := memoryLimit(p.process()); err != nil {
		leaveOut(t, "this system does not tell a container's memory limit: %v", err)
	} else if got != limit {
		leaveOut(t, "the runtime does not set the memory limit: it is %d", got)
	}
	size := int64(384 << 20) // more than the container has
	if testing.Short() {
		size = 128 << 20
	}
	s := p.dial()
	w, err := s.Write(t.Context(), "noise", client.WriteOptions{Sync: true})
	must(t, err)
	_, err = io.Copy(w, io.LimitReader(&noise{}, size))
	must(t, err)
	must(t, w.Close())
	// Readers that take nothing, and one that takes all.
	for range 64 {
		r, err := s.Read(t.Context(), "noise", client.ReadOptions{})
		must(t, err)
		defer r.Close()
	}
	r, err := s.Read(t.Context(), "noise", client.ReadOptions{})
	must(t, err)
	defer r.Close()
	sameBytes(t, r, io.LimitReader(&noise{}, size))
	if got := strings.TrimSpace(c.do(t, "inspect", "--format", "{{.State.OOMKilled}} {{.State.Running}}", p.name)); got != "false true" {
		t.Errorf("killed for its memory, and running: %s", got)
	}
	id, err := strconv.Atoi(p.process())
	must(t, err)
	anon, err := anonymous(id)
	must(t, err)
	figure(t, "%d MiB through a container of %d MiB: %d MiB of anonymous memory at the end", size>>20, limit>>20, anon>>20)
	p.end()
}

// memoryLimit returns the bytes that the cgroup of a process may use: of the unified tree, or the
// memory one of several.
func memoryLimit(pid string) (int64, error) {
	b, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, name := range map[string][]string{
			"":       {filepath.Join("/sys/fs/cgroup", f[2], "memory.max")},
			"memory": {filepath.Join("/sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes")},
		}[f[1]] {
			if b, err := os.ReadFile(name); err == nil {
				return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("no memory limit of process %s is shown", pid)
}
