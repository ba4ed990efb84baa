package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionJSON is what version answers.
type versionJSON struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// build returns what the Go toolchain stamped into the program; the version is a tag, or "devel" where there
// is none, as under `go run`.
func build() versionJSON {
	j := versionJSON{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return j
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		j.Version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			j.Revision = s.Value
		}
	}
	return j
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print which version this is",
		Long:  "version prints which version of the client this is, and asks no engine; info says which one answers.",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			j := build()
			return a.answer(j, func(w io.Writer) error {
				version := j.Version
				if j.Revision != "" {
					version += " (" + j.Revision + ")"
				}
				_, err := fmt.Fprintf(w, "shingle client %s, %s %s/%s\n", version, j.Go, j.OS, j.Arch)
				return err
			})
		},
	}
}
