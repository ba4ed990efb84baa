package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
)

// TestSecondSignal stops an engine that waits for a client, and then will wait no longer: it ends at
// once, says so, and what was synced is there.
func TestSecondSignal(t *testing.T) {
	s := started(t)
	c := s.dial(client.WithRetryTime(0))
	big := make([]byte, 8<<20)
	_, _ = (&noise{x: 8}).Read(big)
	must(t, write(t.Context(), c, "big", big))
	r, err := c.Read(t.Context(), "big", client.ReadOptions{}) // and takes nothing of it
	must(t, err)
	defer r.Close()
	must(t, s.cmd.Process.Signal(syscall.SIGINT))
	waitFor(t, "the engine obeys the first signal", func() (string, bool) {
		return s.log.String(), strings.Contains(s.log.String(), "a second signal ends at once")
	})
	begin := time.Now()
	must(t, s.cmd.Process.Signal(syscall.SIGINT))
	err = s.exited()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || time.Since(begin) > 10*time.Second {
		t.Errorf("it ended with %v after %v", err, time.Since(begin))
	}
	if !strings.Contains(s.log.String(), "ended at once by a second signal") {
		t.Errorf("it says nothing of why it ended: %s", s.log)
	}
	s.start()
	must(t, readsAs(t.Context(), s.dial(), "big", big))
}
