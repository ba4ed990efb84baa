package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Trace is a run as a list of choices: what is kept of one that found something.
type Trace struct {
	Config Config
	Steps  [][]uint64
	// Found is what was wrong, and History how it came to it: for people.
	Found   string
	History []string
}

// traceHead begins every trace file; the number is that of the meaning of its choices, and grows when
// the order or number of choices in a step changes.
const traceHead = "shingle trace 1"

// Write puts the trace in a file: a line of configuration, the choices with a line for each step,
// and the history as comments.
func (t Trace) Write(path string) error {
	cfg, err := json.Marshal(t.Config)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", traceHead, cfg)
	for _, step := range t.Steps {
		for i, v := range step {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(strconv.FormatUint(v, 10))
		}
		b.WriteByte('\n')
	}
	for _, line := range append([]string{"found: " + t.Found}, t.History...) {
		fmt.Fprintf(&b, "# %s\n", strings.ReplaceAll(line, "\n", " "))
	}
	return os.WriteFile(path, []byte(b.String()), 0o600)
}

// ReadTrace reads a file that Write wrote. The history is passed over.
func ReadTrace(path string) (t Trace, err error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return t, err
	}
	lines := strings.Split(strings.TrimSuffix(string(src), "\n"), "\n")
	if len(lines) < 2 || lines[0] != traceHead {
		return t, fmt.Errorf("%s is no trace of this simulator: it must begin with %q", path, traceHead)
	}
	if err := json.Unmarshal([]byte(lines[1]), &t.Config); err != nil {
		return t, fmt.Errorf("%s: configuration: %w", path, err)
	}
	for i, line := range lines[2:] {
		if strings.HasPrefix(line, "#") {
			continue
		}
		step := []uint64{}
		for _, f := range strings.Fields(line) {
			v, err := strconv.ParseUint(f, 10, 64)
			if err != nil {
				return t, fmt.Errorf("%s:%d: %w", path, i+3, err)
			}
			step = append(step, v)
		}
		t.Steps = append(t.Steps, step)
	}
	return t, nil
}

// Reduce returns a shorter trace that fails too, as fails finds, which it asks at most so many times: it
// leaves out runs of steps, halves at first, single ones at last, and then makes numbers 0.
func (t Trace) Reduce(fails func(Trace) bool, tries int) Trace {
	try := func(steps [][]uint64) bool {
		if tries <= 0 {
			return false
		}
		tries--
		short := t
		short.Steps = steps
		if !fails(short) {
			return false
		}
		t = short
		return true
	}
	for n := len(t.Steps) / 2; n > 0; n /= 2 {
		for at := 0; at < len(t.Steps); {
			end := min(at+n, len(t.Steps))
			rest := append(append([][]uint64{}, t.Steps[:at]...), t.Steps[end:]...)
			if !try(rest) {
				at = end
			}
		}
	}
	for i := range t.Steps {
		for j, v := range t.Steps[i] {
			if v == 0 {
				continue
			}
			steps := append([][]uint64{}, t.Steps...)
			steps[i] = append([]uint64{}, steps[i]...)
			steps[i][j] = 0
			try(steps)
		}
	}
	return t
}
