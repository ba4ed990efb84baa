package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build returns the version and revision that the Go toolchain stamped into the program: a tag,
// or "devel" where there is none, as under `go run`.
func build() (version, revision string) {
	version = "devel"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, ""
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return version, revision
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print which version this is",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			version, revision := build()
			if revision != "" {
				version += " (" + revision + ")"
			}
			_, err := fmt.Fprintf(a.out, "shingle engine %s, %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
