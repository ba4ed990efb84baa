package main

import (
	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

// matchFlag is --if-generation: a verb changes a file only if it is as it was seen.
type matchFlag struct {
	cmd        *cobra.Command
	generation int64
}

// flag adds m's to cmd; missing says what 0 means there, "" if it means nothing.
func (m *matchFlag) flag(cmd *cobra.Command, missing string) {
	text := "only if the file has this generation, as stat shows it"
	if missing != "" {
		text += "; 0: " + missing
	}
	m.cmd = cmd
	cmd.Flags().Int64Var(&m.generation, "if-generation", 0, text)
}

// set reports whether the flag was given.
func (m *matchFlag) set() bool { return m.cmd != nil && m.cmd.Flags().Changed("if-generation") }

// conditions returns what is to be asked of the file; nil: nothing.
func (m *matchFlag) conditions() (*client.Preconditions, error) {
	switch {
	case !m.set():
		return nil, nil
	case m.generation < 0:
		return nil, usagef("--if-generation %d is negative", m.generation)
	}
	return &client.Preconditions{Generation: &m.generation}, nil
}

// of is conditions for the only file of a verb that takes several: a generation is that of one.
func (m *matchFlag) of(single bool) (*client.Preconditions, error) {
	if m.set() && !single {
		return nil, usagef("--if-generation is for one file; name one, without -r and --dry-run")
	}
	return m.conditions()
}
