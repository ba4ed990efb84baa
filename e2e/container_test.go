package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// containerTool returns a container engine that answers.
func containerTool(t *testing.T) string {
	t.Helper()
	why := "neither podman nor docker is installed"
	for _, tool := range []string{"podman", "docker"} {
		if _, err := exec.LookPath(tool); err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		out, err := exec.CommandContext(ctx, tool, "info").CombinedOutput()
		cancel()
		if err == nil {
			return tool
		}
		why = fmt.Sprintf("%s does not answer: %s", tool, lastLine(out))
	}
	leaveOut(t, "%s", why)
	return ""
}

// TestContainer runs the engine alone in an image made from nothing, on a data folder outside.
func TestContainer(t *testing.T) {
	tool := containerTool(t)
	dir := t.TempDir()
	program, err := os.ReadFile(programs.engine)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "engine"), program, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nCOPY engine /engine\nENTRYPOINT [\"/engine\"]\n"), 0o600))
	image := fmt.Sprintf("shingle-e2e-%d", os.Getpid())
	if out, err := exec.Command(tool, "build", "-t", image, dir).CombinedOutput(); err != nil {
		leaveOut(t, "%s cannot build here: %s", tool, lastLine(out))
	}
	defer func() { _ = exec.Command(tool, "rmi", "-f", image).Run() }()

	data := t.TempDir()
	serve := func() (*store, func()) {
		name := fmt.Sprintf("%s-%d", image, time.Now().UnixNano())
		// The host's network: nothing else to set up, and the engine stays on loopback.
		cmd := exec.Command(tool, "run", "--rm", "--name", name, "--network", "host", "-v", data+":/data",
			image, "--data", "/data/store", "--listen", "127.0.0.1:0")
		log := &record{}
		cmd.Stderr = log
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		line, _ := bufio.NewReader(out).ReadString('\n')
		stop := func() {
			_ = exec.Command(tool, "stop", "-t", "30", name).Run()
			_ = cmd.Wait()
		}
		m := servingLine.FindStringSubmatch(line)
		if m == nil {
			stop()
			leaveOut(t, "%s cannot run here: %s", tool, lastLine([]byte(log.String())))
		}
		return &store{t: t, addr: m[1]}, stop
	}
	s, stop := serve()
	put := s.clientCommand("put", "-q", "-", "hello")
	put.Stdin = strings.NewReader("from outside")
	out, err := put.CombinedOutput()
	stop()
	if err != nil {
		t.Fatalf("put: %v: %s", err, out)
	}
	s, stop = serve()
	defer stop()
	if got := s.client("cat", "hello"); got != "from outside" {
		t.Errorf("hello reads %q after a restart of the container", got)
	}
}
