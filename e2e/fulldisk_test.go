package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client"
)

// disk is a file system of its own, of so many bytes, that ends with the test.
func disk(t *testing.T, bytes int64) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		leaveOut(t, "no disk of its own can be had here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// putInline puts a file that lies in the metadata, with its data.
func putInline(ctx context.Context, c *client.Client, i int) error {
	return write(ctx, c, fmt.Sprintf("small/%d", i), inlineContent(i))
}

func inlineContent(i int) []byte {
	data := make([]byte, 1800)
	_, _ = (&noise{x: uint64(i)}).Read(data)
	return data
}

// TestMetadataDiskFull fills the disk that holds the metadata. What was set aside there is not
// touched by that. Where the bound was raised since, and could not be set aside, writing is refused
// for want of metadata space, reads and deletes go on, and so does writing as soon as there is room,
// without a restart.
func TestMetadataDiskFull(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := disk(t, 12<<20)
	device := []string{"--device", "file:" + t.TempDir() + "/device?size=512MiB&zone-size=8MiB", "--max-wait", "2s"}
	s := newStore(t, append([]string{"--metadata-limit", "2MiB"}, device...)...)
	s.data = filepath.Join(dir, "data")
	s.start()
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	n := 0 // files put
	c := s.dial()
	for ; n < 100; n++ {
		must(t, putInline(ctx, c, n))
	}
	if x := conditions(ctx, t, c); len(x) != 0 {
		t.Errorf("with all its metadata set aside the engine complains of %v", x)
	}
	s.stop()

	s.args = append([]string{"--metadata-limit", "8MiB"}, device...)
	s.start()
	c = s.dial()
	if x := conditions(ctx, t, c); x["METADATA_SPACE"] != "metadata" {
		t.Errorf("nobody says that the disk had no room: %v", x)
	}
	// untilFull puts files until one is refused, for the right reason.
	untilFull := func() {
		t.Helper()
		for ; ; n++ {
			err := putInline(ctx, c, n)
			if err == nil && n < 3000 {
				continue
			}
			if client.CodeOf(err) != codes.ResourceExhausted || client.ReasonOf(err) != "METADATA_SPACE" {
				t.Fatalf("file %d on the full disk: %v", n, err)
			}
			return
		}
	}
	untilFull()
	first := n
	u, err := c.Usage(ctx)
	must(t, err)
	if m := u.GetMetadataBytes(); first < 150 || m > 2<<20 {
		t.Errorf("refused after %d files, with %d bytes of metadata", first, m)
	}
	if x := conditions(ctx, t, c); x["READ_ONLY"] != "" {
		t.Fatalf("a full disk ended writing: %v", x)
	}
	for i := range n {
		must(t, readsAs(ctx, c, fmt.Sprintf("small/%d", i), inlineContent(i)))
	}
	_, _, err = c.Truncate(ctx, "small/0", 10, nil)
	must(t, err)
	for i := range 30 {
		_, err := c.Delete(ctx, fmt.Sprintf("small/%d", i), client.DeleteOptions{})
		must(t, err)
	}
	untilFull()
	if n == first {
		t.Error("nothing could be written in the place of what was deleted")
	}

	must(t, os.Remove(filler))
	for last := n + 600; n < last; n++ {
		must(t, putInline(ctx, c, n))
	}
	u, err = c.Usage(ctx)
	must(t, err)
	if u.GetMetadataBytes() < 2<<20 {
		t.Errorf("%d bytes of metadata prove nothing", u.GetMetadataBytes())
	}
	quiet(ctx, t, c)
	s.restart()
	c = s.dial()
	for i := 30; i < n; i++ {
		must(t, readsAs(ctx, c, fmt.Sprintf("small/%d", i), inlineContent(i)))
	}
	s.stop()
	s.check()
	t.Logf("%d files before the first refusal, %d in all", first, n)
}

// conditions are the reasons of what is wrong, each with what it is about.
func conditions(ctx context.Context, t *testing.T, c *client.Client) map[string]string {
	t.Helper()
	list, err := c.Conditions(ctx)
	must(t, err)
	out := map[string]string{}
	for _, x := range list {
		out[x.GetReason()] = x.GetObject()
	}
	return out
}
