package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/internal/config"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// configEnv is the variable of --config, which is no setting: a file cannot name another.
const configEnv = "SHINGLE_CONFIG"

// sources gives cmd a flag for each setting, and --config, and returns what reads them once it
// runs. What cannot be read is a usage error.
func (a *app) sources(cmd *cobra.Command, settings []config.Setting) func() (config.Sources, error) {
	flags := cmd.Flags()
	for _, s := range settings {
		usage := s.Usage + " [" + s.Env() + "]"
		switch {
		case s.Switch:
			flags.Bool(s.Name, false, usage)
		case s.Many:
			flags.StringArray(s.Name, nil, usage)
		default:
			flags.String(s.Name, s.Default, usage)
		}
	}
	path := flags.String("config", "", "YAML file of settings, name: value; a flag and a variable count before it ["+configEnv+"]")
	return func() (config.Sources, error) {
		s := config.Sources{
			Flag: func(name string) (string, bool) {
				value := flags.Lookup(name).Value.String()
				if many, err := flags.GetStringArray(name); err == nil {
					value = strings.Join(many, "\n")
				}
				return value, flags.Changed(name)
			},
			Env: a.env,
		}
		from := "--config"
		if !flags.Changed("config") {
			*path, _ = a.env(configEnv)
			from = configEnv
		}
		if *path == "" {
			return s, nil
		}
		content, err := os.ReadFile(*path)
		if err != nil {
			return s, usagef("%s: %v", from, err)
		}
		if s.File, err = config.ParseFile(*path, content); err != nil {
			return s, usagef("%s", errdefs.Sentence(err))
		}
		return s, nil
	}
}

// settle is sources that are resolved.
func (a *app) settle(cmd *cobra.Command, names ...string) func() (config.Config, error) {
	settings := config.Settings(names...)
	sources := a.sources(cmd, settings)
	return func() (config.Config, error) {
		s, err := sources()
		if err != nil {
			return config.Config{}, err
		}
		c, err := s.Resolve(settings)
		if err != nil {
			return c, usagef("%s", errdefs.Sentence(err))
		}
		return c, nil
	}
}

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "show or check the settings",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.configVerb("print", "print the settings that count, and where each comes from",
			`print prints, as a configuration file, every setting with the value that would count if the engine
were started like this, and where that comes from.`,
			func(s config.Sources) error {
				_, err := fmt.Fprint(a.out, s.Print(config.Settings()))
				return err
			}),
		a.configVerb("check", "check the settings",
			`check judges flags, variables and every line of the configuration file, also those that do not count
because a flag or a variable does, and starts nothing.`,
			func(s config.Sources) error {
				if err := s.File.Check(); err != nil {
					return usagef("%s", errdefs.Sentence(err))
				}
				_, err := fmt.Fprintln(a.out, "the settings can be used")
				return err
			}),
	)
	return cmd
}

// configVerb is a command that does something with settings which can be used.
func (a *app) configVerb(name, short, long string, run func(config.Sources) error) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Long: long, Args: noArguments}
	settings := config.Settings()
	sources := a.sources(cmd, settings)
	cmd.RunE = func(*cobra.Command, []string) error {
		s, err := sources()
		if err != nil {
			return err
		}
		if _, err := s.Resolve(settings); err != nil {
			return usagef("%s", errdefs.Sentence(err))
		}
		return run(s)
	}
	return cmd
}
