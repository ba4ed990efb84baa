package wire

import (
	"google.golang.org/grpc/encoding"
	stock "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// dataField is the number of the payload in WriteRequest and ReadResponse.
const dataField protowire.Number = 15

// codec embeds the stock one for its name and for every message that is not a carrier.
type codec struct{ encoding.CodecV2 }

// Codec returns the codec. It has no state and is safe for concurrent use; its name is that
// of the stock protobuf codec, whose bytes it speaks.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(stock.Name)} }

// Marshal encodes v. For a carrier the answer is the encoded header and then the payload's
// own buffers, each with one more reference.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(carrier)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	h := m.header()
	data := m.swapData(nil)
	defer m.swapData(data)
	n := m.payload().Len()

	size := proto.Size(h)
	head := make([]byte, 0, size+protowire.SizeTag(dataField)+protowire.SizeVarint(uint64(n)))
	head, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(head, h)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return mem.BufferSlice{mem.SliceBuffer(head)}, nil
	}
	head = protowire.AppendTag(head, dataField, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(n))
	out := make(mem.BufferSlice, 0, 1+len(m.payload().Data))
	out = append(out, mem.SliceBuffer(head))
	for _, b := range m.payload().Data {
		b.Ref()
		out = append(out, b)
	}
	return out, nil
}

// Unmarshal decodes data into v. A carrier keeps references to the buffers that hold its
// payload; they live until its Free or its next Unmarshal. After an error a carrier holds no
// payload and its header is undefined.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(carrier)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m.payload().Free()
	head, first, last, ok := split(data)
	if !ok {
		return c.unmarshalWhole(data, m)
	}
	if err := proto.Unmarshal(head, m.header()); err != nil {
		return err
	}
	m.payload().Data = cut(data, first, last)
	return nil
}

// unmarshalWhole leaves the whole message to the stock codec: groups, and bytes that are no
// message at all, for which its error is the right one.
func (c codec) unmarshalWhole(data mem.BufferSlice, m carrier) error {
	if err := c.CodecV2.Unmarshal(data, m.header()); err != nil {
		return err
	}
	if p := m.swapData(nil); len(p) > 0 {
		m.payload().Data = mem.BufferSlice{mem.SliceBuffer(p)}
	}
	return nil
}
