package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// pair is a data folder and the URLs of two devices outside of it, none made yet.
func pair(t *testing.T) (data, a, b string) {
	data, device := layout(t)
	return data, device + "-a", device + "-b"
}

func TestFormatSeveralDevices(t *testing.T) {
	data, a, b := pair(t)
	code, out, err := invoke(nil, "format", "--copies", "2", "--data", data, "--device", "file:"+a+smallQuery, "--device", "file:"+b+smallQuery)
	if code != exitOK || !strings.HasPrefix(out, "formatted "+data+" (2 emulated ZNS devices, 32 MiB): ") || !strings.HasSuffix(out, " MiB can be stored, each byte twice\n") {
		t.Fatalf("exit status %d, %s", code, out+err)
	}
	exist(t, a, true)
	exist(t, b, true)
	// Variables name several too, in any order, and what was made is not made again.
	for _, devices := range []string{"file:" + a + " file:" + b, "file:" + a + "\nfile:" + b + "\n"} {
		code, out, err = invoke(map[string]string{"SHINGLE_DEVICE": devices, "SHINGLE_COPIES": "2"}, "format", "--force", "--data", data)
		if code != exitOK || !strings.HasPrefix(out, "formatted "+data+" (2 emulated ZNS devices, 32 MiB): ") {
			t.Fatalf("exit status %d, %s", code, out+err)
		}
	}
	code, out, err = invoke(nil, "check", "--data", data, "--device", "file:"+a, "--device", "file:"+b)
	if code != exitOK || out != "no problems found in "+data+"\n" || err != "" {
		t.Errorf("check: exit status %d, %s", code, out+err)
	}
}

// Devices that cannot be in one store are refused before any is made.
func TestDevicesThatDoNotGoTogether(t *testing.T) {
	for query, say := range map[string]string{
		"?size=16MiB&zone-size=2MiB":             "cannot be in one store: give them the same zone-size and the same dialect",
		"?size=16MiB&zone-size=1MiB&dialect=smr": "cannot be in one store",
		"?size=4MiB&zone-size=1MiB":              "cannot be used: it has 4 sequential zones",
	} {
		for _, args := range [][]string{{"format"}, {"format", "--force"}, {"--listen", "127.0.0.1:0"}} {
			data, a, b := pair(t)
			code, out, err := invoke(nil, append(args, "--data", data, "--device", "file:"+a+smallQuery, "--device", "file:"+b+query)...)
			if code != exitError || out != "" || !strings.Contains(err, say) {
				t.Errorf("%q, %s: exit status %d, %s", args, query, code, out+err)
			}
			exist(t, a, false)
			exist(t, b, false)
		}
	}
	// One whose size is not given must be there.
	data, a, b := pair(t)
	code, _, err := invoke(nil, "format", "--data", data, "--device", "file:"+a+smallQuery, "--device", "file:"+b)
	if code != exitError || !strings.Contains(err, "there is no device file "+b+"; to have it made, give its size") {
		t.Errorf("exit status %d, %s", code, err)
	}
}

// A first start makes all devices; a later one goes on without one that is missing, but not without any.
func TestServeSeveralDevices(t *testing.T) {
	data, a, b := pair(t)
	first := []string{"--data", data, "--copies", "2", "--device", "file:" + a + smallQuery + "\nfile:" + b + smallQuery}
	s := startServing(t, first...)
	if want := ", data in " + data + " (new store, 2 emulated ZNS devices, 32 MiB)\n"; !strings.HasSuffix(s.line, want) {
		t.Errorf("it says %q", s.line)
	}
	s.signal()
	s.ended(exitOK)
	exist(t, b, true)

	must(t, os.Remove(b))
	s = startServing(t, first...)
	if said := s.said(); !strings.Contains(said, "the device file "+b+" is missing and left out") || !strings.Contains(said, "WARN") {
		t.Errorf("it says %q and logs %s", s.line, said)
	}
	if want := "; 1 thing needs attention: see `client status`\n"; !strings.HasSuffix(s.line, want) {
		t.Errorf("it says %q", s.line)
	}
	s.signal()
	s.ended(exitOK)
	exist(t, b, false)
	code, out, err := invoke(nil, "check", "--data", data, "--device", "file:"+a, "--device", "file:"+b)
	if !strings.Contains(err, "engine: the device file "+b+" is missing and left out\n") {
		t.Errorf("check: exit status %d, %s", code, out+err)
	}

	must(t, os.Remove(a))
	for _, args := range [][]string{{"--listen", "127.0.0.1:0"}, {"check"}} {
		code, _, err := invoke(nil, append(args, "--data", data, "--device", "file:"+a, "--device", "file:"+b)...)
		want := "the device files " + a + ", " + b + " are missing, and " + filepath.Join(data, "metadata.db") + " says that a store lies on them; put them back"
		if code != exitError || !strings.Contains(err, want) || strings.Count(err, "\n") != 1 {
			t.Errorf("%q: exit status %d, %s", args, code, err)
		}
	}
}

// A first start that was interrupted after some of the devices were made goes on.
func TestFirstStartWithSomeDevicesMade(t *testing.T) {
	data, a, b := pair(t)
	elsewhere, _ := layout(t)
	s := startServing(t, "--data", elsewhere, "--device", "file:"+a+smallQuery)
	s.signal()
	s.ended(exitOK)
	// One that may hold data is not taken, and the other is not formatted before that is known.
	code, _, err := invoke(nil, "format", "--data", data, "--device", "file:"+b+smallQuery, "--device", "file:"+a)
	if code != exitError || !strings.Contains(err, "the device "+a+" holds store ") {
		t.Errorf("exit status %d, %s", code, err)
	}
	exist(t, filepath.Join(data, "metadata.db"), false)
	must(t, os.Remove(a))
	s = startServing(t, "--data", data, "--device", "file:"+b+"\nfile:"+a+smallQuery)
	s.signal()
	s.ended(exitOK)
	exist(t, a, true)
}

func TestOpenNamed(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	path := filepath.Join(dir, "new")
	d, err := openNamed("file:new" + smallQuery)
	must(t, err)
	if g := d.Geometry(); g.Zones != 16 || g.MaxActive != 6 {
		t.Errorf("%+v", g)
	}
	exist(t, path, true)
	// It is locked, as any device.
	if _, err := openNamed("file:" + path); errdefs.ReasonOf(err) != errdefs.ReasonInUse {
		t.Errorf("opened twice: %v", err)
	}
	must(t, d.Close())
	d, err = openNamed("file:" + path)
	must(t, err)
	must(t, d.Close())
	must(t, os.WriteFile(filepath.Join(dir, "foreign"), []byte("letters to nobody"), 0o600))
	for url, say := range map[string]string{
		"":                                    "is no device: write file:PATH",
		path:                                  "is no device: write file:PATH",
		"file:" + path + "?size=3x":           "size=3x is not allowed",
		"file:" + path + "?size=32MiB":        "size=32MiB was asked for, but the device has 16MiB",
		"file:none":                           "there is no device file " + filepath.Join(dir, "none") + "; to have it made, give its size: 'file:" + filepath.Join(dir, "none") + "?size=16GiB'",
		"file:small?size=4MiB&zone-size=1MiB": "small cannot be used: it has 4 sequential zones",
		"file:foreign":                        "is not a Shingle device file",
	} {
		d, err := openNamed(url)
		if err == nil || d != nil || !strings.Contains(errdefs.Sentence(err), say) {
			t.Errorf("%q: %v, want %q", url, err, say)
		}
	}
	for _, url := range []string{"disk", "file:" + path + "?colour=red"} {
		var e *errdefs.Error
		if _, err := openNamed(url); !asError(err, &e) || e.Kind != errdefs.InvalidArgument || e.Field != "path" {
			t.Errorf("%q: %v", url, err)
		}
	}
	exist(t, filepath.Join(dir, "small"), false)
}

func asError(err error, to **errdefs.Error) (ok bool) {
	*to, ok = err.(*errdefs.Error)
	return ok
}
