package main

import (
	"fmt"
	"io"

	"github.com/shingle-store/shingle/api/client"
)

// classJSON is the space in the block groups of one class and kind, in bytes.
type classJSON struct {
	Class        string `json:"class"`
	Conventional bool   `json:"conventional"`
	BlockGroups  int64  `json:"block_groups"`
	Capacity     int64  `json:"capacity_bytes"`
	Used         int64  `json:"used_bytes"`
	Free         int64  `json:"free_bytes"`
	Unusable     int64  `json:"zone_unusable_bytes"`
	Pending      int64  `json:"pending_bytes"`
	Quarantined  int64  `json:"quarantined_bytes"`
}

func classesToJSON(u *client.Usage) (out []classJSON) {
	for _, c := range u.GetClasses() {
		out = append(out, classJSON{
			Class: enumWord(c.GetClass().String(), "BLOCK_GROUP_CLASS_"), Conventional: c.GetConventional(),
			BlockGroups: c.GetBlockGroups(), Capacity: c.GetCapacity(), Used: c.GetUsed(), Free: c.GetFree(),
			Unusable: c.GetZoneUnusable(), Pending: c.GetPending(), Quarantined: c.GetQuarantined(),
		})
	}
	return out
}

// classesText prints a line for each class and kind, where there is more than one.
func classesText(w io.Writer, classes []classJSON) error {
	if len(classes) < 2 {
		return nil
	}
	rows := [][]string{{"block groups", "zones", ">number", ">capacity", ">used", ">free", ">unusable", ">pending", ">quarantined"}}
	for _, c := range classes {
		kind := "sequential"
		if c.Conventional {
			kind = "conventional"
		}
		rows = append(rows, []string{
			c.Class, kind, fmt.Sprint(c.BlockGroups), size(c.Capacity), size(c.Used), size(c.Free), size(c.Unusable), size(c.Pending), size(c.Quarantined),
		})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return table(w, rows)
}
