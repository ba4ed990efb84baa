package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
)

func (a *app) scrubWatchCommand() *cobra.Command {
	var interval time.Duration
	var raw bool
	cmd := &cobra.Command{
		Use:   "watch [ID]",
		Short: "follow a scrub to its end",
		Long: `watch prints a line an interval on how far the scrub has come, and in the end how it stands. When watch
is interrupted the scrub goes on. Exit status 3: it has finished, and something could not be
corrected.

JSON: a document a line, the last one when the scrub does not run any more.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < 100*time.Millisecond || interval > time.Hour {
				return usagef("--interval %v: from 100ms to 1h", interval)
			}
			ctx := cmd.Context()
			var perr error
			s, err := a.c.WatchScrub(ctx, scrubID(args), interval, func(s *client.Scrub) {
				if perr == nil {
					perr = a.scrubWatched(s)
				}
			})
			switch {
			case perr != nil:
				return perr
			case err != nil:
				return err
			}
			if a.output != "json" {
				if err := a.scrubShow(ctx, s, raw); err != nil {
					return err
				}
			}
			return scrubVerdict(s)
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "from one line to the next, 100ms to 1h")
	cmd.Flags().BoolVarP(&raw, "raw", "R", false, "in the end all counters instead of a summary")
	return cmd
}

// scrubWatched prints how far a scrub has come; the text of one that does not run any more comes later.
func (a *app) scrubWatched(s *client.Scrub) error {
	if a.output == "json" {
		return json.NewEncoder(a.out).Encode(scrubToJSON(s))
	}
	if a.quiet || s.GetState() != scrubRunning {
		return nil
	}
	_, err := fmt.Fprintln(a.out, scrubProgressText(s))
	return err
}
