package shinglev1_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"

	_ "github.com/shingle-store/shingle/api/shingle/v1"
)

// TestGeneratedCodeIsCurrent compiles proto/ and holds it against the descriptors that the
// generated code registers, so that a forgotten `buf generate` fails here.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	const root = "../../../proto"
	var names []string
	sources, err := filepath.Glob(root + "/shingle/v1/*.proto")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	for _, s := range sources {
		names = append(names, filepath.ToSlash(strings.TrimPrefix(s, root+"/")))
	}
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
	}
	files, err := compiler.Compile(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range files {
		registered, err := protoregistry.GlobalFiles.FindFileByPath(source.Path())
		if err != nil {
			t.Errorf("%s has no generated code: %v", source.Path(), err)
			continue
		}
		want, got := protodesc.ToFileDescriptorProto(source), protodesc.ToFileDescriptorProto(registered)
		want.SourceCodeInfo, got.SourceCodeInfo = nil, nil
		if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
			t.Errorf("%s: generated code is stale, run buf generate (-source +generated):\n%s", source.Path(), d)
		}
	}
	registered := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("shingle.v1", func(protoreflect.FileDescriptor) bool {
		registered++
		return true
	})
	if registered != len(names) {
		t.Errorf("%d files are registered, %d are in proto/", registered, len(names))
	}
}

// TestEverythingIsDocumented: the comments of proto/ are the API manual.
func TestEverythingIsDocumented(t *testing.T) {
	sources, err := filepath.Glob("../../../proto/shingle/v1/*.proto")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources {
		b, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		before := ""
		for i, line := range strings.Split(string(b), "\n") {
			text := strings.TrimSpace(line)
			declares := strings.HasSuffix(text, "{") || strings.HasSuffix(text, "{}") || strings.HasSuffix(text, ";")
			exempt := text == "" || strings.HasPrefix(text, "//")
			for _, p := range []string{"syntax ", "package ", "import ", "option ", "reserved ", "}"} {
				exempt = exempt || strings.HasPrefix(text, p)
			}
			if declares && !exempt && !strings.HasPrefix(before, "//") {
				t.Errorf("%s:%d: %q has no comment", filepath.Base(s), i+1, text)
			}
			before = text
		}
	}
}

// TestPayloadIsLast holds the numbering rule: hot fields have one byte of tag, and nothing
// lies behind the payload.
func TestPayloadIsLast(t *testing.T) {
	for _, name := range []protoreflect.FullName{"shingle.v1.WriteRequest", "shingle.v1.ReadResponse"} {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		fields := d.(protoreflect.MessageDescriptor).Fields()
		for i := range fields.Len() {
			if f := fields.Get(i); f.Number() > 15 || (f.Number() == 15) != (f.Name() == "data") {
				t.Errorf("%s.%s has number %d", name, f.Name(), f.Number())
			}
		}
	}
}
