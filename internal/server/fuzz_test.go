package server

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/zone"
)

// choices are what a fuzzer's bytes decide, one after the other; when they are used up every choice is
// the first.
type choices struct {
	left []byte
	tame bool // requests are likely to be taken
}

func (c *choices) next() byte {
	if len(c.left) == 0 {
		return 0
	}
	b := c.left[0]
	c.left = c.left[1:]
	return b
}

func (c *choices) of(n int) int { return int(c.next()) % n }

func (c *choices) bytes(n int) []byte {
	n = min(n, len(c.left))
	b := slices.Clone(c.left[:n])
	c.left = c.left[n:]
	return b
}

var (
	someNames = []string{"a", "b", "d/a", "d", // the tame ones
		"d/e/f", "", "/", "..", "a/../b", "x\x00", "d//a", "\u00e9"}
	someInts = []uint64{0, 1, 2, 4095, 4096, 4097, 100_000, 1 << 20, // the tame ones
		1<<31 - 1, 1 << 31, 1 << 40, 1 << 60,
		math.MaxInt64 - 4096, math.MaxInt64, 1 << 63, math.MaxUint64}
)

// fill sets fields of the message to values that are likely to matter, or to any.
func (c *choices) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !c.sets(f) || depth > 4 {
			continue
		}
		switch {
		case f.IsMap():
			entries := m.Mutable(f).Map()
			for range 1 + c.of(3) {
				entries.Set(c.scalar(f.MapKey()).MapKey(), c.value(entries.NewValue, f.MapValue(), depth))
			}
		case f.IsList():
			list := m.Mutable(f).List()
			for range 1 + c.of(3) {
				list.Append(c.value(list.NewElement, f, depth))
			}
		default:
			m.Set(f, c.value(func() protoreflect.Value { return m.NewField(f) }, f, depth))
		}
	}
}

// sets decides whether a field is set.
func (c *choices) sets(f protoreflect.FieldDescriptor) bool {
	if !c.tame {
		return c.of(3) == 1
	}
	switch name := string(f.Name()); {
	case name == "name" || name == "new_name" || name == "file" || name == "data":
		return c.of(8) != 7
	case strings.Contains(name, "crc32c") || strings.HasPrefix(name, "if_") || strings.HasPrefix(name, "expected_"),
		name == "boot_id" || name == "file_id" || name == "page_token" || name == "request_id":
		return c.of(8) == 7
	}
	return c.of(3) == 1
}

func (c *choices) value(empty func() protoreflect.Value, f protoreflect.FieldDescriptor, depth int) protoreflect.Value {
	if f.Message() == nil {
		return c.scalar(f)
	}
	v := empty()
	c.fill(v.Message(), depth+1)
	return v
}

func (c *choices) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	ints, names := len(someInts), len(someNames)
	if c.tame {
		ints, names = 8, 4
	}
	n := someInts[c.of(ints)]
	if !c.tame && c.of(8) == 7 {
		n = binary.LittleEndian.Uint64(append(c.bytes(8), make([]byte, 8)...))
	}
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n) % 8))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, n%200_000))
	}
	if !c.tame && c.of(8) == 7 {
		return protoreflect.ValueOfString(string([]rune(string(c.bytes(20))))) // valid UTF-8
	}
	return protoreflect.ValueOfString(someNames[c.of(names)])
}

// methods are all RPCs of the API, by name.
func methods() (out []protoreflect.MethodDescriptor) {
	protoregistry.GlobalFiles.RangeFilesByPackage("shingle.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				out = append(out, service.Methods().Get(j))
			}
		}
		return true
	})
	slices.SortFunc(out, func(a, b protoreflect.MethodDescriptor) int { return cmp.Compare(a.FullName(), b.FullName()) })
	return out
}

func newMessage(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return m.New().Interface()
}

// call makes one RPC with requests that the choices decide, and returns its error.
func (c *choices) call(ctx context.Context, t *testing.T, conn grpc.ClientConnInterface, m protoreflect.MethodDescriptor) error {
	name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: true}, name)
	if err != nil {
		return err
	}
	requests := 1
	if m.IsStreamingClient() {
		requests = 1 + c.of(4)
	}
	for range requests {
		r := newMessage(t, m.Input())
		if c.tame = c.of(4) != 3; !c.tame && c.of(8) == 7 {
			_ = proto.Unmarshal(c.bytes(30), r) // any message at all, or a part of one
		} else {
			c.fill(r.ProtoReflect(), 0)
		}
		if stream.SendMsg(r) != nil {
			break // the error is in RecvMsg
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for range 100 {
		err := stream.RecvMsg(newMessage(t, m.Output()))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var tiny = zone.Geometry{Dialect: zone.ZNS, ZoneSize: 256 << 10, ZoneCapacity: 192 << 10, Zones: 24, MaxOpen: 4, MaxActive: 5}

// FuzzServer calls the RPCs of the API one after the other, with whatever requests, on a server with an
// engine in memory. None may panic or answer INTERNAL, UNKNOWN or DATA_LOSS; the store goes on to take a
// file, and the account of space adds up.
func FuzzServer(f *testing.F) {
	all := methods()
	for i := range all {
		f.Add([]byte{byte(i)})
		for _, set := range []byte{1, 7} { // each sets all fields, to different values
			program := []byte{byte(i)}
			for j := range byte(60) {
				program = append(program, set+3*(j%5)*(set/4))
			}
			f.Add(program)
		}
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 2000 {
			return
		}
		throw(t, all, program)
	})
}

// TestRandomRequests is FuzzServer for programs of nobody's making.
func TestRandomRequests(t *testing.T) {
	programs := 40
	if testing.Short() {
		programs = 10
	}
	seed := uint64(time.Now().UnixNano())
	all := methods()
	for i := range programs {
		r := rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), seed+uint64(i))))
		program := make([]byte, 1000)
		_, _ = r.Read(program)
		if !t.Run(fmt.Sprint(seed+uint64(i)), func(t *testing.T) { throw(t, all, program) }) {
			t.Fatalf("the program is %q", program)
		}
	}
}

// throw runs a program.
func throw(t *testing.T, all []protoreflect.MethodDescriptor, program []byte) {
	s := newStore(t, tiny)
	conn := s.conn
	c := choices{left: program}
	for calls := 0; len(c.left) > 0 && calls < 30; calls++ {
		m := all[c.of(len(all))]
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := c.call(ctx, t, conn, m)
		cancel()
		switch status.Code(err) {
		case codes.Internal, codes.Unknown, codes.DataLoss:
			t.Fatalf("%s answers %v", m.FullName(), err)
		}
		u := s.e.Usage()
		if sum := u.Used + u.Free + u.Unusable + u.Reserved + u.Quarantined; sum != u.Total {
			t.Fatalf("after %s used, free, unusable, reserved and quarantined add up to %d and not to %d: %+v", m.FullName(), sum, u.Total, u)
		}
	}
	if s.e.Info().ReadOnly {
		t.Fatal("the store takes no changes any more")
	}
	if _, err := s.files.GetFile(t.Context(), &pb.GetFileRequest{Name: "nobody made this"}); status.Code(err) != codes.NotFound {
		t.Fatalf("after all that a question is answered with %v", err)
	}
}
