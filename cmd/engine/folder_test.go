package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const smallQuery = "?size=16MiB&zone-size=1MiB&max-active=6"

// layout is a data folder and a device outside of it, neither made yet.
func layout(t *testing.T) (data, device string) {
	dir := t.TempDir()
	return filepath.Join(dir, "deep", "data"), filepath.Join(dir, "device")
}

func exist(t *testing.T, path string, want bool) {
	t.Helper()
	if ok, err := exists(path); err != nil || ok != want {
		t.Errorf("%s is there: %v, %v", path, ok, err)
	}
}

func TestFormat(t *testing.T) {
	data, device := layout(t)
	code, _, err := invoke(nil, "format", "--data", data, "--device", "file:"+device)
	if code != exitError || !strings.Contains(err, "there is no device file "+device+"; to have it made, give its size") {
		t.Errorf("no size: exit status %d, %s", code, err)
	}
	format := []string{"format", "--data", data, "--device", "file:" + device + smallQuery, "--metadata-limit", "2MiB"}
	code, out, err := invoke(nil, format...)
	if code != exitOK || out != "formatted "+data+" (16 MiB emulated ZNS device): 11.9 MiB can be stored\n" {
		t.Fatalf("exit status %d, %s", code, out+err)
	}
	exist(t, device+".new", false)
	code, _, err = invoke(nil, format...)
	if code != exitError || !strings.Contains(err, data+" holds a store already; choose another --data, or destroy it with --force") {
		t.Errorf("again: exit status %d, %s", code, err)
	}
	code, out, err = invoke(nil, "check", "--data", data, "--device", "file:"+device)
	if code != exitOK || out != "no problems found in "+data+"\n" {
		t.Errorf("check: exit status %d, %s", code, out+err)
	}
	code, _, err = invoke(nil, "check", "--data", data)
	if code != exitError || !strings.Contains(err, "the device file "+filepath.Join(data, "device")+" is missing") {
		t.Errorf("check without --device: exit status %d, %s", code, err)
	}
	// Another size by force makes the file anew; none keeps it.
	for _, query := range []string{"?size=8MiB&zone-size=1MiB", ""} {
		code, out, err = invoke(nil, "format", "--force", "--data", data, "--device", "file:"+device+query)
		if code != exitOK || out != "formatted "+data+" (8 MiB emulated ZNS device): 3.9 MiB can be stored\n" {
			t.Errorf("by force: exit status %d, %s", code, out+err)
		}
	}
}

// A format that was refused, or cannot work, leaves everything as it was.
func TestFormatLeavesAlone(t *testing.T) {
	data, device := layout(t)
	code, out, err := invoke(nil, "format", "--data", data, "--device", "file:"+device+smallQuery)
	if code != exitOK {
		t.Fatalf("exit status %d, %s", code, out+err)
	}
	for _, query := range []string{"?size=4MiB&zone-size=1MiB", "?size=2MiB&zone-size=1MiB&conventional=2&dialect=smr", "?zone-size=2MiB"} {
		if code, out, err := invoke(nil, "format", "--force", "--data", data, "--device", "file:"+device+query); code != exitError {
			t.Errorf("%s: exit status %d, %s", query, code, out+err)
		}
		if code, out, err := invoke(nil, "check", "--data", data, "--device", "file:"+device+smallQuery); code != exitOK {
			t.Errorf("after %s: exit status %d, %s", query, code, out+err)
		}
	}
	fresh := filepath.Join(t.TempDir(), "fresh")
	code, _, err = invoke(nil, "format", "--data", fresh, "--device", "file:"+fresh+"-device?size=4MiB&zone-size=1MiB")
	if code != exitError || !strings.Contains(err, "device "+fresh+"-device cannot be used: it has 4 sequential zones") {
		t.Errorf("exit status %d, %s", code, err)
	}
	exist(t, fresh+"-device", false)
}

// A device file that is foreign or damaged is made anew by force, if its size is known.
func TestFormatOverAForeignFile(t *testing.T) {
	data, device := layout(t)
	must(t, os.WriteFile(device, []byte("letters to nobody"), 0o600))
	url := "file:" + device + smallQuery
	if code, _, err := invoke(nil, "format", "--data", data, "--device", url); code != exitError || !strings.Contains(err, "is not a Shingle device file") {
		t.Errorf("exit status %d, %s", code, err)
	}
	if b, err := os.ReadFile(device); err != nil || string(b) != "letters to nobody" {
		t.Fatalf("it was changed: %q, %v", b, err)
	}
	if code, out, err := invoke(nil, "format", "--force", "--data", data, "--device", url); code != exitOK {
		t.Errorf("by force: exit status %d, %s", code, out+err)
	}
}

func TestFoldersThatAreNone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"check", "--data", filepath.Join(dir, "no")}, "there is no data folder " + filepath.Join(dir, "no")},
		{[]string{"check", "--data", file}, file + " is not a folder; name another with --data"},
		{[]string{"check", "--data", dir}, "there is no metadata file " + filepath.Join(dir, "metadata.db")},
		{[]string{"format", "--data", file}, "data folder " + file + " cannot be made; choose another --data"},
		{[]string{"--listen", "127.0.0.1:0", "--data", filepath.Join(file, "x")}, "cannot be made; choose another --data"},
	} {
		if code, out, err := invoke(nil, c.args...); code != exitError || !strings.Contains(err, c.say) || strings.Count(err, "\n") != 1 {
			t.Errorf("%q: exit status %d, %s", c.args, code, out+err)
		}
	}
}

func TestAFolderIsOneEngines(t *testing.T) {
	data, device := layout(t)
	url := "file:" + device + smallQuery
	if code, out, err := invoke(nil, "format", "--data", data, "--device", url); code != exitOK {
		t.Fatalf("exit status %d, %s", code, out+err)
	}
	e := startServing(t, "--data", data, "--device", url)
	for _, args := range [][]string{{"--listen", "127.0.0.1:0"}, {"check"}, {"format", "--force"}} {
		code, _, err := invoke(nil, append(args, "--data", data, "--device", url)...)
		if code != exitError || !strings.Contains(err, "data folder "+data+" is in use by another engine; stop it or choose another --data") {
			t.Errorf("%q: exit status %d, %s", args, code, err)
		}
	}
	e.signal()
	e.ended(exitOK)
	if code, out, err := invoke(nil, "check", "--data", data, "--device", url); code != exitOK {
		t.Errorf("afterwards: exit status %d, %s", code, out+err)
	}
}
