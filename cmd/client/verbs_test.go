package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/shingle-store/shingle/api/client/clienttest"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// TestShown shows what df, zones, info, ls, map and stat print of a store with fixed figures.
func TestShown(t *testing.T) {
	s := clienttest.New(t)
	fill(s)
	datadriven.RunTest(t, "testdata/shown", func(t *testing.T, d *datadriven.TestData) string {
		args := []string{d.Cmd}
		for _, a := range d.CmdArgs {
			args = append(args, a.String())
		}
		r := cli(t, s.Addr, "", args...)
		out := r.out + r.err
		if r.code != exitOK {
			out += fmt.Sprintf("exit %d\n", r.code)
		}
		return out
	})
}

func fill(s *clienttest.Server) {
	const mib = 1 << 20
	s.Usage = &shinglev1.Usage{
		TotalBytes: 1000 * mib, UsedBytes: 300 * mib, FreeBytes: 600 * mib, ZoneUnusableBytes: 50 * mib, ReservedBytes: 40 * mib,
		QuarantinedBytes: 10 * mib, ReclaimableBytes: 20 * mib, DirtyBytes: 1536, RawBytes: 1200 * mib, ActiveZones: 3,
		MaxActiveZones: 14, OpenZones: 2, MetadataBytes: 5 * mib, MetadataMaxBytes: 64 * mib, Files: 12,
		LogicalBytes: 450 * mib, StoredBytes: 299 * mib, InlineBytes: mib, Extents: 77, WritableEstimateBytes: 640 * mib,
		Unusable: &shinglev1.UnusableSpace{DeadBytes: 35 * mib, TailBytes: 14 * mib, FailedBytes: mib, RelocatableBytes: 28 * mib, StuckBytes: 2 * mib},
	}
	s.Info = &shinglev1.GetServerInfoResponse{
		Version: "v1.2.3", Revision: "abc", StoreUuid: "6ba7b810-9dad-11d1-80b4-00c04fd430c8", FormatVersion: 1, Copies: 1,
		Features: []string{"write.replace"}, DefaultCompression: shinglev1.Compression_COMPRESSION_ZSTD,
		Geometry: &shinglev1.Geometry{
			Dialect: shinglev1.ZoneDialect_ZONE_DIALECT_ZNS, ZoneSize: 64 * mib, ZoneCapacity: 60 * mib, Zones: 20,
			ConventionalZones: 2, MaxActiveZones: 14,
		},
		Limits: &shinglev1.Limits{
			MaxFileSize: 8 << 50, MaxExtentSize: 60 * mib, DirtyLimitBytes: 256 * mib, MaxDataBytes: 2 * mib,
			DefaultMaxWait: durationpb.New(30 * time.Second), StagedWriteTtl: durationpb.New(time.Hour),
		},
	}
	s.Conditions = []*shinglev1.Condition{{
		Reason: "ZONE_QUARANTINED", Severity: shinglev1.Severity_SEVERITY_ERROR, Object: "devices/0/zones/7",
		Message: "the zone is offline", Advice: "replace the drive", Since: timestamppb.New(time.Unix(1e9, 0)),
	}, {
		Reason: "CORRUPTION", Severity: shinglev1.Severity_SEVERITY_ERROR, Object: "files/docs/a",
		Message: "docs/a: range [0, +4096): does not match its checksum",
	}}
	s.Counters = map[string]uint64{"commits": 9, "alloc_block_groups_examined": 1234567}
	s.Zones = []*shinglev1.Zone{
		{Device: "0", Zone: 0, Size: 64 * mib, Capacity: 64 * mib, Conventional: true, Condition: shinglev1.ZoneCondition_ZONE_CONDITION_NOT_WP, Use: shinglev1.ZoneUse_ZONE_USE_LABEL},
		{Device: "0", Zone: 2, Start: 128 * mib, Size: 64 * mib, Capacity: 60 * mib, WritePointer: 60 * mib, Condition: shinglev1.ZoneCondition_ZONE_CONDITION_FULL, Use: shinglev1.ZoneUse_ZONE_USE_DATA, LiveBytes: 40 * mib, UnusableBytes: 20 * mib, BlockGroup: proto.Uint32(0), Resets: 4},
		{Device: "0", Zone: 3, Start: 192 * mib, Size: 64 * mib, Capacity: 60 * mib, WritePointer: 4096, Condition: shinglev1.ZoneCondition_ZONE_CONDITION_IMPLICIT_OPEN, Use: shinglev1.ZoneUse_ZONE_USE_DATA, BlockGroup: proto.Uint32(1)},
		{Device: "0", Zone: 7, Start: 448 * mib, Size: 64 * mib, Capacity: 60 * mib, Condition: shinglev1.ZoneCondition_ZONE_CONDITION_OFFLINE, Use: shinglev1.ZoneUse_ZONE_USE_DATA, Quarantined: true},
	}
	place := func(zone uint32, offset uint64) []*shinglev1.ZoneRef {
		return []*shinglev1.ZoneRef{{Device: "0", Zone: zone, Offset: offset}}
	}
	s.Maps = map[string][]*shinglev1.FileExtent{
		"docs/a": {{Length: 5, Kind: shinglev1.FileExtentKind_FILE_EXTENT_KIND_INLINE, StoredBytes: 5, Compression: shinglev1.Compression_COMPRESSION_NONE}},
		"docs/sub/b": {
			{Length: 500, Kind: shinglev1.FileExtentKind_FILE_EXTENT_KIND_HOLE},
			{Offset: 500, Length: 700, Kind: shinglev1.FileExtentKind_FILE_EXTENT_KIND_DATA, Address: 128*mib + 4096, Skip: 500, StoredBytes: 4096, Compression: shinglev1.Compression_COMPRESSION_ZSTD, Shared: true, Zones: append(place(4, 4096), &shinglev1.ZoneRef{Device: "1", Zone: 14, Offset: 4096})},
			{Offset: 1200, Length: 36, Kind: shinglev1.FileExtentKind_FILE_EXTENT_KIND_DATA, Address: 0, StoredBytes: 4096, Compression: shinglev1.Compression_COMPRESSION_NONE, Zones: place(2, 0)},
			{Offset: 1236, Length: 300, Kind: shinglev1.FileExtentKind_FILE_EXTENT_KIND_DIRTY},
		},
	}
	s.Put("docs/a", []byte("hello"))
	s.Put("docs/sub/b", make([]byte, 1536))
	s.Put("top", nil)
}

func TestLongList(t *testing.T) {
	s := clienttest.New(t)
	fill(s)
	out := cli(t, s.Addr, "", "ls", "-lr", "docs").ok(t)
	want := regexp.MustCompile(`^ +5 B +5 B  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  a\n +0 B +0 B  .{19}  sub/\n +1.50 KiB +1.50 KiB  .{19}  sub/b\n$`)
	if !want.MatchString(out) {
		t.Errorf("printed %q", out)
	}
	out = cli(t, s.Addr, "", "stat", "docs/a").ok(t)
	want = regexp.MustCompile(`^name:        docs/a\nkind:        file\n(.*\n)*size:        5 B \(5 bytes\)\n(.*\n)*created:     \d{4}-`)
	if !want.MatchString(out) {
		t.Errorf("printed %q", out)
	}
}

func TestRm(t *testing.T) {
	s := clienttest.New(t)
	fill(s)
	cli(t, s.Addr, "", "rm", "docs").failed(t, exitError, "not empty")
	cli(t, s.Addr, "", "rm", "no").failed(t, exitNotFound, `^client: no: no such file or directory in the store\n$`)
	cli(t, s.Addr, "", "rm", "-r", "no").failed(t, exitNotFound, "no such file")
	cli(t, s.Addr, "", "rm", "-r", "/").failed(t, exitUsage, "root stays")
	cli(t, s.Addr, "", "rm", "-f", "no").ok(t)
	cli(t, s.Addr, "", "rm", "-rf", "no").ok(t)
	r := cli(t, s.Addr, "", "rm", "no", "top")
	r.failed(t, exitNotFound, "no")
	stored(t, s, map[string]string{"docs/": "", "docs/a": "hello", "docs/sub/": "", "docs/sub/b": strings.Repeat("\x00", 1536)})
	var got removed
	unmarshal(t, cli(t, s.Addr, "", "rm", "-r", "docs/", "--output", "json").ok(t), &got)
	if got.Deleted != 4 || got.Freed != 1541 {
		t.Errorf("answered %+v", got)
	}
	stored(t, s, nil)
}

func TestClone(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", []byte("A"))
	s.Put("b", []byte("B"))
	s.Put("d/c", []byte("C"))
	cli(t, s.Addr, "", "clone", "-n", "a", "b").failed(t, exitError, "exists")
	cli(t, s.Addr, "", "clone", "no", "x").failed(t, exitNotFound, `^client: no: no such file or directory in the store\n$`)
	cli(t, s.Addr, "", "clone", "d", "x").failed(t, exitError, "is a directory")
	cli(t, s.Addr, "", "clone", "a", "b", "x").failed(t, exitUsage, "not a directory")
	cli(t, s.Addr, "", "clone", "a").failed(t, exitUsage, "")
	stored(t, s, map[string]string{"a": "A", "b": "B", "d/": "", "d/c": "C"})
	if out := cli(t, s.Addr, "", "clone", "a", "b").ok(t); out != "" {
		t.Errorf("printed %q", out)
	}
	cli(t, s.Addr, "", "clone", "b", "d").ok(t)
	cli(t, s.Addr, "", "clone", "a", "d/c", "e/f/").ok(t)
	stored(t, s, map[string]string{"a": "A", "b": "A", "d/": "", "d/b": "A", "d/c": "C", "e/": "", "e/f/": "", "e/f/a": "A", "e/f/c": "C"})
	r := cli(t, s.Addr, "", "clone", "no", "a", "d/")
	r.failed(t, exitNotFound, "no")
	var got struct{ Files []fileJSON }
	unmarshal(t, cli(t, s.Addr, "", "clone", "a", "d/c", "g/", "--output", "json").ok(t), &got)
	if len(got.Files) != 2 || got.Files[0].Name != "g/a" || got.Files[1].Name != "g/c" {
		t.Errorf("answered %+v", got)
	}
}

func TestMapJSON(t *testing.T) {
	s := clienttest.New(t)
	fill(s)
	var got struct{ Extents []extentJSON }
	unmarshal(t, cli(t, s.Addr, "", "map", "docs/sub/b", "docs/a", "--output", "json").ok(t), &got)
	if len(got.Extents) != 5 {
		t.Fatalf("answered %+v", got)
	}
	x := got.Extents[1]
	if x.Name != "docs/sub/b" || x.Offset != 500 || x.Length != 700 || x.Kind != "data" || *x.Address != 128<<20+4096 || x.Skip != 500 ||
		x.Device != "0" || *x.Zone != 4 || *x.ZoneOffset != 4096 || x.Stored != 4096 || x.Compression != "zstd" || !x.Shared {
		t.Errorf("answered %+v", x)
	}
	if x := got.Extents[2]; x.Address == nil || *x.Address != 0 || *x.ZoneOffset != 0 {
		t.Errorf("address 0 is an address: %+v", x)
	}
	for i, kind := range map[int]string{0: "hole", 3: "dirty", 4: "inline"} {
		if x := got.Extents[i]; x.Kind != kind || x.Address != nil || x.Zone != nil {
			t.Errorf("answered %+v, want kind %s", x, kind)
		}
	}
}

func TestMv(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", []byte("A"))
	s.Put("b", []byte("B"))
	s.Put("d/c", []byte("C"))
	cli(t, s.Addr, "", "mv", "-n", "a", "b").failed(t, exitError, "exists")
	cli(t, s.Addr, "", "mv", "no", "x").failed(t, exitNotFound, "no")
	cli(t, s.Addr, "", "mv", "a", "b", "x").failed(t, exitUsage, "not a directory")
	cli(t, s.Addr, "", "mv", "a", "b").ok(t)
	stored(t, s, map[string]string{"b": "A", "d/": "", "d/c": "C"})
	cli(t, s.Addr, "", "mv", "b", "d").ok(t)
	cli(t, s.Addr, "", "mv", "d", "e/f").ok(t)
	stored(t, s, map[string]string{"e/": "", "e/f/": "", "e/f/b": "A", "e/f/c": "C"})
	var list struct{ Files []fileJSON }
	unmarshal(t, cli(t, s.Addr, "", "mv", "e/f/b", "e/f/c", "/", "--output=json").ok(t), &list)
	if len(list.Files) != 2 || list.Files[1].Name != "c" {
		t.Errorf("answered %+v", list)
	}
	stored(t, s, map[string]string{"e/": "", "e/f/": "", "b": "A", "c": "C"})
}

func TestSync(t *testing.T) {
	s := clienttest.New(t)
	s.Put("a", nil)
	var got synced
	unmarshal(t, cli(t, s.Addr, "", "sync", "a", "--output", "json").ok(t), &got)
	if got.BootID != bootID(s.Boot()) || got.CommitSequence == 0 {
		t.Errorf("answered %+v", got)
	}
	if out := cli(t, s.Addr, "", "sync", "--boot-id", got.BootID).ok(t); out != "" {
		t.Errorf("said %q", out)
	}
	cli(t, s.Addr, "", "sync", "--boot-id", "1").failed(t, exitError, "restarted")
	cli(t, s.Addr, "", "sync", "--boot-id", "xyz").failed(t, exitUsage, "hexadecimal")
	cli(t, s.Addr, "", "sync", "no").failed(t, exitNotFound, "no file")
}

func TestGlobalFlags(t *testing.T) {
	s := clienttest.New(t)
	cli(t, "127.0.0.1:1", "", "df", "--addr", s.Addr).ok(t)
	cli(t, "127.0.0.1:1", "", "df").failed(t, exitUnavailable, "^client: no engine answers at 127.0.0.1:1; start one with `go run ./cmd/engine`\n$")
	dir := folder(t, map[string]string{"a": "A", "b": "B"})
	cli(t, "127.0.0.1:1", "", "put", "-r", dir, "x/").failed(t, exitUnavailable, "^client: /.*: no engine answers .*\n$")
	cli(t, s.Addr, "", "df", "--output", "xml").failed(t, exitUsage, "text or json")
	cli(t, s.Addr, "", "df", "--timeout", "-1s").failed(t, exitUsage, "negative")
	cli(t, s.Addr, "", "df", "--addr", "dns://%zz").failed(t, exitUsage, "address")
	cli(t, "127.0.0.1:1", "", "ls").failed(t, exitUnavailable, "^client: no engine answers .*\n$")
	cli(t, s.Addr, "", "frob").failed(t, exitUsage, "^client: \"frob\" is no command; see `client --help`\n$")
	cli(t, s.Addr, "", "df", "a").failed(t, exitUsage, "^client: \"a\": client df takes no arguments; see `client df --help`\n$")
	cli(t, s.Addr, "", "mv", "a").failed(t, exitUsage, "see `client mv --help`\n$")
	cli(t, s.Addr, "").failed(t, exitUsage, "name a command")
	if out := cli(t, "", "", "--help").ok(t); !strings.Contains(out, defaultAddr) || !strings.Contains(out, "4  data loss") {
		t.Errorf("help: %s", out)
	}
	s.Faults.Call = func(string) error {
		return clienttest.Errorf(codes.Unavailable, "DRAINING", nil, "the engine is going down")
	}
	cli(t, s.Addr, "", "df", "--timeout", "150ms").failed(t, exitUnavailable, "^client: (the engine is going down)\n$")
}

func TestNamesAreSaidOnce(t *testing.T) {
	s := clienttest.New(t)
	for message, want := range map[string]string{
		"directory docs: is not empty": "docs: is not empty",
		"docs: is a directory":         "docs: is a directory",
		"file docs: is gone":           "docs: is gone",
		"file doc: is gone":            "docs: file doc: is gone",
	} {
		s.Faults.Call = func(string) error {
			return clienttest.Errorf(codes.FailedPrecondition, "PRECONDITION", nil, message)
		}
		cli(t, s.Addr, "", "stat", "docs").failed(t, exitError, "^client: "+want+"\n$")
	}
}

func TestGraver(t *testing.T) {
	order := []int{exitOK, exitError, exitNotFound, exitUnavailable, exitDataLoss}
	for i, a := range order {
		for j, b := range order {
			if got, want := graver(a, b), order[max(i, j)]; got != want {
				t.Errorf("graver(%d, %d) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestSize(t *testing.T) {
	for _, c := range []struct {
		n    uint64
		want string
	}{
		{0, "0 B"}, {1023, "1023 B"}, {1024, "1.00 KiB"}, {1536, "1.50 KiB"}, {10 * 1024, "10.0 KiB"}, {100 * 1024, "100 KiB"},
		{1023 * 1024, "1.00 MiB"}, {999 * 1024, "999 KiB"}, {1 << 20, "1.00 MiB"}, {20 << 40, "20.0 TiB"}, {1<<64 - 1, "16.0 EiB"},
	} {
		if got := size(c.n); got != c.want {
			t.Errorf("%d: %q, want %q", c.n, got, c.want)
		}
	}
}
