package main

import (
	"io"
	"os"
)

func main() {
	os.Exit(run(streams{out: os.Stdout, err: os.Stderr}, os.LookupEnv, os.Args[1:]))
}

// streams are where a run writes to.
type streams struct{ out, err io.Writer }

// run is the whole program: it parses args, carries out one command and returns the exit status.
func run(s streams, env func(string) (string, bool), args []string) int {
	a := &app{streams: s, env: env}
	root := a.root()
	root.SetArgs(args)
	return a.explain(root.Execute())
}
