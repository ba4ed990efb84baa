package server

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
)

func TestTokensComeBack(t *testing.T) {
	for _, position := range []string{"", "a", "docs/é/", strings.Repeat("x", 4097), "\x00"} {
		token := pageToken("files", position)
		if strings.Trim(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Errorf("%q is not base64url", token)
		}
		got, err := parseToken("op", "files", token)
		if err != nil || got != position {
			t.Errorf("%q came back as %q, %v", position, got, err)
		}
		if _, err := parseToken("op", "zones", token); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("a token of another list: %v", err)
		}
	}
}

func TestTamperedTokensAreRefused(t *testing.T) {
	token := pageToken("files", "docs/a")
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		for bit := range 8 {
			bad := append([]byte(nil), raw...)
			bad[i] ^= 1 << bit
			if _, err := parseToken("op", "files", base64.RawURLEncoding.EncodeToString(bad)); !errdefs.Is(err, errdefs.InvalidArgument) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
			}
		}
	}
	for _, bad := range []string{"x", "!!!", token[:len(token)-1], token + "A", token + "\n", "\n" + token, " " + token, token + "=", "AAAA"} {
		if _, err := parseToken("op", "files", bad); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add("files", "a", pageToken("files", "a"))
	f.Add("", "", "")
	f.Fuzz(func(t *testing.T, query, position, token string) {
		if got, err := parseToken("op", query, pageToken(query, position)); err != nil || got != position {
			t.Fatalf("%q came back as %q, %v", position, got, err)
		}
		if got, err := parseToken("op", query, token); err == nil && pageToken(query, got) != token {
			t.Fatalf("%q is another spelling of a token", token)
		}
	})
}
