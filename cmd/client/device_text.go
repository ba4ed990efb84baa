package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// deviceJSON is a device of the store in JSON. A path or a size that is not known is absent.
type deviceJSON struct {
	Device      string       `json:"device"`
	Path        string       `json:"path,omitempty"`
	State       string       `json:"state"`
	Message     string       `json:"message,omitempty"`
	Size        int64        `json:"size_bytes,omitempty"`
	Stored      int64        `json:"stored_bytes"`
	BlockGroups int32        `json:"block_groups"`
	Incomplete  int32        `json:"incomplete_block_groups"`
	Spare       int32        `json:"spare_zones"`
	Geometry    geometryJSON `json:"geometry"`
	// Counters are since the engine opened the device.
	Counters map[string]uint64 `json:"counters"`
}

// rebuildJSON is a rebuild in JSON. Rate and time left are known only to those who wait or watch.
type rebuildJSON struct {
	Running         bool        `json:"running"`
	BlockGroups     int32       `json:"block_groups"`
	BlockGroupsDone int32       `json:"block_groups_done"`
	Bytes           int64       `json:"bytes"`
	BytesDone       int64       `json:"bytes_done"`
	Percent         json.Number `json:"percent"`
	Rate            *int64      `json:"rate_bytes_per_second,omitempty"`
	Left            *float64    `json:"eta_seconds,omitempty"`
	Stuck           string      `json:"stuck,omitempty"`
}

// devicesJSON is what ls and watch answer.
type devicesJSON struct {
	Devices []deviceJSON `json:"devices"`
	Rebuild rebuildJSON  `json:"rebuild"`
}

func deviceToJSON(d *client.Device) deviceJSON {
	j := deviceJSON{
		Device: d.GetDevice(), Path: d.GetPath(), State: deviceState(d), Message: d.GetMessage(), Size: d.GetSizeBytes(),
		Stored: d.GetStoredBytes(), BlockGroups: d.GetBlockGroups(), Incomplete: d.GetIncompleteBlockGroups(), Spare: d.GetSpareZones(),
		Geometry: geometryToJSON(d.GetGeometry()), Counters: map[string]uint64{},
	}
	m := d.GetCounters().ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		j.Counters[string(fields.Get(i).Name())] = m.Get(fields.Get(i)).Uint()
	}
	return j
}

func deviceState(d *client.Device) string { return enumWord(d.GetState().String(), "DEVICE_STATE_") }

func devicesToJSON(devices []*client.Device, r *client.Rebuild, rate *int64) devicesJSON {
	j := devicesJSON{Devices: []deviceJSON{}, Rebuild: rebuildToJSON(r, rate)}
	for _, d := range devices {
		j.Devices = append(j.Devices, deviceToJSON(d))
	}
	return j
}

// rebuildToJSON puts a rate, in bytes a second, to a rebuild, if it is known.
func rebuildToJSON(r *client.Rebuild, rate *int64) rebuildJSON {
	j := rebuildJSON{
		Running: r.GetRunning(), BlockGroups: r.GetBlockGroups(), BlockGroupsDone: r.GetBlockGroupsDone(),
		Bytes: r.GetBytes(), BytesDone: r.GetBytesDone(), Percent: json.Number(rebuildPercent(r)), Stuck: r.GetStuck(),
	}
	if j.Rate = rate; rate != nil && *rate > 0 && j.Running {
		left := float64(max(0, j.Bytes-j.BytesDone)) / float64(*rate)
		j.Left = &left
	}
	return j
}

// rebuildPercent is how much of a rebuild is done, with two digits and rounded down, so that only all of it
// is 100.00. Where no bytes are to be moved the block groups count.
func rebuildPercent(r *client.Rebuild) string {
	done, total := r.GetBytesDone(), r.GetBytes()
	if total <= 0 {
		done, total = int64(r.GetBlockGroupsDone()), int64(r.GetBlockGroups())
	}
	switch {
	case !r.GetRunning() || total > 0 && done >= total:
		return "100.00"
	case total <= 0 || done <= 0:
		return "0.00"
	}
	return fmt.Sprintf("%.2f", min(math.Floor(1e4*float64(done)/float64(total))/100, 99.99))
}

// rebuildPace works out how fast a rebuild goes from its answers: the mean since the first one.
type rebuildPace struct {
	since time.Time
	from  int64
}

// at is the rate at the time of an answer, in bytes a second; nil after the first one.
func (p *rebuildPace) at(now time.Time, r *client.Rebuild) *int64 {
	if p.since.IsZero() || r.GetBytesDone() < p.from { // or another rebuild has begun
		p.since, p.from = now, r.GetBytesDone()
		return nil
	}
	took := now.Sub(p.since).Seconds()
	if took <= 0 {
		return nil
	}
	rate := int64(float64(r.GetBytesDone()-p.from) / took)
	return &rate
}

// rebuildText is how far a rebuild has come, in a line.
func rebuildText(j rebuildJSON) string {
	text := fmt.Sprintf("%s %% of %s, %d of %d block groups", j.Percent, size(j.Bytes), j.BlockGroupsDone, j.BlockGroups)
	if j.Rate != nil {
		text += ", " + size(*j.Rate) + "/s"
	}
	if j.Left != nil && *j.Left < 1e6*3600 {
		text += ", " + hours(time.Duration(*j.Left*float64(time.Second))) + " left"
	}
	if j.Stuck != "" {
		text += "; it does not get on: " + j.Stuck
	}
	return text
}

// devicesText is the table of the devices and what there is to say of them.
func devicesText(w io.Writer, j devicesJSON) error {
	rows := [][]string{{">device", "state", ">size", ">stored", ">groups", ">incomplete", ">spare", "path"}}
	for _, d := range j.Devices {
		whole := "-"
		if d.Size > 0 {
			whole = size(d.Size)
		}
		rows = append(rows, []string{
			d.Device, d.State, whole, size(d.Stored), fmt.Sprint(d.BlockGroups), fmt.Sprint(d.Incomplete), fmt.Sprint(d.Spare), d.Path,
		})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, d := range j.Devices {
		if d.Message != "" {
			fmt.Fprintf(w, "device %s: %s\n", d.Device, d.Message)
		}
	}
	if j.Rebuild.Running {
		fmt.Fprintf(w, "rebuild: %s\n", rebuildText(j.Rebuild))
	}
	return nil
}

func geometryToJSON(g *shinglev1.Geometry) geometryJSON {
	return geometryJSON{
		Dialect: enumWord(g.GetDialect().String(), "ZONE_DIALECT_"), ZoneSize: g.GetZoneSize(),
		ZoneCapacity: g.GetZoneCapacity(), Zones: g.GetZones(), Conventional: g.GetConventionalZones(),
		MaxOpen: g.GetMaxOpenZones(), MaxActive: g.GetMaxActiveZones(), AppendLimit: g.GetAppendLimit(),
	}
}
