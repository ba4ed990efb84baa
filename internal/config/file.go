package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// File is what a configuration file says: a YAML mapping of names of settings, without dashes, to
// the texts that a flag would have, or, of a flag that may be given several times, to a list of them.
// The zero File says nothing.
type File struct {
	name   string
	values map[string]fileValue
}

type fileValue struct {
	text string
	line int
}

// ParseFile reads a configuration file; name is what errors call it. What is in it must be
// known and there once, whether the command that reads it makes use of it or not: a misspelt
// setting that is passed over would count as set. Values are judged by Resolve, when they count, and
// by Check.
//
// Errors are InvalidArgument and begin with "name:line: ".
func ParseFile(name string, content []byte) (File, error) {
	f := File{name: name, values: map[string]fileValue{}}
	bad := func(line int, format string, a ...any) (File, error) {
		return File{}, errdefs.Invalid("config.ParseFile", "config", fmt.Sprintf("%s:%d: ", name, line)+fmt.Sprintf(format, a...))
	}
	d := yaml.NewDecoder(bytes.NewReader(content))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return f, nil
	} else if err != nil {
		return File{}, errdefs.Invalid("config.ParseFile", "config", name+": "+strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return bad(1, "there is more than one document in it; keep one")
	}
	top := doc.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" { // nothing but comments
		return f, nil
	}
	if top.Kind != yaml.MappingNode {
		return bad(top.Line, "give lines of name: value, such as listen: 127.0.0.1:7411")
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		at := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == key.Value })
		switch before, twice := f.values[key.Value]; {
		case key.Kind != yaml.ScalarNode || at < 0:
			return bad(key.Line, "%q is no setting; the settings are the flags that `engine --help` lists, without the dashes", key.Value)
		case twice:
			return bad(key.Line, "%s is there twice, first in line %d", key.Value, before.line)
		}
		values := []*yaml.Node{value}
		if settings[at].Many && value.Kind == yaml.SequenceNode {
			values = value.Content
		}
		texts := make([]string, len(values))
		for i, v := range values {
			switch {
			case v.Kind != yaml.ScalarNode && settings[at].Many:
				return bad(v.Line, "%s takes one value, or a list of them", key.Value)
			case v.Kind != yaml.ScalarNode:
				return bad(v.Line, "%s takes one value", key.Value)
			case v.Tag == "!!null":
				return bad(v.Line, "%s has no value; give one, or leave the line out", key.Value)
			}
			texts[i] = v.Value
		}
		f.values[key.Value] = fileValue{strings.Join(texts, "\n"), value.Line}
	}
	return f, nil
}

// Check judges every value in the file, also those that a flag or a variable hides.
func (f File) Check() error {
	for _, s := range settings {
		if v, ok := f.values[s.Name]; ok {
			if err := s.judge(new(Config), v.text, f.where(v)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f File) where(v fileValue) string { return fmt.Sprintf("%s:%d", f.name, v.line) }
