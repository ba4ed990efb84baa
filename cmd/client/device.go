package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

func (a *app) deviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "device",
		Short: "show, add, replace and remove the devices of the store",
		Long: `device is for the devices that the store lies on, in the words of btrfs device and btrfs replace. Reads and
writes go on while data is moved from one to another, and that goes on by itself, over restarts too.

A DEVICE is the number that ls shows, or "missing" for the one that is. A PATH is one of the engine's
machine, written as its --device has it: file:/srv/b, or 'file:/srv/b?size=16GiB' to have the file made. The
engine must be given the same devices with --device when it is started again.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usagef("name a command")
		},
	}
	cmd.AddCommand(a.deviceListCommand(), a.deviceAddCommand(), a.deviceReplaceCommand(), a.deviceRemoveCommand(), a.deviceWatchCommand())
	return cmd
}

func (a *app) deviceListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "show the devices",
		Long: `ls lists the devices by number: state, size, live data on it, block groups that have a place on it, how
many of these are incomplete, for the copy there is out of date or cannot be reached, and zones that no
block group has. Below it says why one does not take part, and how far a rebuild is.

JSON: {"devices": [...], "rebuild": {...}}.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, rebuild, err := a.c.Devices(cmd.Context())
			if err != nil {
				return err
			}
			j := devicesToJSON(devices, rebuild, nil)
			return a.answer(j, func(w io.Writer) error { return devicesText(w, j) })
		},
	}
}

func (a *app) deviceAddCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "add PATH",
		Short: "make a device a part of the store",
		Long: `add makes a device a part of the store: what is written from then on goes there too. With two copies a block
group needs zones on two devices, so the zones of a single new one come into use as block groups on the
others become empty.

JSON: the device.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := a.c.AddDevice(cmd.Context(), args[0], force)
			if err != nil {
				return err
			}
			return a.done(deviceToJSON(d), "added device %s, %s; give it to the engine with --device at each later start", d.GetDevice(), d.GetPath())
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "destroy the store that it holds")
	return cmd
}

func (a *app) deviceReplaceCommand() *cobra.Command {
	var force, noWait bool
	cmd := &cobra.Command{
		Use:   "replace DEVICE PATH",
		Short: "put another device in the place of one",
		Long: `replace adds the device at PATH and moves to it what lies on another one, from that itself or, where it is
missing or fails, from the other copies; then that one is no part of the store any more. It waits until that
is done. Interrupted, or with --no-wait, it leaves the work going: see watch.

JSON: {"device": {...}, "done": ..., "rebuild": {...}}, the device being the new one.`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			old, err := a.deviceNamed(cmd, args[0])
			if err != nil {
				return err
			}
			d, err := a.c.ReplaceDevice(cmd.Context(), old.GetDevice(), args[1], force)
			if err != nil {
				return err
			}
			w := deviceWait{old: old, added: d, what: "replaced", begun: time.Now()}
			if noWait {
				return a.done(w.json(false, nil), "device %s is being replaced by device %s, %s; see `client device watch`",
					old.GetDevice(), d.GetDevice(), d.GetPath())
			}
			return a.deviceWait(cmd.Context(), w)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "destroy the store that the new device holds")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return when it has begun")
	return cmd
}

func (a *app) deviceRemoveCommand() *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:   "remove DEVICE",
		Short: "take a device out of the store",
		Long: `remove moves what lies on a device to the others; then it is no part of the store any more. It waits until
that is done. Interrupted, or with --no-wait, it leaves the work going: see watch.

JSON: {"done": ..., "rebuild": {...}}.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			old, err := a.deviceNamed(cmd, args[0])
			if err != nil {
				return err
			}
			if err := a.c.RemoveDevice(cmd.Context(), old.GetDevice()); err != nil {
				return err
			}
			w := deviceWait{old: old, what: "removed", begun: time.Now()}
			if noWait {
				return a.done(w.json(false, nil), "device %s is being removed; see `client device watch`", old.GetDevice())
			}
			return a.deviceWait(cmd.Context(), w)
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return when it has begun")
	return cmd
}

func (a *app) deviceWatchCommand() *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "follow a rebuild to its end",
		Long: `watch prints a line an interval on how far the rebuild has come, and in the end the devices, as ls does. When
watch is interrupted the rebuild goes on.

JSON: what ls answers, a document a line, the last one when no rebuild runs.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond || interval > time.Hour {
				return usagef("--interval %v: from 100ms to 1h", interval)
			}
			var pace rebuildPace
			var perr error
			_, err := a.c.WatchDevices(cmd.Context(), interval, func(devices []*client.Device, r *client.Rebuild) {
				if perr == nil {
					perr = a.devicesWatched(devicesToJSON(devices, r, pace.at(time.Now(), r)))
				}
			})
			if perr != nil {
				return perr
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "from one line to the next, 100ms to 1h")
	return cmd
}

// devicesWatched prints an answer of the watch.
func (a *app) devicesWatched(j devicesJSON) error {
	if a.output == "json" {
		return json.NewEncoder(a.out).Encode(j)
	}
	if !j.Rebuild.Running {
		return devicesText(a.out, j)
	}
	if a.quiet {
		return nil
	}
	_, err := fmt.Fprintln(a.out, rebuildText(j.Rebuild))
	return err
}

// deviceNamed is the device that an argument stands for. One whose number nobody has is left for the engine
// to refuse.
func (a *app) deviceNamed(cmd *cobra.Command, arg string) (*client.Device, error) {
	if _, err := strconv.ParseUint(arg, 10, 32); err != nil && arg != "missing" {
		return nil, usagef("%q is no device: give its number, see `client device ls`, or \"missing\"", arg)
	}
	devices, _, err := a.c.Devices(cmd.Context())
	if err != nil {
		return nil, err
	}
	var found []*client.Device
	for _, d := range devices {
		if d.GetDevice() == arg || arg == "missing" && d.GetState() == shinglev1.DeviceState_DEVICE_STATE_MISSING {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case arg != "missing":
		return &client.Device{Device: arg}, nil
	case len(found) == 0:
		return nil, errors.New("no device is missing; see `client device ls`")
	}
	return nil, fmt.Errorf("%d devices are missing; give the number of one, see `client device ls`", len(found))
}
