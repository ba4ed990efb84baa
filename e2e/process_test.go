package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
)

// startTime bounds the wait for an engine to serve, on a machine that has much else to do.
const startTime = 60 * time.Second

// store is a data folder and the engine process that serves it, if any.
type store struct {
	t    testing.TB
	data string
	args []string // of every start, besides --data and --listen
	addr string   // kept over restarts, so that clients find it again

	cmd  *exec.Cmd
	exit chan error // what Wait answered
	line string     // that said it serves
	log  *record
}

// record keeps what a process says. It may be written and read at the same time.
type record struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// newStore returns a store in an empty folder, not started yet.
func newStore(t testing.TB, args ...string) *store {
	t.Helper()
	s := &store{t: t, data: filepath.Join(t.TempDir(), "data"), args: args, addr: freeAddress(t), log: &record{}}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
		if t.Failed() {
			t.Logf("the engine said:\n%s", s.log)
		}
	})
	return s
}

// nextPort is where freeAddress looks next.
var nextPort atomic.Uint32

func init() { nextPort.Store(20_000 + uint32(os.Getpid())%8_000) }

// freeAddress returns an address that nobody listens on, and that no connection gets by chance while
// the engine is down between two starts: systems take the ports of those from 32,768 on.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 4_000 {
		addr := fmt.Sprintf("127.0.0.1:%d", nextPort.Add(1))
		if l, err := net.Listen("tcp", addr); err == nil {
			must(t, l.Close())
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}

// started is newStore and start.
func started(t testing.TB, args ...string) *store {
	t.Helper()
	s := newStore(t, args...)
	s.start()
	return s
}

var servingLine = regexp.MustCompile(`^serving on (\S+), data in `)

// start runs the engine and waits until it serves.
func (s *store) start() {
	s.t.Helper()
	args := append([]string{"--data", s.data, "--listen", s.addr}, s.args...)
	s.launch(exec.Command(programs.engine, args...))
}

// launch runs cmd, which is the engine or what runs it, and waits until it serves.
func (s *store) launch(cmd *exec.Cmd) {
	s.t.Helper()
	cmd.Env = environment()
	cmd.Stderr = s.log
	out, err := cmd.StdoutPipe()
	must(s.t, err)
	must(s.t, cmd.Start())
	lines := make(chan string, 1)
	exit := make(chan error, 1)
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadString('\n')
		lines <- strings.TrimSpace(line)
		_, _ = io.Copy(s.log, r)
		exit <- cmd.Wait()
	}()
	s.cmd, s.exit = cmd, exit
	select {
	case s.line = <-lines:
	case <-time.After(startTime):
		s.t.Fatalf("the engine does not serve after %v", startTime)
	}
	m := servingLine.FindStringSubmatch(s.line)
	if m == nil {
		s.t.Fatalf("the engine began with %q", s.line)
	}
	s.addr = m[1]
}

// kill ends the engine as kill -9 does.
func (s *store) kill() {
	s.t.Helper()
	_ = s.cmd.Process.Kill()
	<-s.exit
	s.cmd = nil
}

// restart is what follows a crash.
func (s *store) restart() {
	s.t.Helper()
	s.kill()
	s.start()
}

// stop ends the engine in order and expects that to work.
func (s *store) stop() {
	s.t.Helper()
	must(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.ended()
}

// ended waits for the engine to exit with 0.
func (s *store) ended() {
	s.t.Helper()
	if err := s.exited(); err != nil {
		s.t.Fatalf("the engine stopped with: %v", err)
	}
}

// exited waits for the engine to exit and returns how it did.
func (s *store) exited() error {
	s.t.Helper()
	select {
	case err := <-s.exit:
		s.cmd = nil
		return err
	case <-time.After(startTime):
		s.t.Fatal("the engine does not stop")
		return nil
	}
}

// check runs engine check with all data read and expects nothing to be found.
func (s *store) check() {
	s.t.Helper()
	args := append([]string{"check", "--read-data", "--data", s.data}, deviceFlags(s.args)...)
	if out, code := execute(s.t, programs.engine, args...); code != 0 {
		s.t.Fatalf("engine check exits with %d:\n%s", code, out)
	}
}

// deviceFlags are each --device with its value among args.
func deviceFlags(args []string) (flags []string) {
	for i, a := range args {
		if a == "--device" {
			flags = append(flags, args[i:i+2]...)
		}
	}
	return flags
}

// client runs the CLI against the engine and returns what it prints.
func (s *store) client(args ...string) string {
	s.t.Helper()
	cmd := s.clientCommand(args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("client %s: %v\n%s", strings.Join(args, " "), err, &log)
	}
	return out.String()
}

func (s *store) clientCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(programs.client, args...)
	cmd.Env = append(environment(), "SHINGLE_ADDR="+s.addr)
	return cmd
}

// dial connects with the client library.
func (s *store) dial(o ...client.Option) *client.Client {
	s.t.Helper()
	c, err := client.Dial(s.addr, o...)
	must(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// usage is a part of what df answers.
type usage struct {
	Used     int64 `json:"used_bytes"`
	Stored   int64 `json:"stored_bytes"`
	Inline   int64 `json:"inline_bytes"`
	Logical  int64 `json:"logical_bytes"`
	Files    int64 `json:"files"`
	Metadata int64 `json:"metadata_bytes"`
	Dirty    int64 `json:"dirty_bytes"`
}

func (s *store) df() usage {
	s.t.Helper()
	var u usage
	must(s.t, json.Unmarshal([]byte(s.client("df", "--output", "json")), &u))
	return u
}

// execute runs a program and returns all it prints and its exit status.
func execute(t testing.TB, name string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
