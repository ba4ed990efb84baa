package wire

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/encoding"
	stock "google.golang.org/grpc/encoding/proto"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// pieceUp cuts b into buffers of the given sizes, then the rest, as a transport would. The
// buffers are counted, so that a missing or surplus reference panics.
func pieceUp(b []byte, sizes ...int) mem.BufferSlice {
	var out mem.BufferSlice
	add := func(p []byte) {
		backing := make([]byte, len(p), 2048+len(p))
		copy(backing, p)
		out = append(out, mem.NewBuffer(&backing, mem.NopBufferPool{}))
	}
	for _, n := range sizes {
		n = min(n, len(b))
		add(b[:n])
		b = b[n:]
	}
	add(b)
	return out
}

func requests() map[string]*shinglev1.WriteRequest {
	return map[string]*shinglev1.WriteRequest{
		"empty":     {},
		"name only": {Name: "docs/a"},
		"data only": {Data: []byte("hello")},
		"zero offset is not absent": {
			Name: "a", Offset: proto.Int64(0), Crc32C: proto.Uint32(0), Data: []byte{0},
		},
		"all": {
			Name: "docs/é", Offset: proto.Int64(1 << 40), Crc32C: proto.Uint32(7), Sync: true, Finish: true,
			Options: &shinglev1.WriteOptions{
				Mode: shinglev1.WriteMode_WRITE_MODE_REPLACE, WriteId: "w", MaxWait: durationpb.New(5),
				IfMatch: &shinglev1.Preconditions{Generation: proto.Int64(0)}, Attributes: map[string]string{"k": "v"},
			},
			Report: true, ContentCrc32C: proto.Uint32(9), Data: bytes.Repeat([]byte("abc"), 5000),
		},
	}
}

func TestDecodesWhatTheStockCodecEncodes(t *testing.T) {
	for name, want := range requests() {
		t.Run(name, func(t *testing.T) {
			b, err := proto.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			for _, sizes := range [][]int{nil, {1}, {2, 0, 3}, {0, 0, 7}, {len(b)}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}} {
				var got WriteRequest
				in := pieceUp(b, sizes...)
				if err := Codec().Unmarshal(in, &got); err != nil {
					t.Fatal(err)
				}
				in.Free() // as gRPC does when Unmarshal returns
				if d := cmp.Diff(want, whole(&got), protocmp.Transform()); d != "" {
					t.Errorf("pieces %v: %s", sizes, d)
				}
				got.Free()
				got.Free()
			}
		})
	}
}

// whole puts the payload back into a copy of the header.
func whole(m *WriteRequest) *shinglev1.WriteRequest {
	out := proto.Clone(m.Header).(*shinglev1.WriteRequest)
	if m.Len() > 0 {
		out.Data = bytes.Join(m.Pieces(nil), nil)
	}
	return out
}

func TestEncodesWhatTheStockCodecDecodes(t *testing.T) {
	for name, want := range requests() {
		t.Run(name, func(t *testing.T) {
			m := WriteRequest{Header: proto.Clone(want).(*shinglev1.WriteRequest)}
			m.Header.Data = []byte("must not be sent")
			for d := want.Data; len(d) > 0; {
				n := min(len(d), 4096)
				m.Data = append(m.Data, pieceUp(d[:n])...)
				d = d[n:]
			}
			out, err := Codec().Marshal(&m)
			if err != nil {
				t.Fatal(err)
			}
			var got shinglev1.WriteRequest
			if err := proto.Unmarshal(out.Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, &got, protocmp.Transform()); d != "" {
				t.Error(d)
			}
			if string(m.Header.Data) != "must not be sent" {
				t.Error("the header must come back as it was")
			}
			out.Free()
			m.Free()
		})
	}
}

func TestReadResponseRoundTrip(t *testing.T) {
	data := bytes.Repeat([]byte("xyz"), 9000)
	m := ReadResponse{Header: &shinglev1.ReadResponse{Offset: 5, Crc32C: proto.Uint32(6), File: &shinglev1.File{Name: "a"}}}
	m.Data = mem.BufferSlice{mem.Copy(data, mem.DefaultBufferPool())}
	out, err := Codec().Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	m.Free()
	var got ReadResponse
	if err := Codec().Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	out.Free()
	if !bytes.Equal(bytes.Join(got.Pieces(nil), nil), data) || got.Header.Offset != 5 || got.Header.File.Name != "a" {
		t.Errorf("got %v and %d bytes", got.Header, got.Len())
	}
	got.Free()
}

func TestAnyOrderAndTheLastPayloadWins(t *testing.T) {
	var b []byte
	data := func(s string) { b = protowire.AppendBytes(protowire.AppendTag(b, 15, protowire.BytesType), []byte(s)) }
	data("first")
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), 1)
	b = protowire.AppendString(protowire.AppendTag(b, 900, protowire.BytesType), "unknown")
	data("second")
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), "a")
	var got WriteRequest
	if err := Codec().Unmarshal(pieceUp(b, 3, 3, 3, 3), &got); err != nil {
		t.Fatal(err)
	}
	if p := bytes.Join(got.Pieces(nil), nil); string(p) != "second" || got.Header.Name != "a" || !got.Header.Sync {
		t.Errorf("got %q and %v", p, got.Header)
	}
	// A group, which only the stock decoder reads, and a second message in the same struct.
	b = protowire.AppendTag(b, 901, protowire.StartGroupType)
	b = protowire.AppendTag(b, 901, protowire.EndGroupType)
	if err := Codec().Unmarshal(pieceUp(b, 5), &got); err != nil {
		t.Fatal(err)
	}
	if p := bytes.Join(got.Pieces(nil), nil); string(p) != "second" || len(got.Header.Data) != 0 {
		t.Errorf("got %q and %v", p, got.Header)
	}
	if err := Codec().Unmarshal(pieceUp([]byte{0x7a, 0xff}), &got); err == nil {
		t.Error("a payload past the end must be refused")
	}
	if got.Len() != 0 {
		t.Error("no payload after an error")
	}
}

func TestOtherMessagesTakeTheStockPath(t *testing.T) {
	in := &healthpb.HealthCheckRequest{Service: "s"}
	b, err := Codec().Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out healthpb.HealthCheckRequest
	if err := Codec().Unmarshal(b, &out); err != nil || out.Service != "s" {
		t.Fatalf("%v, %v", &out, err)
	}
	if _, err := Codec().Marshal("no message"); err == nil {
		t.Error("a value that is no message must be refused")
	}
	if Codec().Name() != stock.Name {
		t.Errorf("name %q", Codec().Name())
	}
}

// FuzzDecode holds this decoder against the stock one, whatever the bytes and however they
// are cut up, and encodes again what decoded.
func FuzzDecode(f *testing.F) {
	for _, r := range requests() {
		b, _ := proto.Marshal(r)
		f.Add(b, int64(len(b)))
	}
	f.Add([]byte{0x7a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, int64(1))
	f.Add([]byte{0x7b, 0x7c}, int64(2))
	f.Add([]byte{0x78, 0x80, 0x00}, int64(3))
	reference := encoding.GetCodecV2(stock.Name)
	f.Fuzz(func(t *testing.T, b []byte, seed int64) {
		rng := rand.New(rand.NewSource(seed))
		var sizes []int
		for n := 0; n < len(b); {
			k := rng.Intn(9)
			sizes = append(sizes, k)
			n += k
		}
		var want shinglev1.WriteRequest
		wantErr := reference.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &want)
		var got WriteRequest
		in := pieceUp(b, sizes...)
		err := Codec().Unmarshal(in, &got)
		in.Free()
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("stock: %v, here: %v", wantErr, err)
		}
		if err != nil {
			if got.Len() != 0 {
				t.Fatal("payload after an error")
			}
			return
		}
		if len(want.Data) == 0 {
			want.Data = nil
		}
		if !proto.Equal(&want, whole(&got)) {
			t.Fatalf("stock: %v, here: %v", &want, whole(&got))
		}
		out, err := Codec().Marshal(&got)
		if err != nil {
			t.Fatal(err)
		}
		var again shinglev1.WriteRequest
		if err := reference.Unmarshal(out, &again); err != nil {
			t.Fatal(err)
		}
		out.Free()
		got.Free()
		if !proto.Equal(&want, &again) {
			t.Fatalf("encoded again: %v, want %v", &again, &want)
		}
	})
}
