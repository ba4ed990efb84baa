package scrub

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		f.Value.Set("60")
		if testing.Short() {
			f.Value.Set("15")
		}
	}
	goleak.VerifyTestMain(m)
}
