package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// programs are the built binaries.
var programs struct{ dir, engine, client string }

// said is what a run prints at its end: what was skipped, and figures.
var said struct {
	sync.Mutex
	skipped, figures []string
}

// leaveOut skips t and has that counted and printed.
func leaveOut(t *testing.T, format string, a ...any) {
	t.Helper()
	reason := t.Name() + ": " + fmt.Sprintf(format, a...)
	said.Lock()
	said.skipped = append(said.skipped, reason)
	said.Unlock()
	t.Skip(reason)
}

// figure has a measured figure printed at the end of the run.
func figure(t *testing.T, format string, a ...any) {
	t.Helper()
	s := fmt.Sprintf(format, a...)
	t.Log(s)
	said.Lock()
	said.figures = append(said.figures, s)
	said.Unlock()
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shingle-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	for _, f := range said.figures {
		fmt.Println("e2e:", f)
	}
	if n := len(said.skipped); n > 0 {
		fmt.Printf("e2e: %d skipped: %s\n", n, strings.Join(said.skipped, "; "))
	} else {
		fmt.Println("e2e: 0 skipped")
	}
	return code
}

// build makes the programs as they are shipped: static.
func build(dir string) error {
	programs.dir = dir
	programs.engine, programs.client = filepath.Join(dir, "engine"), filepath.Join(dir, "client")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "../cmd/engine", "../cmd/client")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// environment is this process's, without what would configure the programs.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SHINGLE_") {
			env = append(env, v)
		}
	}
	return env
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
