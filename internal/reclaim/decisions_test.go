package reclaim

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// script runs the language of testdata; sizes are blocks.
type script struct {
	index  *Index
	policy *Policy
	o      Options
	state  State
	need   Need
}

// TestDecisions runs testdata. Commands:
//
//	new [threshold=P] [lowthreshold=P] low=N high=N [busy=P]
//	run
//	    input lines: group SLOT LIVE DEAD | gone SLOT | hold SLOT | release | space AVAILABLE [waiting]
//	    | decide | rest MS [alone]
//	reads gap=N most=N
//	    input lines: FROM-END of each piece
//	fit room=N
//	    input lines: raw BLOCKS | frames BLOCKS...
//	defaults total=N largest=N
func TestDecisions(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			switch d.Cmd {
			case "new":
				s.build(t, d)
			case "run":
				for _, line := range strings.Split(d.Input, "\n") {
					if answer := s.call(t, strings.Fields(line)); answer != "" {
						fmt.Fprintf(&b, "%s: %s\n", line, answer)
					}
				}
			case "reads":
				var gap, most int64
				d.ScanArgs(t, "gap", &gap)
				d.ScanArgs(t, "most", &most)
				for _, r := range Reads(ranges(t, d.Input), gap, most) {
					fmt.Fprintf(&b, "%d-%d: pieces %d to %d\n", r.Off, r.End, r.First, r.Last-1)
				}
			case "fit":
				var room int64
				d.ScanArgs(t, "room", &room)
				take, left := Fit(pieces(t, d.Input), room)
				for _, k := range take {
					fmt.Fprintf(&b, "piece %d: %d blocks", k.Piece, k.Blocks)
					if k.Units > 0 {
						fmt.Fprintf(&b, ", %d frames", k.Units)
					}
					b.WriteString("\n")
				}
				fmt.Fprintf(&b, "left: %d\n", left)
			case "defaults":
				var o Options
				var total, largest int64
				d.ScanArgs(t, "total", &total)
				d.ScanArgs(t, "largest", &largest)
				o.SetDefaults(total, largest)
				fmt.Fprintf(&b, "%+v\n", o)
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return b.String()
		})
	})
}

func (s *script) build(t *testing.T, d *datadriven.TestData) {
	s.o = Options{}
	d.MaybeScanArgs(t, "threshold", &s.o.Threshold)
	d.MaybeScanArgs(t, "lowthreshold", &s.o.LowThreshold)
	d.MaybeScanArgs(t, "busy", &s.o.Busy)
	d.ScanArgs(t, "low", &s.o.Low)
	d.ScanArgs(t, "high", &s.o.High)
	if err := s.o.Validate(); err != nil {
		t.Fatal(err)
	}
	s.o.SetDefaults(0, 0)
	s.index, s.policy, s.state = NewIndex(), NewPolicy(s.o), State{Available: s.o.High}
}

func (s *script) call(t *testing.T, f []string) string {
	num := func(i int) int64 {
		if i >= len(f) {
			t.Fatalf("%v: argument %d is missing", f, i)
		}
		return number(t, f[i])
	}
	switch f[0] {
	case "#":
	case "group":
		s.index.Set(uint32(num(1)), num(2)*blk, num(3)*blk, true)
	case "gone":
		s.index.Set(uint32(num(1)), 0, 0, false)
	case "hold":
		s.index.Hold(uint32(num(1)))
	case "release":
		s.index.Release()
	case "space":
		s.state = State{Available: num(1), Waiting: f[len(f)-1] == "waiting"}
	case "decide":
		best, any := s.index.Best()
		s.need = s.policy.Decide(s.state, best, any)
		if s.need == None {
			return "none"
		}
		return fmt.Sprintf("%v: %d, %d %% dead", s.need, best.Slot, best.Share())
	case "rest":
		return s.policy.Pause(s.need, s.state, time.Duration(num(1))*time.Millisecond, f[len(f)-1] != "alone").String()
	default:
		t.Fatalf("unknown call %v", f)
	}
	return ""
}

func number(t *testing.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func ranges(t *testing.T, input string) (out []extent.Range) {
	for _, line := range strings.Fields(input) {
		from, to, ok := strings.Cut(line, "-")
		if !ok {
			t.Fatalf("%q is no range", line)
		}
		out = append(out, extent.Range{Off: number(t, from), End: number(t, to)})
	}
	return out
}

func pieces(t *testing.T, input string) (out []Piece) {
	for _, line := range strings.Split(input, "\n") {
		f := strings.Fields(line)
		var p Piece
		for _, n := range f[1:] {
			p.Blocks += number(t, n)
			if f[0] == "frames" {
				p.Units = append(p.Units, number(t, n))
			}
		}
		out = append(out, p)
	}
	return out
}

func TestOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		o     Options
		field string
	}{
		{Options{}, ""},
		{Options{Threshold: 100, LowThreshold: 100, Low: 1, High: 1, Busy: 100}, ""},
		{Options{Low: 5}, ""},
		{Options{LowThreshold: 50}, ""},
		{Options{Threshold: -1}, "Threshold"},
		{Options{Threshold: 101}, "Threshold"},
		{Options{LowThreshold: -1}, "LowThreshold"},
		{Options{Threshold: 5, LowThreshold: 6}, "LowThreshold"},
		{Options{Low: -1}, "High"},
		{Options{Low: 3, High: 2}, "High"},
		{Options{Busy: 101}, "Busy"},
		{Options{Busy: -1}, "Busy"},
	} {
		err := c.o.Validate()
		if c.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", c.o, err)
			}
			continue
		}
		var e *errdefs.Error
		if !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("%+v: %v", c.o, err)
		} else if e = err.(*errdefs.Error); e.Field != c.field {
			t.Errorf("%+v: %v names %q, want %q", c.o, err, e.Field, c.field)
		}
	}
}
