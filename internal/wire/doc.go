// Package wire moves the payload of Write and Read through gRPC without copying it.
//
// It owns a codec that knows two messages of its own, WriteRequest and ReadResponse: a
// generated message without its data, and the data beside it as reference-counted buffers.
// Everything else goes to the stock protobuf codec, so health, reflection and all other calls
// are untouched, and so are the bytes on the wire: either end may use the stock codec.
//
// It keeps nothing, so it promises nothing after a crash. It leaves checksums and validation
// to its callers. Server: grpc.ForceServerCodecV2(wire.Codec()). Client:
// grpc.ForceCodecV2(wire.Codec()). Then stream.RecvMsg and stream.SendMsg take these messages
// on the generated streams.
package wire
