package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// extentJSON is a range of a file in JSON. Address, skip and places are of data only; offset is
// bytes of the file, zone_offset bytes from the start of the zone. Device, zone and zone_offset are those
// of the first copy, places those of all.
type extentJSON struct {
	Name        string      `json:"name"`
	Offset      int64       `json:"offset"`
	Length      int64       `json:"length"`
	Kind        string      `json:"kind"`
	Address     *uint64     `json:"address,omitempty"`
	Skip        int64       `json:"skip,omitempty"`
	Device      string      `json:"device,omitempty"`
	Zone        *uint32     `json:"zone,omitempty"`
	ZoneOffset  *uint64     `json:"zone_offset,omitempty"`
	Places      []placeJSON `json:"places,omitempty"`
	Stored      int64       `json:"stored_bytes"`
	Compression string      `json:"compression,omitempty"`
	Shared      bool        `json:"shared"`
}

// placeJSON is where a copy lies.
type placeJSON struct {
	Device     string `json:"device"`
	Zone       uint32 `json:"zone"`
	ZoneOffset uint64 `json:"zone_offset"`
}

func extentToJSON(x client.MappedExtent) extentJSON {
	j := extentJSON{
		Name: x.File.GetName(), Offset: x.GetOffset(), Length: x.GetLength(), Kind: enumWord(x.GetKind().String(), "FILE_EXTENT_KIND_"),
		Skip: x.GetSkip(), Stored: x.GetStoredBytes(), Shared: x.GetShared(),
	}
	if x.GetCompression() != 0 {
		j.Compression = enumWord(x.GetCompression().String(), "COMPRESSION_")
	}
	if x.GetKind() == shinglev1.FileExtentKind_FILE_EXTENT_KIND_DATA {
		address := x.GetAddress()
		j.Address = &address
	}
	if zones := x.GetZones(); len(zones) > 0 {
		zone, offset := zones[0].GetZone(), zones[0].GetOffset()
		j.Device, j.Zone, j.ZoneOffset = zones[0].GetDevice(), &zone, &offset
	}
	for _, z := range x.GetZones() {
		j.Places = append(j.Places, placeJSON{z.GetDevice(), z.GetZone(), z.GetOffset()})
	}
	return j
}

func (a *app) mapCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "map NAME...",
		Short: "show where files lie on the devices",
		Long: `map lists the ranges of files in order, as filefrag -v does: bytes of the file, logical address,
device/zone, of each copy, and offset in it, length, bytes stored, and flags:

  hole      nothing is stored; reads as zeros
  inline    kept in the file's record
  delalloc  received and not durable yet, so it has no place
  encoded   compressed
  shared    another file, or another place of this one, refers to it too
  last      at the end of the file

JSON: {"extents": [...]}.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var t mapTable
			out := listing[client.MappedExtent]{a: a, key: "extents", text: func(x client.MappedExtent) error { return t.line(a, x) }}
			for _, arg := range args {
				t = mapTable{}
				name, _ := storeName(arg)
				for x, err := range a.c.FileMap(cmd.Context(), name) {
					if err != nil {
						return fmt.Errorf("%s: %w", name, err)
					}
					if err := out.add(x, extentToJSON(x)); err != nil {
						return err
					}
				}
				if a.output == "text" {
					if err := t.end(a, name); err != nil {
						return err
					}
				}
			}
			return out.end()
		},
	}
}

// mapTable is the table of one file, which is printed as it comes: a file may have a million
// extents.
type mapTable struct{ lines, extents int }

// The columns have room for any file that fits a device.
const mapColumns = "%5s %30s %16s %12s %12s %16s %14s  %s"

func (t *mapTable) line(a *app, x client.MappedExtent) error {
	if t.lines == 0 {
		fmt.Fprintf(a.out, "size of %s: %d bytes\n", x.File.GetName(), x.File.GetSize())
		fmt.Fprintf(a.out, mapColumns+"\n", "ext:", "file_offset:", "address:", "device/zone:", "zone_offset:", "length:", "stored:", "flags:")
	}
	number, address, zone, offset, stored := "-", "", "", "", ""
	if x.GetKind() != shinglev1.FileExtentKind_FILE_EXTENT_KIND_HOLE {
		number = fmt.Sprint(t.extents)
		t.extents++
	}
	if x.GetKind() == shinglev1.FileExtentKind_FILE_EXTENT_KIND_DATA {
		address = fmt.Sprint(x.GetAddress()) + ":"
	}
	if zones := x.GetZones(); len(zones) > 0 { // all at one offset
		var places []string
		for _, z := range zones {
			places = append(places, fmt.Sprintf("%s/%d", z.GetDevice(), z.GetZone()))
		}
		zone, offset = strings.Join(places, ",")+":", fmt.Sprint(zones[0].GetOffset())+":"
	}
	if x.GetStoredBytes() > 0 {
		stored = fmt.Sprint(x.GetStoredBytes()) + ":"
	}
	t.lines++
	line := fmt.Sprintf(mapColumns, number+":", fmt.Sprintf("%d..%d:", x.GetOffset(), x.GetOffset()+x.GetLength()-1),
		address, zone, offset, fmt.Sprint(x.GetLength())+":", stored, strings.Join(mapFlags(x), ","))
	_, err := fmt.Fprintln(a.out, strings.TrimRight(line, " "))
	return err
}

// end prints the count, in filefrag's words.
func (t *mapTable) end(a *app, name string) error {
	s := "s"
	if t.extents == 1 {
		s = ""
	}
	_, err := fmt.Fprintf(a.out, "%s: %d extent%s found\n", name, t.extents, s)
	return err
}

// mapFlags are FIEMAP's words for what an extent is.
func mapFlags(x client.MappedExtent) (flags []string) {
	switch x.GetKind() {
	case shinglev1.FileExtentKind_FILE_EXTENT_KIND_HOLE:
		flags = append(flags, "hole")
	case shinglev1.FileExtentKind_FILE_EXTENT_KIND_INLINE:
		flags = append(flags, "inline")
	case shinglev1.FileExtentKind_FILE_EXTENT_KIND_DIRTY:
		flags = append(flags, "delalloc")
	}
	if c := x.GetCompression(); c != shinglev1.Compression_COMPRESSION_UNSPECIFIED && c != shinglev1.Compression_COMPRESSION_NONE {
		flags = append(flags, "encoded")
	}
	if x.GetShared() {
		flags = append(flags, "shared")
	}
	if x.GetOffset()+x.GetLength() >= x.File.GetSize() {
		flags = append(flags, "last")
	}
	return flags
}
