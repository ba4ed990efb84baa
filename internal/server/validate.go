package server

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Bounds of requests; Limits in store_service.proto says them to clients. Bytes, except
// maxPageSize and maxSyncNames.
const (
	maxNameBytes      = 4096
	maxComponentBytes = 255
	maxAttributeBytes = 64 << 10
	maxIDBytes        = 255 // write_id, request_id
	maxPageSize       = 1000
	maxSyncNames      = 1000
	maxModeBits       = 1<<16 - 1 // st_mode with its type bits
)

// check collects the first violation of one request. op is the method, fields are spelled as
// in the proto.
type check struct {
	op  string
	err error
}

func (c *check) fail(field, format string, args ...any) {
	if c.err == nil {
		c.err = errdefs.Invalid(c.op, field, field+": "+fmt.Sprintf(format, args...))
	}
}

// name checks a path.
func (c *check) name(field, name string) {
	switch {
	case name == "":
		c.fail(field, "must not be empty")
		return
	case len(name) > maxNameBytes:
		c.fail(field, "%d bytes long; at most %d", len(name), maxNameBytes)
		return
	case !utf8.ValidString(name):
		c.fail(field, "not valid UTF-8")
		return
	case strings.IndexByte(name, 0) >= 0:
		c.fail(field, "holds a NUL")
		return
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "":
			c.fail(field, "%q has an empty component; no slash at the start, at the end or twice", name)
		case part == "." || part == "..":
			c.fail(field, "%q has a component %q", name, part)
		case len(part) > maxComponentBytes:
			c.fail(field, "a component is %d bytes long; at most %d", len(part), maxComponentBytes)
		}
	}
}

// directory checks a path that may be the root.
func (c *check) directory(field, name string) {
	if name != "" {
		c.name(field, name)
	}
}

// nameOrID checks that exactly one of both is given.
func (c *check) nameOrID(name string, id uint64) {
	switch {
	case id == 0:
		c.name("name", name)
	case name != "":
		c.fail("file_id", "give name or file_id, not both")
	}
}

// size checks a size or an offset in a file, in bytes.
func (c *check) size(field string, n int64) {
	if n < 0 || n > extent.MaxFileSize {
		c.fail(field, "%d is not within 0 and %d", n, int64(extent.MaxFileSize))
	}
}

// span checks a range in a file; the length must be at least least.
func (c *check) span(offset, length, least int64) {
	c.size("offset", offset)
	switch {
	case c.err != nil:
	case length < least:
		c.fail("length", "%d is less than %d", length, least)
	case length > extent.MaxFileSize-offset:
		c.fail("length", "offset %d and length %d pass the largest file size of %d", offset, length, int64(extent.MaxFileSize))
	}
}

func (c *check) conditions(field string, p *shinglev1.Preconditions) {
	if p == nil {
		return
	}
	if p.Generation != nil && *p.Generation < 0 {
		c.fail(field+".generation", "%d is negative", *p.Generation)
	}
	if p.FileId != nil && *p.FileId == 0 {
		c.fail(field+".file_id", "0 is no file's id")
	}
	if p.Size != nil {
		c.size(field+".size", *p.Size)
	}
}

func (c *check) attributes(field string, attributes map[string]string) {
	n := 0
	for k, v := range attributes {
		if k == "" {
			c.fail(field, "a key is empty")
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			c.fail(field, "not valid UTF-8")
		}
		n += len(k) + len(v)
	}
	if n > maxAttributeBytes {
		c.fail(field, "%d bytes of keys and values; at most %d", n, maxAttributeBytes)
	}
}

func (c *check) timestamp(field string, t *timestamppb.Timestamp) {
	if t == nil {
		return
	}
	if err := t.CheckValid(); err != nil {
		c.fail(field, "not a valid time")
	}
}

func (c *check) duration(field string, d *durationpb.Duration) {
	switch {
	case d == nil:
	case d.CheckValid() != nil:
		c.fail(field, "not a valid duration")
	case d.AsDuration() < 0:
		c.fail(field, "%v is negative", d.AsDuration())
	case d.AsDuration() > maxDuration:
		c.fail(field, "%v is longer than %v", d.AsDuration(), maxDuration)
	}
}

// maxDuration keeps sums of times within their type.
const maxDuration = 10 * 365 * 24 * time.Hour

func (c *check) mode(field string, mode *uint32) {
	if mode != nil && *mode > maxModeBits {
		c.fail(field, "%#o has bits over %#o", *mode, maxModeBits)
	}
}

func (c *check) compression(field string, v shinglev1.Compression) {
	if _, ok := shinglev1.Compression_name[int32(v)]; !ok {
		c.fail(field, "unknown value %d", v)
	}
}

func (c *check) id(field, id string) {
	switch {
	case len(id) > maxIDBytes:
		c.fail(field, "%d bytes long; at most %d", len(id), maxIDBytes)
	case !utf8.ValidString(id):
		c.fail(field, "not valid UTF-8")
	}
}

// page checks page_size and returns it with its default and bound applied.
func (c *check) page(size int32) int {
	switch {
	case size < 0:
		c.fail("page_size", "%d is negative", size)
	case size == 0:
		return maxPageSize
	}
	return min(int(size), maxPageSize)
}
