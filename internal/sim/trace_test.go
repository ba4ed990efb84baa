package sim

import (
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

func TestTraceFile(t *testing.T) {
	want := Trace{
		Config: ConfigFor(7), Steps: [][]uint64{{1, 2, 1 << 40}, {}, {0}},
		Found: "something\nwrong", History: []string{"a", "b"},
	}
	path := filepath.Join(t.TempDir(), "trace")
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := ReadTrace(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Config, want.Config) || !reflect.DeepEqual(got.Steps, want.Steps) {
		t.Fatalf("read %+v, wrote %+v", got, want)
	}
	for _, bad := range []string{"", "shingle trace 0\n{}\n", traceHead + "\n{\n", traceHead + "\n{}\n1 x\n"} {
		path := filepath.Join(t.TempDir(), "bad")
		write(t, path, bad)
		if _, err := ReadTrace(path); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestReduce has traces fail that hold a step 5, one with an odd number in the middle, and a 9 after it.
func TestReduce(t *testing.T) {
	fails := func(t Trace) bool {
		i := slices.IndexFunc(t.Steps, func(s []uint64) bool { return len(s) > 1 && s[0] == 5 && s[1]%2 == 1 })
		return i >= 0 && slices.ContainsFunc(t.Steps[i:], func(s []uint64) bool { return s[0] == 9 })
	}
	var long Trace
	for i := range uint64(300) {
		long.Steps = append(long.Steps, []uint64{i % 10, i, 77})
	}
	short := long.Reduce(fails, 10_000)
	if len(short.Steps) != 2 || short.Steps[0][2] != 0 || short.Steps[1][1] != 0 || !fails(short) {
		t.Fatalf("reduced to %v", short.Steps)
	}
	if asked := long.Reduce(fails, 3); !fails(asked) {
		t.Fatal("what is left when the tries are over does not fail")
	}
}

func TestChoices(t *testing.T) {
	draw := func(c *Choices) (got []int) {
		for range 3 {
			if !c.Step() {
				break
			}
			got = append(got, c.Below(10), int(c.Seed()), c.Below(3))
			if c.Rarely(4) {
				got = append(got, 1)
			}
		}
		return got
	}
	first := Fresh(3)
	want := draw(first)
	if again := draw(Fresh(3)); !slices.Equal(again, want) {
		t.Fatalf("the same seed draws %v and %v", want, again)
	}
	replay := Replay(first.Steps())
	if got := draw(replay); !slices.Equal(got, want) {
		t.Fatalf("replayed as %v, was %v", got, want)
	}
	if replay.Step() {
		t.Fatal("a replay goes on past its end")
	}
	cut := Replay([][]uint64{{7}})
	cut.Step()
	if a, b := cut.Below(10), cut.Below(10); a != 7 || b != 0 {
		t.Fatalf("a record that is too short gives %d and %d", a, b)
	}
}
