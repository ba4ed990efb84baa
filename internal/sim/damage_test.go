package sim

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// damageEnv makes TestDamagedStore the child: it names the first seed.
const damageEnv = "SHINGLE_SIM_DAMAGE"

// TestDamagedStore damages the metadata of stores with a history and uses them, in a child process: it
// must live, and each of its calls end.
func TestDamagedStore(t *testing.T) {
	stores := 24
	if testing.Short() {
		stores = 5
	}
	if env := os.Getenv(damageEnv); env != "" {
		seed, err := strconv.ParseUint(env, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		cov := NewCoverage()
		for i := range uint64(stores) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				if err := Damaged(seed+i, dir, cov); err != nil {
					t.Errorf("seed %d: %v", seed+i, err)
				}
			})
		}
		t.Logf("seeds from %d:\n%s", seed, cov)
		return
	}
	if raceEnabled {
		t.Skip("the race build checks pointers and throws where bbolt would only fault")
	}
	t.Parallel()
	seed := *simSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestDamagedStore$", "-test.v", "-test.short="+strconv.FormatBool(testing.Short()))
	cmd.Env = append(os.Environ(), damageEnv+"="+strconv.FormatUint(seed, 10))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("seed %d: the child died: %v\n%s", seed, err, out[max(0, len(out)-8000):])
	}
	t.Logf("%s", out)
}
