package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are what a size may end in, greatest first; each is 1024 of the next.
var units = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseSize reads a size in bytes: a whole number, alone or with a unit right behind it (B, KiB,
// MiB, GiB, TiB; powers of 1024). There are no fractions and no signs, so a size that was written
// is the size that is used.
func ParseSize(s string) (int64, error) {
	digits, factor := s, int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			digits, factor = rest, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n > math.MaxInt64/uint64(factor) {
		return 0, fmt.Errorf("%q is no size: give whole bytes, or a number with KiB, MiB, GiB or TiB", s)
	}
	return int64(n) * factor, nil
}

// FormatSize writes a size so that ParseSize reads it back exactly, in the greatest unit that
// divides it: "16GiB", "65537".
func FormatSize(n int64) string { return formatSize(n, "") }

// ProseSize is FormatSize for sentences: "16 GiB".
func ProseSize(n int64) string { return formatSize(n, " ") }

func formatSize(n int64, space string) string {
	for _, u := range units {
		if u.bytes > 1 && n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + space + u.name
		}
	}
	if space != "" {
		return strconv.FormatInt(n, 10) + space + "bytes"
	}
	return strconv.FormatInt(n, 10)
}

// AboutSize writes a size for sentences in which it need not be exact, rounded down to a tenth of the
// greatest unit that it reaches: "15.6 GiB".
func AboutSize(n int64) string {
	for _, u := range units {
		if u.bytes > 1 && n >= u.bytes {
			return fmt.Sprintf("%d.%d %s", n/u.bytes, n%u.bytes*10/u.bytes, u.name)
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
