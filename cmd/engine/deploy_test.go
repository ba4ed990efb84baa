package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the files under deploy say to the engine by variables, it understands.
func TestDeployedSettings(t *testing.T) {
	files, err := filepath.Glob("../../deploy/*")
	must(t, err)
	if len(files) < 3 {
		t.Fatalf("only %q", files)
	}
	said := regexp.MustCompile(`(SHINGLE_[A-Z_]+)(?:=|: )(\S+)`)
	_, known, _ := invoke(nil, "--help")
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		env := map[string]string{}
		for _, m := range said.FindAllStringSubmatch(string(b), -1) {
			if !strings.Contains(known, "["+m[1]+"]") {
				t.Errorf("%s sets %s, which is no setting", file, m[1])
			}
			env[m[1]] = m[2]
		}
		if len(env) == 0 {
			t.Errorf("%s sets nothing", file)
		}
		delete(env, configEnv) // names a file of the machine that the unit is for
		if code, _, err := invoke(env, "config", "check"); code != exitOK {
			t.Errorf("%s: exit status %d, %s", file, code, err)
		}
	}
}
