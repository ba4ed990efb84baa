package alloc

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes the state machine long enough to fill, break and reclaim a store many times,
// unless the command line says otherwise, and looks for goroutines left behind.
func TestMain(m *testing.M) {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	checks := "4000"
	if testing.Short() {
		checks = "400"
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": "80"} {
		if !given[name] {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}
