package trim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shingle-store/shingle/internal/zone"
)

// TestDecisions runs testdata. Commands: "space size=N" makes a store, see parseSpace; "trim" runs
// one with start, length and min, each an expression of blocks: "3", "end-1b" (a byte below the end
// of the address space), "max"; "dry" is a dry run; "cancel=(discard,1)" ends it when that command
// begins; "ranges" and "depth" bound the ranges of a command and the commands under way;
// "fail", one a line, makes commands fail; "heal" ends that.
func TestDecisions(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s *testSpace
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "space":
				var size int64
				d.ScanArgs(t, "size", &size)
				s = parseSpace(size, d.Input)
				return ""
			case "fail", "nodiscard":
				for _, line := range strings.Split(d.Input, "\n") {
					s.faults[line] = fmt.Errorf("no luck with %s", line)
					if d.Cmd == "nodiscard" {
						s.faults[line] = fmt.Errorf("below: %w", zone.ErrNoDiscard)
					}
				}
				return ""
			case "heal":
				clear(s.faults)
				return ""
			case "trim":
				return runTrim(t, s, d)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func runTrim(t *testing.T, s *testSpace, d *datadriven.TestData) string {
	r := Request{Length: ToEnd}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.before = nil
	ranges, depth := maxRanges, maxDepth
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "start":
			r.Start = expression(t, s, a.Vals[0])
		case "length":
			r.Length = expression(t, s, a.Vals[0])
		case "min":
			r.MinLength = expression(t, s, a.Vals[0])
		case "dry":
			r.DryRun = true
		case "ranges":
			ranges, _ = strconv.Atoi(a.Vals[0])
		case "depth":
			depth, _ = strconv.Atoi(a.Vals[0])
		case "cancel":
			s.before = func(command string) {
				if command == a.Vals[0]+" "+a.Vals[1] {
					cancel()
				}
			}
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	before := s.String()
	run := newRun(s, r.DryRun, nil)
	run.maxRanges, run.maxDepth = ranges, depth
	got, err := run.trim(ctx, r)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if held := s.leftHeld(); held != nil {
		t.Errorf("%s: left held: %v", d.Pos, held)
	}
	out := resultText(t, got) + s.told()
	if after := s.String(); after != before {
		out += after
	}
	return out
}

// expression adds and subtracts terms from left to right.
func expression(t *testing.T, s *testSpace, text string) (n uint64) {
	slots, size := s.Layout()
	plus := true
	for text != "" {
		end := strings.IndexAny(text, "+-")
		term := text
		next := true
		if end >= 0 {
			term, next, text = text[:end], text[end] == '+', text[end+1:]
		} else {
			text = ""
		}
		var v uint64
		switch unit := uint64(blk); term {
		case "end":
			v = uint64(slots) * uint64(size)
		case "max":
			v = math.MaxUint64
		default:
			if bytes, ok := strings.CutSuffix(term, "b"); ok {
				term, unit = bytes, 1
			}
			k, err := strconv.ParseUint(term, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			v = k * unit
		}
		if plus {
			n += v
		} else {
			n -= v
		}
		plus = next
	}
	return n
}

// resultText prints what is not zero, in blocks.
func resultText(t *testing.T, r Result) string {
	t.Helper()
	sum := uint64(0)
	var parts []string
	for _, f := range []struct {
		name string
		n    uint64
	}{
		{"trimmed", r.Trimmed}, {"in use", r.InUse}, {"already trimmed", r.AlreadyTrimmed}, {"too short", r.TooShort},
		{"partial zone", r.PartialZone}, {"busy", r.Busy}, {"unsupported", r.Unsupported}, {"gap", r.Gap},
		{"quarantined", r.Quarantined}, {"failed", r.Failed},
	} {
		if sum += f.n; f.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", f.name, f.n/blk))
		}
		if f.n%blk != 0 {
			t.Errorf("%s is %d, no whole blocks", f.name, f.n)
		}
	}
	if sum != r.Done || r.Done > r.Total || r.State != Cancelled && r.Done != r.Total {
		t.Errorf("the figures add up to %d, done is %d of %d: %+v", sum, r.Done, r.Total, r)
	}
	out := fmt.Sprintf("%v, %d of %d blocks, next %d: %s\n", r.State, r.Done/blk, r.Total/blk, r.NextStart/blk, strings.Join(parts, ", "))
	if r.Extents+r.Commands+r.ZonesReset > 0 {
		out += fmt.Sprintf("%d extents, %d discards, %d resets\n", r.Extents, r.Commands, r.ZonesReset)
	}
	if r.MinLength != blk {
		out += fmt.Sprintf("min length %d\n", r.MinLength)
	}
	if r.FirstError != nil {
		out += fmt.Sprintf("%d zones failed, first: %v\n", r.FailedZones, errors.Unwrap(fmt.Errorf("%w", r.FirstError)))
	}
	return out
}
