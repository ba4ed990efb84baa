package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteUnits are what a size may end in, in the order of their powers.
const byteUnits = "KMGTPE"

// parseBytes reads a size as fstrim does: whole bytes, or a number with K, M, G, T, P or E, which
// may be followed by iB, for powers of 1024, or by B for powers of 1000.
func parseBytes(s string) (uint64, error) {
	no := fmt.Errorf("%q is no size: give whole bytes, or a number with K, M, G, T (or KiB and so on), or with KB, MB for powers of 1000", s)
	digits, base := s, uint64(1024)
	if rest, ok := strings.CutSuffix(digits, "iB"); ok {
		digits = rest
	} else if rest, ok := strings.CutSuffix(digits, "B"); ok {
		digits, base = rest, 1000
	}
	factor := uint64(1)
	if n := len(digits); n > 0 {
		if power := strings.IndexByte(byteUnits, digits[n-1]); power >= 0 {
			digits = digits[:n-1]
			for range power + 1 {
				factor *= base
			}
		} else if digits != s && s != digits+"B" {
			return 0, no // "12iB"
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxUint64/factor {
		return 0, no
	}
	return n * factor, nil
}

// byteValue is a flag that holds a size.
type byteValue struct {
	n   uint64
	set bool
}

// String returns whole bytes; nothing while the flag is not set.
func (v *byteValue) String() string {
	if !v.set {
		return ""
	}
	return strconv.FormatUint(v.n, 10)
}

// Set reads a size.
func (v *byteValue) Set(s string) (err error) {
	v.n, err = parseBytes(s)
	v.set = err == nil
	return err
}

// Type is what the help calls it.
func (v *byteValue) Type() string { return "size" }

// signed returns the size for a call that takes what fits into 63 bits; flag names it in the error.
func (v *byteValue) signed(flag string) (int64, error) {
	if v.n > math.MaxInt64 {
		return 0, usagef("%s %d is too large: at most %d", flag, v.n, int64(math.MaxInt64))
	}
	return int64(v.n), nil
}
