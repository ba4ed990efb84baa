package compress

import (
	"fmt"
	"runtime"

	"github.com/klauspost/compress/zstd"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Compressor compresses and decodes. Its methods may be called from any goroutine; as many
// calls of a kind work at once as there are processors, more wait for each other. It starts
// no goroutines and needs no Close.
type Compressor struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

// New returns a Compressor. The zstd level is the fastest: on source text it is half again as
// fast as the default and 8 % larger.
func New() *Compressor {
	procs := runtime.GOMAXPROCS(0)
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(procs),
		zstd.WithWindowSize(extent.MaxFrameSize), zstd.WithEncoderCRC(false))
	if err != nil {
		panic("compress: options of the encoder: " + err.Error())
	}
	// A frame that asks for more than its raw length is refused, so a false header cannot
	// make the decoder allocate. Blocks have checksums of their own (extent 1.4).
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(procs), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(extent.MaxFrameSize), zstd.WithDecoderMaxWindow(extent.MaxFrameSize),
		zstd.IgnoreChecksum(true))
	if err != nil {
		panic("compress: options of the decoder: " + err.Error())
	}
	return &Compressor{enc: enc, dec: dec}
}

// Check returns nil if this version can store with codec, else a Precondition error with
// reason UNKNOWN_FEATURE that names it.
func Check(codec extent.Codec) error {
	if codec == extent.CodecNone || codec == extent.CodecZstd {
		return nil
	}
	return unknown("compress.Check", codec)
}

func unknown(op string, codec extent.Codec) error {
	return errdefs.New(errdefs.Precondition, errdefs.ReasonUnknownFeature, op, "codec "+codec.String(),
		"this version has no such codec")
}

// Frame compresses src, 1 to extent.MaxFrameSize bytes, with codec. If that saves at least one
// block, out is the stored form, not padded, and used is codec; out is in dst's memory if its
// capacity is len(src) + FrameSlack or more. Else out is src itself and used is CodecNone. Data
// that cannot be compressed costs a few percent of the time of text, because the encoder
// gives up on it (BenchmarkFrame); so nothing is guessed here beforehand.
//
// Errors: InvalidArgument for a length out of range, Precondition for an unknown codec.
func (c *Compressor) Frame(dst, src []byte, codec extent.Codec) (out []byte, used extent.Codec, err error) {
	if len(src) == 0 || len(src) > extent.MaxFrameSize {
		return nil, 0, errdefs.Invalid("compress.Frame", "", fmt.Sprintf("frame of %d bytes", len(src)))
	}
	switch codec {
	case extent.CodecNone:
		return src, extent.CodecNone, nil
	case extent.CodecZstd:
		if len(src) <= extent.BlockSize {
			return src, extent.CodecNone, nil
		}
		out = c.enc.EncodeAll(src, dst[:0])
		if extent.BlocksFor(int64(len(out))) >= extent.BlocksFor(int64(len(src))) {
			return src, extent.CodecNone, nil
		}
		return out, extent.CodecZstd, nil
	}
	return nil, 0, unknown("compress.Frame", codec)
}

// FrameSlack is how many bytes longer than its input an encoder's output can be.
const FrameSlack = 64

// Decode decodes frame from src, its stored bytes with or without the padding, into the first
// frame.Raw bytes of dst, which must be that long. It writes nothing beyond them and allocates
// no more than that.
//
// Errors: Corruption if the frame's numbers are not possible or src does not decode to exactly
// Raw bytes, and then dst holds anything; Precondition / UNKNOWN_FEATURE naming the codec if
// this version does not know it; InvalidArgument if dst is too short.
func (c *Compressor) Decode(dst []byte, frame extent.Frame, src []byte) error {
	if err := Check(frame.Codec); err != nil {
		return unknown("compress.Decode", frame.Codec)
	}
	raw, stored := int(frame.Raw), int(frame.Stored)
	switch {
	case raw == 0 || raw > extent.MaxFrameSize:
		return corrupt(frame, "raw length out of range", nil)
	case stored == 0 || stored > len(src):
		return corrupt(frame, fmt.Sprintf("%d bytes to decode from", len(src)), nil)
	case len(dst) < raw:
		return errdefs.Invalid("compress.Decode", "", fmt.Sprintf("%d bytes of room for %d", len(dst), raw))
	}
	if frame.Codec == extent.CodecNone {
		if stored != raw {
			return corrupt(frame, "lengths differ", nil)
		}
		copy(dst[:raw], src)
		return nil
	}
	out, err := c.dec.DecodeAll(src[:stored], dst[:0:raw])
	if err != nil {
		return corrupt(frame, "", err)
	}
	if len(out) != raw {
		return corrupt(frame, fmt.Sprintf("decodes to %d bytes", len(out)), nil)
	}
	if &out[0] != &dst[0] {
		copy(dst, out)
	}
	return nil
}

func corrupt(f extent.Frame, msg string, err error) error {
	e := errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, "compress.Decode",
		fmt.Sprintf("%s frame of %d bytes in %d", f.Codec, f.Raw, f.Stored), msg)
	e.Err = err
	return e
}

// Inline returns how src, a file's first bytes, is kept in its node: compressed if codec makes
// it smaller, else as it is. Ok is false if neither form fits in limit bytes, or src is
// empty, longer than a frame, or codec unknown. stored is memory of its own or src itself. It
// decodes as extent.Frame{Raw: len(src), Stored: len(stored), Codec: used}.
func (c *Compressor) Inline(src []byte, codec extent.Codec, limit int) (stored []byte, used extent.Codec, ok bool) {
	if len(src) == 0 || len(src) > extent.MaxFrameSize || Check(codec) != nil {
		return nil, 0, false
	}
	if codec == extent.CodecZstd {
		if out := c.enc.EncodeAll(src, nil); len(out) < len(src) && len(out) <= limit {
			return out, codec, true
		}
	}
	if len(src) <= limit {
		return src, extent.CodecNone, true
	}
	return nil, 0, false
}
