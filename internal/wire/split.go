package wire

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// split finds the payload in an encoded message: head is a copy of everything else, in order,
// and the payload is the bytes [first, last) of data, counted over all buffers. As in every
// protobuf decoder the last of several payloads wins. ok is false when the message has a
// group or is malformed; the stock decoder must look at it then.
func split(data mem.BufferSlice) (head []byte, first, last int, ok bool) {
	c := cursor{rest: data}
	c.next()
	for !c.atEnd() {
		var raw [2 * maxVarint]byte
		key, tag, ok := c.varint(raw[:0])
		if !ok {
			return nil, 0, 0, false
		}
		num, typ := protowire.DecodeTag(tag)
		if !num.IsValid() {
			return nil, 0, 0, false
		}
		var length uint64
		switch typ {
		case protowire.VarintType:
			if key, _, ok = c.varint(key); !ok {
				return nil, 0, 0, false
			}
		case protowire.Fixed32Type:
			length = 4
		case protowire.Fixed64Type:
			length = 8
		case protowire.BytesType:
			if key, length, ok = c.varint(key); !ok {
				return nil, 0, 0, false
			}
		default:
			return nil, 0, 0, false
		}
		if num == dataField && typ == protowire.BytesType {
			first = c.pos
			if !c.skip(length) {
				return nil, 0, 0, false
			}
			last = c.pos
			continue
		}
		head = append(head, key...)
		if head, ok = c.take(head, length); !ok {
			return nil, 0, 0, false
		}
	}
	return head, first, last, true
}

// cut returns the bytes [first, last) of data as buffers, each with a reference of its own.
func cut(data mem.BufferSlice, first, last int) mem.BufferSlice {
	var out mem.BufferSlice
	pos := 0
	for _, b := range data {
		n := b.Len()
		lo, hi := max(first, pos), min(last, pos+n)
		if lo < hi {
			out = append(out, b.Slice(lo-pos, hi-pos))
		}
		pos += n
	}
	return out
}

// maxVarint is the most bytes of a varint.
const maxVarint = 10

// cursor walks over the bytes of a BufferSlice.
type cursor struct {
	rest mem.BufferSlice // buffers after cur
	cur  []byte          // unread part of the present buffer
	pos  int             // bytes read
}

// next goes on to the next buffer with something in it, if cur is used up.
func (c *cursor) next() {
	for len(c.cur) == 0 && len(c.rest) > 0 {
		c.cur, c.rest = c.rest[0].ReadOnlyData(), c.rest[1:]
	}
}

func (c *cursor) atEnd() bool { return len(c.cur) == 0 }

// varint reads a varint and appends its bytes to dst as they are, so that unknown fields
// keep their exact encoding.
func (c *cursor) varint(dst []byte) (raw []byte, v uint64, ok bool) {
	for i := range maxVarint {
		if c.atEnd() {
			return nil, 0, false
		}
		b := c.cur[0]
		c.cur = c.cur[1:]
		c.pos++
		c.next()
		dst = append(dst, b)
		if i == maxVarint-1 && b > 1 {
			return nil, 0, false
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return dst, v, true
		}
	}
	return nil, 0, false
}

// take appends the next n bytes to dst.
func (c *cursor) take(dst []byte, n uint64) ([]byte, bool) {
	for n > 0 {
		if c.atEnd() {
			return nil, false
		}
		k := min(n, uint64(len(c.cur)))
		dst = append(dst, c.cur[:k]...)
		c.advance(int(k))
		n -= k
	}
	return dst, true
}

// skip passes over the next n bytes.
func (c *cursor) skip(n uint64) bool {
	for n > 0 {
		if c.atEnd() {
			return false
		}
		k := min(n, uint64(len(c.cur)))
		c.advance(int(k))
		n -= k
	}
	return true
}

func (c *cursor) advance(k int) {
	c.cur = c.cur[k:]
	c.pos += k
	c.next()
}
