package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// TestPutNames is the rule of where things go.
func TestPutNames(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string // below the folder, but for the last
		want map[string]string
	}{
		{"file to a name", []string{"a", "x"}, map[string]string{"x": "A"}},
		{"file to a new path", []string{"a", "/p/q/x"}, map[string]string{"p/": "", "p/q/": "", "p/q/x": "A"}},
		{"file into", []string{"a", "p/"}, map[string]string{"p/": "", "p/a": "A"}},
		{"file into the root", []string{"a", "/"}, map[string]string{"a": "A"}},
		{"file into what is there", []string{"a", "old"}, map[string]string{"old/a": "A"}},
		{"files into", []string{"a", "d/b", "p/"}, map[string]string{"p/": "", "p/a": "A", "p/b": "B"}},
		{"folder to a name", []string{"-r", "d", "x"}, map[string]string{"x/": "", "x/b": "B", "x/e/": "", "x/e/c": "C", "x/no/": ""}},
		{"folder into", []string{"-r", "d", "x/"}, map[string]string{"x/": "", "x/d/": "", "x/d/b": "B", "x/d/e/": "", "x/d/e/c": "C", "x/d/no/": ""}},
		{"folder into what is there", []string{"-r", "d/", "old"}, map[string]string{"old/d/": "", "old/d/b": "B", "old/d/e/": "", "old/d/e/c": "C", "old/d/no/": ""}},
		{"folder into the root", []string{"-r", "d/e", "/"}, map[string]string{"e/": "", "e/c": "C"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clienttest.New(t)
			s.Put("old/z", []byte("Z"))
			dir := folder(t, map[string]string{"a": "A", "d/b": "B", "d/e/c": "C", "d/no/": ""})
			args := []string{"put", "-q"}
			for i, x := range c.args {
				if i < len(c.args)-1 && x != "-r" {
					x = dir + "/" + x
				}
				args = append(args, x)
			}
			if out := cli(t, s.Addr, "", args...).ok(t); out != "" {
				t.Errorf("-q said %q", out)
			}
			want := map[string]string{"old/": "", "old/z": "Z"}
			for k, v := range c.want {
				want[k] = v
			}
			stored(t, s, want)
		})
	}
}

func TestPutReplacesAndKeepsTimeAndMode(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", []byte("a longer one than the new"))
	src := filepath.Join(folder(t, map[string]string{"a": "new"}), "a")
	mtime := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	must(t, os.Chtimes(src, mtime, mtime))
	must(t, os.Chmod(src, 0o751))
	out := cli(t, s.Addr, "", "put", src, "a").ok(t)
	if !strings.HasPrefix(out, "put 1 file, 3 B, ") {
		t.Errorf("said %q", out)
	}
	if _, durable, _ := s.Data("a"); string(durable) != "new" {
		t.Errorf("holds %q", durable)
	}
	var list struct{ Files []fileJSON }
	unmarshal(t, cli(t, s.Addr, "", "stat", "a", "--output=json").ok(t), &list)
	if f := list.Files[0]; *f.Mode != 0o751 || !f.Mtime.Equal(mtime) {
		t.Errorf("mode %o, time %v", *f.Mode, f.Mtime)
	}
}

func TestPutStandardInput(t *testing.T) {
	s := clienttest.New(t)
	big := strings.Repeat("0123456789abcdef", 200_000)
	cli(t, s.Addr, big, "put", "-", "p/x").ok(t)
	stored(t, s, map[string]string{"p/": "", "p/x": big})
	cli(t, s.Addr, big, "put", "-", "p/").failed(t, exitUsage, "needs a file name")
	cli(t, s.Addr, "", "put", "-", "empty").ok(t)
	stored(t, s, map[string]string{"p/": "", "p/x": big, "empty": ""})
}

func TestPutSkipsLinksAndSpecialFiles(t *testing.T) {
	s := clienttest.New(t)
	dir := folder(t, map[string]string{"d/a": "A"})
	must(t, os.Symlink("a", filepath.Join(dir, "d/link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "d/fifo"), 0o600))
	must(t, os.Symlink("d", filepath.Join(dir, "other")))
	r := cli(t, s.Addr, "", "put", "-r", "--output", "json", dir+"/other", "x")
	if r.code != exitOK || strings.Count(r.err, "skipped") != 2 {
		t.Fatalf("exit %d, %q", r.code, r.err)
	}
	var m moved
	unmarshal(t, r.out, &m)
	if m.Files != 1 || m.Skipped != 2 || m.Bytes != 1 || m.Directories != 1 || m.Failed != 0 {
		t.Errorf("answered %+v", m)
	}
	stored(t, s, map[string]string{"x/": "", "x/a": "A"})
	cli(t, s.Addr, "", "put", dir+"/d/link", "linked").ok(t)
	stored(t, s, map[string]string{"x/": "", "x/a": "A", "linked": "A"})
}

func TestPutManyFilesInParallel(t *testing.T) {
	s := clienttest.New(t)
	files, want := map[string]string{}, map[string]string{"t/": ""}
	for i := range 200 {
		name := string(rune('a'+i%7)) + "/" + strings.Repeat("n", i+1)
		files[name] = strings.Repeat("x", i)
		want["t/"+name] = files[name]
		want["t/"+name[:2]] = ""
	}
	out := cli(t, s.Addr, "", "put", "-r", "-j", "5", folder(t, files), "t").ok(t)
	if !strings.HasPrefix(out, "put 200 files, ") {
		t.Errorf("said %q", out)
	}
	stored(t, s, want)
}

func TestPutFailures(t *testing.T) {
	s := clienttest.New(t)
	s.Put("f", nil)
	dir := folder(t, map[string]string{"a": "A", "d/b": "B", "d/c": "C"})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{dir + "/no", "x"}, exitNotFound, "^client: .*/no: no such file or directory\n$"},
		{[]string{dir + "/d", "x"}, exitError, "use -r"},
		{[]string{dir + "/a", dir + "/d/b", "x"}, exitUsage, `"x" is not a directory`},
		{[]string{"-j", "0", dir + "/a", "x"}, exitUsage, "at least 1"},
		{[]string{dir + "/a"}, exitUsage, "at least 2"},
		{[]string{"--frob", "a", "b"}, exitUsage, "unknown flag"},
		{[]string{"/dev/null", "x"}, exitError, "neither a file nor a folder"},
	} {
		cli(t, s.Addr, "", append([]string{"put"}, c.args...)...).failed(t, c.code, c.says)
	}
	stored(t, s, map[string]string{"f": ""})
}

// TestPutGoesOnAfterOneFailure: what can be put is, and the run still fails.
func TestPutGoesOnAfterOneFailure(t *testing.T) {
	s := clienttest.New(t)
	s.Faults.Write = func(r *shinglev1.WriteRequest) error {
		if r.Name == "x/b" {
			return clienttest.Errorf(codes.ResourceExhausted, "NO_SPACE", nil, "the store is full",
				&shinglev1.SpaceDetail{Usage: &shinglev1.Usage{FreeBytes: 4096, ZoneUnusableBytes: 3 << 30}})
		}
		return nil
	}
	r := cli(t, s.Addr, "", "put", "-r", "--output=json", folder(t, map[string]string{"a": "A", "b": "B", "c": "C"}), "x")
	r.failed(t, exitError, `/b: the store is full \(NO_SPACE\): 4.00 KiB free, 3.00 GiB come back by reclaim\n$`)
	var m moved
	unmarshal(t, r.out, &m)
	if m.Files != 2 || m.Bytes != 2 || m.Failed != 1 { // the byte that was read for x/b is not in the store
		t.Errorf("answered %+v", m)
	}
	stored(t, s, map[string]string{"x/": "", "x/a": "A", "x/c": "C"})
}

// TestPutSurvivesRestart: the engine is killed in the middle of a pipe.
func TestPutSurvivesRestart(t *testing.T) {
	s := clienttest.New(t)
	big := strings.Repeat("0123456789abcdef", 400_000)
	n, crashed := 0, make(chan bool, 1)
	s.Faults.Write = func(*shinglev1.WriteRequest) error {
		if n++; n == 3 {
			go func() { crashed <- s.Crash() }()
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}
	r := cli(t, s.Addr, big, "put", "-", "x")
	if !<-crashed {
		t.Skip("the port was taken by another process")
	}
	r.ok(t)
	stored(t, s, map[string]string{"x": big})
}

// TestPutFileSurvivesRestart: the engine is killed in the middle of a file, which is counted once.
func TestPutFileSurvivesRestart(t *testing.T) {
	s := clienttest.New(t)
	big := strings.Repeat("0123456789abcdef", 400_000)
	n, crashed := 0, make(chan bool, 1)
	s.Faults.Write = func(*shinglev1.WriteRequest) error {
		if n++; n == 4 {
			go func() { crashed <- s.Crash() }()
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}
	r := cli(t, s.Addr, "", "put", "--output=json", folder(t, map[string]string{"a": big})+"/a", "x")
	if !<-crashed {
		t.Skip("the port was taken by another process")
	}
	stored(t, s, map[string]string{"x": big})
	var m moved
	unmarshal(t, r.ok(t), &m)
	if m.Files != 1 || m.Bytes != int64(len(big)) {
		t.Errorf("answered %+v", m)
	}
}

// TestPutRefusesAChangedFile: what changes under a put is not put, and the old file stays.
func TestPutRefusesAChangedFile(t *testing.T) {
	s := clienttest.New(t)
	s.Put("x", []byte("old"))
	src := folder(t, map[string]string{"a": strings.Repeat("0123456789abcdef", 1_000_000)}) + "/a"
	s.Faults.Write = func(r *shinglev1.WriteRequest) error {
		if r.GetOffset() == 0 {
			return os.Chtimes(src, time.Time{}, time.Unix(1e9, 0))
		}
		return nil
	}
	cli(t, s.Addr, "", "put", src, "x").failed(t, exitError, `/a: the source changed while it was read: it was modified\n$`)
	stored(t, s, map[string]string{"x": "old"})
}
