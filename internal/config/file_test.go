package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shingle-store/shingle/internal/errdefs"
)

func parse(t *testing.T, content string) File {
	t.Helper()
	f, err := ParseFile("engine.yaml", []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFlagBeforeEnvironmentBeforeFileBeforeDefault(t *testing.T) {
	s := Sources{
		Flag: given(map[string]string{"data": "flag"}),
		Env:  given(map[string]string{"SHINGLE_DATA": "env", "SHINGLE_LISTEN": "env:1", "SHINGLE_MAX_WAIT": ""}),
		File: parse(t, "# ours\ndata: file\nlisten: file:2\nmax-wait: 7s\nnodelalloc: true\nreclaim-pace: 50\n"),
	}
	c, err := s.Resolve(Settings())
	if err != nil {
		t.Fatal(err)
	}
	if c.Data != "flag" || c.Listen != "env:1" || c.MaxWait != 7*time.Second || !c.NoDelalloc || c.ReclaimPace != 50 || c.ReclaimThreshold != 75 {
		t.Errorf("%+v", c)
	}
}

func TestFilesThatSayNothing(t *testing.T) {
	for _, content := range []string{"", "# only words\n", "---\n", "{}\n"} {
		if f := parse(t, content); len(f.values) != 0 {
			t.Errorf("%q says %v", content, f.values)
		}
	}
}

func TestFileErrorsNameTheLine(t *testing.T) {
	for _, c := range []struct{ content, say string }{
		{"data: a\ncolour: red\n", "engine.yaml:2: \"colour\" is no setting; the settings are the flags that `engine --help` lists, without the dashes"},
		{"--data: a\n", "engine.yaml:1: \"--data\" is no setting"},
		{"Data: a\n", "engine.yaml:1: \"Data\" is no setting"},
		{"config: other.yaml\n", "engine.yaml:1: \"config\" is no setting"},
		{"\n\ndata: a\nlisten: b:1\ndata: c\n", "engine.yaml:5: data is there twice, first in line 3"},
		{"data:\n", "engine.yaml:1: data has no value; give one, or leave the line out"},
		{"data: ~\n", "engine.yaml:1: data has no value"},
		{"max-wait: 1s\ndata: [a, b]\n", "engine.yaml:2: data takes one value"},
		{"device: [[a]]\n", "engine.yaml:1: device takes one value, or a list of them"},
		{"device:\n- file:a\n-\n", "engine.yaml:3: device has no value"},
		{"data:\n  path: a\n", "engine.yaml:2: data takes one value"},
		{"data: &x a\nlisten: *x\n", "engine.yaml:2: listen takes one value"},
		{"<<: {data: a}\n", "engine.yaml:1: \"<<\" is no setting"},
		{"? [data]\n: a\n", "engine.yaml:1: \"\" is no setting"},
		{"- data\n", "engine.yaml:1: give lines of name: value"},
		{"data\n", "engine.yaml:1: give lines of name: value"},
		{"data: a\n---\nlisten: b:1\n", "engine.yaml:1: there is more than one document in it"},
		{"data: a\n  listen: b\n", "engine.yaml: line 2: mapping values are not allowed"},
		{"data: \"a\n", "engine.yaml: "},
	} {
		_, err := ParseFile("engine.yaml", []byte(c.content))
		e, ok := err.(*errdefs.Error)
		switch {
		case !ok:
			t.Errorf("%q: %v", c.content, err)
		case e.Kind != errdefs.InvalidArgument || e.Field != "config" || !strings.HasPrefix(e.Msg, c.say):
			t.Errorf("%q: %v of %q says %q, want %q", c.content, e.Kind, e.Field, e.Msg, c.say)
		}
	}
}

// A value that does not count is judged by Check only.
func TestFileValuesAreJudgedWhereTheyCount(t *testing.T) {
	f := parse(t, "listen: 127.0.0.1:1\nmax-wait: soon\n")
	const say = `engine.yaml:2: max-wait: "soon" is no duration`
	s := Sources{Flag: given(nil), Env: given(nil), File: f}
	for from, err := range map[string]error{"Resolve": second(s.Resolve(Settings())), "Check": f.Check()} {
		e, ok := err.(*errdefs.Error)
		if !ok || e.Kind != errdefs.InvalidArgument || e.Field != "max-wait" || !strings.HasPrefix(e.Msg, say) {
			t.Errorf("%s says %v, want %s", from, err, say)
		}
	}
	if _, err := s.Resolve(Settings("listen")); err != nil {
		t.Errorf("a setting that is not in use: %v", err)
	}
	s.Flag = given(map[string]string{"max-wait": "1s"})
	if _, err := s.Resolve(Settings()); err != nil {
		t.Errorf("a value that a flag hides: %v", err)
	}
	if err := parse(t, "listen: 127.0.0.1:1\nnodelalloc: false\n").Check(); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestAListOfDevices(t *testing.T) {
	for _, content := range []string{"device: [file:a, 'file:b c?size=1GiB']\n", "device:\n- file:a\n- file:b c?size=1GiB\n"} {
		s := Sources{Flag: given(nil), Env: given(nil), File: parse(t, content)}
		for range 2 { // as it is, and printed and read back
			c, err := s.Resolve(Settings("device"))
			if err != nil || len(c.Devices) != 2 || c.Devices[0].Path != "a" || c.Devices[1].Path != "b c" {
				t.Errorf("%q: %+v, %v", content, c, err)
			}
			s.File = parse(t, s.Print(Settings("device")))
		}
	}
}

// What is printed is a file that says the same, and where each value is from.
func TestPrint(t *testing.T) {
	s := Sources{
		Flag: given(map[string]string{"data": "/srv/a # b"}),
		Env:  given(map[string]string{"SHINGLE_NODELALLOC": "true"}),
		File: parse(t, "\nmax-wait: 7s\n"),
	}
	in := Settings("data", "listen", "nodelalloc", "max-wait", "compression")
	got := s.Print(in)
	for _, want := range []string{
		"data: '/srv/a # b' # --data\n", "listen: 127.0.0.1:7411 # default\n", "nodelalloc: true # SHINGLE_NODELALLOC\n",
		"max-wait: 7s # engine.yaml:2\n", "# compression: compression of new files",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	want, err := s.Resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Sources{Flag: given(nil), Env: given(nil), File: parse(t, got)}.Resolve(in)
	if diff := cmp.Diff(want, back, cmp.AllowUnexported(Device{})); err != nil || diff != "" {
		t.Errorf("read back it differs: %v, %s", err, diff)
	}
}
