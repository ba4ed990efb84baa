package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	runtimeSearch = 3 * time.Minute  // for finding a runtime that works, all tries together
	runtimeAnswer = 90 * time.Second // for one call of one
)

// containers is a container runtime with what makes it work on this machine, and the image that
// was built with it.
type containers struct {
	t       *testing.T
	program []string // and its flags before the verb
	run     []string // flags of run
	image   string
}

// findContainers returns the first runtime that builds the image and runs it, or skips t with
// what each said.
//
// Tried are podman as it is configured, podman with runc (which runs where crun wants a cgroup
// tree it may not have), podman with plain copies for storage (where there is no overlay), and
// docker. Each runs the image as it comes, and then with
//
//   - --ulimit within this process's own hard limits: podman asks for more by default, which is
//     refused where CAP_SYS_RESOURCE is held back;
//   - --cgroups=disabled, where no cgroup can be made.
func findContainers(t *testing.T) *containers {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runtimeSearch)
	defer cancel()
	files := t.TempDir()
	program, err := os.ReadFile(programs.engine)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(files, "engine"), program, 0o755))
	must(t, os.WriteFile(filepath.Join(files, "Dockerfile"), []byte("FROM scratch\nCOPY engine /engine\nENTRYPOINT [\"/engine\"]\n"), 0o600))

	own := t.TempDir()
	limits := hardLimits()
	var why []string
	for _, program := range [][]string{
		{"podman"},
		{"podman", "--runtime", "runc"},
		{"podman", "--root", filepath.Join(own, "root"), "--runroot", filepath.Join(own, "run"), "--storage-driver", "vfs"},
		{"docker"},
	} {
		c := &containers{t: t, program: program, image: fmt.Sprintf("shingle-e2e-%d", os.Getpid())}
		because := func(out string, err error) {
			if !slices.Contains(why, reason(program[0], out, err)) {
				why = append(why, reason(program[0], out, err))
			}
		}
		if _, err := exec.LookPath(program[0]); err != nil {
			because("not installed", nil)
			continue
		}
		if out, err := c.try(ctx, "info"); err != nil {
			because(out, err)
			continue
		}
		if out, err := c.try(ctx, "build", "-t", c.image, files); err != nil {
			because(out, err)
			continue
		}
		t.Cleanup(func() { c.remove("rmi", "-f", c.image) })
		for i, run := range [][]string{
			{},
			limits,
			{"--cgroups=disabled"},
			append([]string{"--cgroups=disabled"}, limits...),
		} {
			// The host's network: nothing to set up, and the engine stays on loopback.
			c.run = append([]string{"run", "--network=host"}, run...)
			out, err := c.try(ctx, slices.Concat(c.run, []string{"--rm", c.image, "version"})...)
			if err == nil && strings.HasPrefix(out, "shingle engine ") {
				t.Logf("with %s %s", strings.Join(c.program, " "), strings.Join(c.run, " "))
				return c
			}
			if i == 0 { // what it says of the image as it comes tells most
				because(out, err)
			}
		}
	}
	leaveOut(t, "no container runtime works here: %s", strings.Join(why, "; "))
	return nil
}

// reason is what a runtime said last, in one line.
func reason(program, out string, err error) string {
	if last := strings.TrimSpace(lastLine([]byte(out))); last != "" {
		return program + ": " + last
	}
	return fmt.Sprintf("%s: %v", program, err)
}

// hardLimits are flags of run that ask for no more than this process may have. They are empty
// where the kernel does not tell.
func hardLimits() []string {
	// Enough for an engine, and under what podman lowers itself to before it starts anything, the
	// kernel's pid_max of 32768.
	const most = 16384
	b, _ := os.ReadFile("/proc/self/limits")
	var flags []string
	for line := range strings.Lines(string(b)) {
		for name, flag := range map[string]string{"Max open files": "nofile", "Max processes": "nproc"} {
			rest, ok := strings.CutPrefix(line, name)
			f := strings.Fields(rest)
			if !ok || len(f) < 2 {
				continue
			}
			hard, err := strconv.Atoi(f[1])
			if err != nil || hard > most { // "unlimited" is no number
				hard = most
			}
			flags = append(flags, fmt.Sprintf("--ulimit=%s=%d:%d", flag, hard, hard))
		}
	}
	return flags
}

func (c *containers) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.program[0], slices.Concat(c.program[1:], args)...)
	// What a runtime leaves running may keep its output open.
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// try calls the runtime and returns all it prints.
func (c *containers) try(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeAnswer)
	defer cancel()
	out, err := c.command(ctx, args...).CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer: %w", ctx.Err())
	}
	return string(out), err
}

// do is try for what must work.
func (c *containers) do(args ...string) {
	c.t.Helper()
	if out, err := c.try(c.t.Context(), args...); err != nil {
		c.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// remove is try at the end of a test, when its context is over.
func (c *containers) remove(args ...string) {
	if out, err := c.try(context.Background(), args...); err != nil {
		c.t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestContainer runs the engine alone in an image made from nothing, its data on a volume. What
// was synced is there after a kill -9 of the container, and after an orderly stop.
func TestContainer(t *testing.T) {
	c := findContainers(t)
	s := newStore(t)
	volume, name := c.image+"-data", c.image+"-engine"
	c.do("volume", "create", volume)
	t.Cleanup(func() { c.remove("volume", "rm", volume) })
	mount := append(c.run, "-v", volume+":/data")

	t.Cleanup(func() { c.remove("rm", "-f", name) })
	s.launch(c.command(t.Context(), slices.Concat(mount,
		[]string{"--name", name, c.image, "--data", "/data/store", "--listen", "127.0.0.1:0"})...))

	big := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(big)
	file := filepath.Join(t.TempDir(), "big")
	must(t, os.WriteFile(file, big, 0o600))
	s.client("put", "-q", file, "big")
	put := s.clientCommand("put", "-q", "-", "hello")
	put.Stdin = strings.NewReader("from outside")
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("put: %v: %s", err, out)
	}

	expect := func(after string) {
		t.Helper()
		if got := s.client("cat", "hello"); got != "from outside" {
			t.Errorf("hello reads %q after %s", got, after)
		}
		if got := s.client("cat", "big"); !bytes.Equal([]byte(got), big) {
			t.Errorf("big reads %d other bytes after %s", len(got), after)
		}
	}
	again := func() { s.launch(c.command(t.Context(), "start", "--attach", name)) }

	c.do("kill", "-s", "KILL", name)
	if err := s.exited(); err == nil {
		t.Error("a killed container exits with 0")
	}
	again()
	expect("kill -9")

	c.do("stop", "-t", "60", name)
	if err := s.exited(); err != nil {
		t.Errorf("a stopped container: %v", err)
	}
	again()
	expect("a stop")
	c.do("stop", "-t", "60", name)
	must(t, s.exited())

	c.do(slices.Concat(mount, []string{"--rm", c.image, "check", "--read-data", "--data", "/data/store"})...)
}
