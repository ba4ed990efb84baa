package config

import (
	"math"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "4096": 4096, "4096B": 4096, "1KiB": 1 << 10, "64MiB": 64 << 20, "16GiB": 16 << 30, "20TiB": 20 << 40,
		"9223372036854775807": math.MaxInt64, "8388607TiB": 8388607 << 40, "007": 7,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "B", "MiB", "-1", "+1", "1.5GiB", "1 GiB", "1GB", "1G", "1kB", "1gib", "0x10", "1_000", " 1", "1MiBMiB",
		"9223372036854775808", "8388608TiB", "18446744073709551616",
	} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		} else if !strings.Contains(err.Error(), "GiB") {
			t.Errorf("ParseSize(%q): %v does not say what is allowed", in, err)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64][2]string{
		0: {"0", "0 bytes"}, 1023: {"1023", "1023 bytes"}, 1024: {"1KiB", "1 KiB"}, 1025: {"1025", "1025 bytes"},
		3 << 20: {"3MiB", "3 MiB"}, 16 << 30: {"16GiB", "16 GiB"}, 1 << 40: {"1TiB", "1 TiB"}, 1536 << 10: {"1536KiB", "1536 KiB"},
	} {
		if got := [2]string{FormatSize(n), ProseSize(n)}; got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"", "1", "16GiB", "1.5GiB", "-1B", "9223372036854775807", "8388608TiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if n < 0 {
			t.Fatalf("%q is %d", s, n)
		}
		if back, err := ParseSize(FormatSize(n)); err != nil || back != n {
			t.Fatalf("%q is %d, written %q, read back %d, %v", s, n, FormatSize(n), back, err)
		}
	})
}
