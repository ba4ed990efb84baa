package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// TestGetNames is the rule of where things go.
func TestGetNames(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string // the last below the folder
		want map[string]string
	}{
		{"file to a name", []string{"a", "x"}, map[string]string{"x": "A"}},
		{"file to a new path", []string{"/a", "p/q/x"}, map[string]string{"p/": "", "p/q/": "", "p/q/x": "A"}},
		{"file into", []string{"d/b", "p/"}, map[string]string{"p/": "", "p/b": "B"}},
		{"file into what is there", []string{"a", "old"}, map[string]string{"old/a": "A"}},
		{"files into", []string{"a", "d/b", "p/"}, map[string]string{"p/": "", "p/a": "A", "p/b": "B"}},
		{"directory to a name", []string{"-r", "d", "x"}, map[string]string{"x/": "", "x/b": "B", "x/e/": "", "x/e/c": "C", "x/no/": ""}},
		{"directory into", []string{"-r", "d/", "x/"}, map[string]string{"x/": "", "x/d/": "", "x/d/b": "B", "x/d/e/": "", "x/d/e/c": "C", "x/d/no/": ""}},
		{"directory into what is there", []string{"-r", "d/e", "old"}, map[string]string{"old/e/": "", "old/e/c": "C"}},
		{"root", []string{"-r", "/", "x"}, map[string]string{"x/": "", "x/a": "A", "x/d/": "", "x/d/b": "B", "x/d/e/": "", "x/d/e/c": "C", "x/d/no/": ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clienttest.New(t)
			s.Put("a", []byte("A"))
			s.Put("d/b", []byte("B"))
			s.Put("d/e/c", []byte("C"))
			src := folder(t, map[string]string{"no/": ""})
			cli(t, s.Addr, "", "put", "-q", "-r", src+"/no", "d/").ok(t)
			dir := folder(t, map[string]string{"old/z": "Z"})
			args := append([]string{"get", "-q"}, c.args...)
			args[len(args)-1] = dir + "/" + args[len(args)-1]
			cli(t, s.Addr, "", args...).ok(t)
			want := map[string]string{"old/": "", "old/z": "Z"}
			for k, v := range c.want {
				want[k] = v
			}
			found(t, dir, want)
		})
	}
}

// TestRoundTrip: content, times and modes, of folders too, empty files and folders come back.
func TestRoundTrip(t *testing.T) {
	s := clienttest.New(t)
	files := map[string]string{"a": "", "b/c": strings.Repeat("hello ", 300_000), "b/empty/": "", "ü/名": "x"}
	src := folder(t, files)
	mtime := time.Date(1999, 12, 31, 23, 59, 59, 123456789, time.UTC)
	must(t, os.Chtimes(src+"/b/c", mtime, mtime))
	must(t, os.Chmod(src+"/b/c", 0o604))
	must(t, os.Chmod(src+"/b/empty", 0o500))
	for _, dir := range []string{"/b/empty", "/b", ""} {
		must(t, os.Chtimes(src+dir, mtime, mtime))
	}
	cli(t, s.Addr, "", "put", "-r", src, "t").ok(t)
	dst := filepath.Join(t.TempDir(), "back")
	out := cli(t, s.Addr, "", "get", "-r", "t", dst).ok(t)
	if !strings.HasPrefix(out, "got 3 files, 1.72 MiB, ") {
		t.Errorf("said %q", out)
	}
	files["b/"], files["ü/"] = "", ""
	found(t, dst, files)
	for _, dir := range []string{"/b/empty", "/b", ""} {
		if st, err := os.Stat(dst + dir); err != nil || !st.ModTime().Equal(mtime) || dir == "/b/empty" && st.Mode().Perm() != 0o500 {
			t.Errorf("folder %q: %v, %v", dir, st, err)
		}
	}
	st, err := os.Stat(dst + "/b/c")
	must(t, err)
	if !st.ModTime().Equal(mtime) || st.Mode().Perm() != 0o604 {
		t.Errorf("time %v, mode %v", st.ModTime(), st.Mode())
	}
}

func TestGetLeavesHolesOut(t *testing.T) {
	s := clienttest.New(t)
	data := make([]byte, 4<<20)
	data[0], data[2<<20] = 1, 2
	s.Put("a", data)
	dst := filepath.Join(t.TempDir(), "a")
	cli(t, s.Addr, "", "get", "a", dst).ok(t)
	st, err := os.Stat(dst)
	must(t, err)
	got, err := os.ReadFile(dst)
	must(t, err)
	if string(got) != string(data) {
		t.Fatal("the bytes differ")
	}
	if blocks := st.Sys().(*syscall.Stat_t).Blocks * 512; blocks > 1<<20 {
		t.Errorf("takes %d bytes", blocks)
	}
}

// TestGetKeepsTheOldFile: after any failure the old file is whole and nothing else is there.
func TestGetKeepsTheOldFile(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		code int
		says string
	}{
		{"data loss", clienttest.Errorf(codes.DataLoss, "CORRUPTION", nil, "bad", &shinglev1.Corruption{
			Name: "a", Offset: 65536, Length: 4096, Zone: &shinglev1.ZoneRef{Device: "0", Zone: 17},
		}), exitDataLoss, `^client: a: is damaged: 4.00 KiB at offset 65536 .*zone 17.*; the bytes before are good\n$`},
		{"device", clienttest.Errorf(codes.Internal, "DEVICE_IO", nil, "the device failed"), exitError, "the device failed"},
		{"gone", status.Error(codes.NotFound, "gone"), exitNotFound, "a: no such file"},
	} {
		s := clienttest.New(t)
		s.Put("a", []byte(strings.Repeat("0123456789", 20_000)))
		s.Faults.Read = func(r *shinglev1.ReadResponse) error {
			if r.Offset > 0 {
				return c.err
			}
			return nil
		}
		dir := folder(t, map[string]string{"a": "old"})
		cli(t, s.Addr, "", "get", "a", dir+"/a").failed(t, c.code, c.says)
		found(t, dir, map[string]string{"a": "old"})
		r := cli(t, s.Addr, "", "cat", "a")
		r.failed(t, c.code, c.says)
		if len(r.out) != 65536 {
			t.Errorf("%s: cat printed %d good bytes", c.name, len(r.out))
		}
	}
}

func TestGetFailures(t *testing.T) {
	s := clienttest.New(t)
	s.Put("d/b", nil)
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"no", dir + "/x"}, exitNotFound, `^client: no: no such file or directory in the store\n$`},
		{[]string{"d", dir + "/x"}, exitError, "use -r"},
		{[]string{"/", dir + "/x"}, exitError, "use -r"},
		{[]string{"d/b", "no", dir + "/x"}, exitUsage, "is not a folder"},
		{[]string{"-r", "no", dir + "/x"}, exitNotFound, "no such file"},
		{[]string{"-j", "-1", "d", dir}, exitUsage, "at least 1"},
	} {
		cli(t, s.Addr, "", append([]string{"get"}, c.args...)...).failed(t, c.code, c.says)
	}
	found(t, dir, nil)
}

func TestCatRanges(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", []byte("0123456789"))
	s.Put("b", []byte("abc"))
	for _, c := range []struct{ args, want string }{
		{"cat a", "0123456789"}, {"cat a /b", "0123456789abc"}, {"get a b -", "0123456789abc"},
		{"cat a --offset 8", "89"}, {"cat a --offset 2 --length 3", "234"}, {"cat a --length 0", ""}, {"cat a --offset 99", ""},
	} {
		if got := cli(t, s.Addr, "", strings.Fields(c.args)...).ok(t); got != c.want {
			t.Errorf("%s: %q", c.args, got)
		}
	}
	cli(t, s.Addr, "", "cat", "a", "--offset", "-1").failed(t, exitUsage, "negative")
	r := cli(t, s.Addr, "", "cat", "a", "no", "b")
	r.failed(t, exitNotFound, "no")
	if r.out != "0123456789" {
		t.Errorf("printed %q", r.out)
	}
}

func TestInterruptAndTimeout(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", []byte(strings.Repeat("x", 200_000)))
	hold := make(chan struct{})
	s.Faults.Read = func(r *shinglev1.ReadResponse) error {
		if r.Offset > 0 {
			<-hold
		}
		return nil
	}
	t.Cleanup(func() { close(hold) })
	dir := t.TempDir()
	cli(t, s.Addr, "", "get", "--timeout", "50ms", "a", dir+"/x").failed(t, exitError, "^client: (a: )?not done within the 50ms of --timeout\n$")
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	cliContext(t, ctx, s.Addr, "", "get", "a", dir+"/x").failed(t, exitError, "^client: (a: )?interrupted\n$")
	found(t, dir, nil)
}
