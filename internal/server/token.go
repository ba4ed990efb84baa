package server

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// tokenVersion is the first byte of a page token. A token of another version is refused as a
// tampered one is: tokens are not kept.
const tokenVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pageToken makes an opaque token: base64url of {version, crc32c of the query, position,
// crc32c of all before}. The query is what must be the same on the next page. The checksums
// catch mistakes; a token gives no rights, so it needs no secret.
func pageToken(query, position string) string {
	b := []byte{tokenVersion}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum([]byte(query), castagnoli))
	b = append(b, position...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseToken returns the position in token, or InvalidArgument naming page_token.
func parseToken(op, query, token string) (position string, err error) {
	bad := func(msg string) (string, error) { return "", errdefs.Invalid(op, "page_token", "page_token: "+msg) }
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	const overhead = 1 + 4 + 4
	if err != nil || strings.ContainsAny(token, "\r\n") || len(b) < overhead || b[0] != tokenVersion {
		return bad("this is no token of this server")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return bad("this is no token of this server")
	}
	if binary.LittleEndian.Uint32(body[1:]) != crc32.Checksum([]byte(query), castagnoli) {
		return bad("this token belongs to a list with other parameters")
	}
	return string(body[5:]), nil
}
