package e2e

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// shell runs the CLI with standard input; it must exit with code. It returns what was printed, errors last.
func (s *store) shell(code int, stdin string, args ...string) string {
	s.t.Helper()
	cmd := s.clientCommand(args...)
	var out, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &log
	err := cmd.Run()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		s.t.Fatalf("client %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, code, &out, &log)
	}
	return out.String() + log.String()
}

// TestEditsSurviveKill: what write --sync, truncate and punch have done is there after kill -9, and verify
// and sum say the same of it as of a copy here that was changed alike.
func TestEditsSurviveKill(t *testing.T) {
	s := started(t)
	content := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(content)
	dir := t.TempDir()
	path := filepath.Join(dir, "d", "a")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, content, 0o640))
	must(t, os.Mkdir(filepath.Join(dir, "d", "empty"), 0o750))
	when := time.Unix(1_000_000_000, 5)
	must(t, os.Chtimes(filepath.Join(dir, "d", "empty"), when, when))
	s.shell(0, "", "put", "-q", "-r", filepath.Join(dir, "d"), "d")
	s.shell(0, "", "verify", filepath.Join(dir, "d"), "d")

	s.shell(0, "in the middle", "write", "--sync", "--offset", "1M", "d/a")
	s.shell(0, "", "punch", "-o", "100", "-l", "64K", "d/a")
	s.shell(0, "", "truncate", "-s", "2500000", "d/a")
	s.shell(0, "", "write", "--sync", "d/new")
	s.restart()

	if out := s.shell(1, "", "verify", filepath.Join(dir, "d", "a"), "d/a"); !strings.Contains(out, "d/a: has 3145728 bytes here and 2500000 in the store\n") {
		t.Errorf("says %q", out)
	}
	copy(content[1<<20:], "in the middle")
	clear(content[100 : 100+64<<10])
	must(t, os.WriteFile(path, content[:2500000], 0o640))
	if out := s.shell(1, "", "verify", filepath.Join(dir, "d"), "d"); !strings.Contains(out, "d/new: the file is not in ") {
		t.Errorf("says %q", out)
	}
	s.shell(0, "", "rm", "d/new")
	if out := s.shell(0, "", "verify", filepath.Join(dir, "d"), "d"); out != "equal: 1 file, 2.38 MiB\n" {
		t.Errorf("says %q", out)
	}
	digest, err := sum(bytes.NewReader(content[:2500000]))
	must(t, err)
	if here, there := hex.EncodeToString(digest), strings.Fields(s.shell(0, "", "sum", "d/a"))[0]; here != there {
		t.Errorf("sha256 %s here, %s there", here, there)
	}
	if out := s.shell(0, "", "du", "-q", "-s", "d"); !strings.HasSuffix(out, " 2500000  d\n") {
		t.Errorf("says %q", out)
	}
	s.shell(0, "", "get", "-q", "-r", "d", filepath.Join(dir, "back"))
	st, err := os.Stat(filepath.Join(dir, "back", "empty"))
	if err != nil || st.Mode().Perm() != 0o750 || !st.ModTime().Equal(when) {
		t.Errorf("the empty folder came back as %v, %v", st, err)
	}

	// A generation is that of one content.
	s.shell(1, "x", "write", "--if-generation", "1", "d/a")
	s.shell(1, "x", "write", "--if-generation", "0", "d/a")
	s.shell(1, "", "truncate", "-s", "0", "--if-generation", "1", "d/a")
	s.shell(1, "", "punch", "-l", "1", "--if-generation", "1", "d/a")
	s.shell(1, "", "rm", "--if-generation", "1", "d/a")
	s.shell(1, "", "mv", "--if-generation", "1", "d/a", "d/b")
	s.shell(1, "", "put", "--if-generation", "1", path, "d/a")
	if out := s.shell(0, "", "verify", filepath.Join(dir, "d"), "d"); out != "equal: 1 file, 2.38 MiB\n" {
		t.Errorf("after all was refused: %q", out)
	}
	s.shell(0, "x", "write", "--if-generation", "0", "d/c")
}

// TestStatusOfDamage: status exits with 6 when a file is damaged and names the command that helps, which does.
func TestStatusOfDamage(t *testing.T) {
	s, device, content := scrubStore(t, 4<<20)
	if out := s.shell(0, "", "status"); !strings.Contains(out, "all is well\n") {
		t.Errorf("says %q", out)
	}
	rot(t, device, content, 8192)
	good := filepath.Join(t.TempDir(), "a")
	must(t, os.WriteFile(good, content, 0o600))
	s.shell(4, "", "sum", "a")
	if out := s.shell(4, "", "verify", good, "a"); !strings.Contains(out, "a: is damaged: 4.00 KiB at offset 8192 ") {
		t.Errorf("says %q", out)
	}
	if out := s.shell(6, "", "status"); !strings.Contains(out, "error: CORRUPTION files/a: ") || !strings.Contains(out, "  see: client put GOOD-COPY a\n") {
		t.Errorf("says %q", out)
	}
	s.shell(0, "", "put", "-q", good, "a")
	s.shell(0, "", "verify", good, "a")
	s.shell(0, "", "rm", "a")
}
