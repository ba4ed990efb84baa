package e2e

import (
	"context"
	"fmt"
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
	program []string // and its flags before the verb
	run     []string // flags of run
	image   string
}

// findContainers returns the first runtime that builds the image and runs it, or what each said.
//
// The image is deploy/Dockerfile's, with the programs of this run in place of its first stage,
// which would fetch a toolchain.
//
// Tried are podman as it is configured, podman with runc (which runs where crun wants a cgroup
// tree it may not have), podman with plain copies for storage (where there is no overlay), and
// docker. Each runs the image as it comes, and then with
//
//   - --ulimit within this process's own hard limits: podman asks for more by default, which is
//     refused where CAP_SYS_RESOURCE is held back;
//   - --cgroups=disabled, where no cgroup can be made.
func findContainers(t *testing.T) (*containers, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runtimeSearch)
	defer cancel()
	built := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(built, "out", "bin"), 0o755))
	must(t, os.MkdirAll(filepath.Join(built, "out", "data"), 0o755))
	for _, name := range []string{programs.engine, programs.client} {
		program, err := os.ReadFile(name)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(built, "out", "bin", filepath.Base(name)), program, 0o755))
	}

	own := t.TempDir()
	limits := hardLimits()
	var why []string
	for _, program := range [][]string{
		{"podman"},
		{"podman", "--runtime", "runc"},
		{"podman", "--root", filepath.Join(own, "root"), "--runroot", filepath.Join(own, "run"), "--storage-driver", "vfs"},
		{"docker"},
	} {
		c := &containers{program: program, image: fmt.Sprintf("shingle-e2e-%d", os.Getpid())}
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
		if out, err := c.try(ctx, "build", "--build-context", "build="+built, "-t", c.image, "-f", "../deploy/Dockerfile", built); err != nil {
			because(out, err)
			continue
		}
		t.Cleanup(func() { c.remove(t, "rmi", "-f", c.image) })
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
				return c, ""
			}
			if i == 0 { // what it says of the image as it comes tells most
				because(out, err)
			}
		}
	}
	return nil, strings.Join(why, "; ")
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
func (c *containers) do(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t.Context(), args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// remove is try at the end of a test, when its context is over.
func (c *containers) remove(t *testing.T, args ...string) {
	if out, err := c.try(context.Background(), args...); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// contained is a store on a volume and the container that serves it.
type contained struct {
	*store
	c        *containers
	t        *testing.T
	name     string
	hardened []string // flags of run, for every container of the image
}

// contain starts the image with an empty volume, as deploy/compose.yaml does: its root cannot be
// written to, and it has no capabilities. flags are more flags of run.
func (c *containers) contain(t *testing.T, flags []string, args ...string) *contained {
	t.Helper()
	p := &contained{store: newStore(t), c: c, t: t, name: fmt.Sprintf("%s-%s", c.image, strings.ToLower(filepath.Base(t.Name())))}
	volume := p.name + "-data"
	c.do(t, "volume", "create", volume)
	t.Cleanup(func() { c.remove(t, "volume", "rm", volume) })
	t.Cleanup(func() { c.remove(t, "rm", "-f", p.name) })
	p.hardened = slices.Concat(c.run, []string{
		"-v", volume + ":/data", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "-e", "SHINGLE_LISTEN=" + p.addr,
	})
	p.launch(c.command(context.Background(), slices.Concat(p.hardened, flags, []string{"--name", p.name, c.image}, args)...))
	return p
}

// again starts the container again.
func (p *contained) again() {
	p.t.Helper()
	p.launch(p.c.command(context.Background(), "start", "--attach", p.name))
}

// end stops the container in order.
func (p *contained) end() {
	p.t.Helper()
	p.c.do(p.t, "stop", "-t", "60", p.name)
	if err := p.exited(); err != nil {
		p.t.Errorf("a stopped container: %v", err)
	}
}

// process returns the id that the engine has on the host.
func (p *contained) process() string {
	p.t.Helper()
	return strings.TrimSpace(p.c.do(p.t, "inspect", "--format", "{{.State.Pid}}", p.name))
}

// TestContainer runs the engine in the image that is shipped, made from nothing.
func TestContainer(t *testing.T) {
	c, why := findContainers(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *containers)
	}{
		{"Volume", containerVolume}, {"Drain", containerDrain}, {"Memory", containerMemory},
	} {
		t.Run(part.name, func(t *testing.T) {
			if c == nil {
				leaveOut(t, "no container runtime works here: %s", why)
			}
			part.test(t, c)
		})
	}
}
