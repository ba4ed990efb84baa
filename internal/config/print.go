package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Print writes the settings that are in use as a configuration file that ParseFile reads back,
// each with where its value comes from; one that has none is there as a comment. Values are
// not judged.
func (s Sources) Print(in []Setting) string {
	var b strings.Builder
	for _, setting := range in {
		value, from := s.choose(setting)
		if value == "" {
			fmt.Fprintf(&b, "# %s: %s\n", setting.Name, setting.Usage)
			continue
		}
		written := scalar(value)
		if setting.Many && strings.Contains(value, "\n") {
			written = list(value)
		}
		fmt.Fprintf(&b, "%s: %s # %s\n", setting.Name, written, from)
	}
	return b.String()
}

// scalar writes a text so that YAML reads it back as it is.
func scalar(text string) string {
	out, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Value: text})
	if err != nil || strings.Count(string(out), "\n") != 1 {
		return fmt.Sprintf("%q", text)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// list writes the lines of a text as a list of one line.
func list(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = fmt.Sprintf("%q", l)
	}
	return "[" + strings.Join(lines, ", ") + "]"
}
