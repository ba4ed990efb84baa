package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// grpcurl is what the README names.
const grpcurl = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"

// TestGrpcurl drives the API with a tool that knows nothing of it but what reflection tells.
func TestGrpcurl(t *testing.T) {
	if testing.Short() {
		leaveOut(t, "building grpcurl takes too long for -short")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, "go", "install", grpcurl)
	install.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=-mod=mod")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		leaveOut(t, "grpcurl cannot be had: %v: %s", err, lastLine(out))
	}
	s := started(t)
	call := func(data, method string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "grpcurl"), "-plaintext", "-d", data, s.addr, method)
		var out, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &log
		if err := cmd.Run(); err != nil {
			t.Fatalf("grpcurl -d '%s' %s: %v\n%s", data, method, err, &log)
		}
		return out.Bytes()
	}
	var written struct {
		Received string `json:"receivedBytes"`
		Durable  string `json:"durableBytes"`
	}
	last := func(out []byte, into any) {
		t.Helper()
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			must(t, d.Decode(into))
		}
	}
	last(call(`{"name":"docs/a","data":"aGVsbG8=","sync":true}`, "shingle.v1.FileService/Write"), &written)
	if written.Received != "5" || written.Durable != "5" {
		t.Errorf("a whole write in one message answers %+v", written)
	}
	s.restart()
	var content []byte
	for d := json.NewDecoder(bytes.NewReader(call(`{"name":"docs/a"}`, "shingle.v1.FileService/Read"))); d.More(); {
		var piece struct {
			Data string `json:"data"`
		}
		must(t, d.Decode(&piece))
		b, err := base64.StdEncoding.DecodeString(piece.Data)
		must(t, err)
		content = append(content, b...)
	}
	if string(content) != "hello" {
		t.Errorf("Read answers %q", content)
	}
	var list struct {
		Files []struct{ Name, Size string } `json:"files"`
	}
	last(call(`{"directory":"docs"}`, "shingle.v1.FileService/ListFiles"), &list)
	if len(list.Files) != 1 || list.Files[0].Name != "docs/a" || list.Files[0].Size != "5" {
		t.Errorf("ListFiles answers %+v", list)
	}
	if out := string(call(`{}`, "grpc.health.v1.Health/Check")); !strings.Contains(out, "SERVING") {
		t.Errorf("health: %s", out)
	}
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
