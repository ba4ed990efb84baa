package server

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/shingle-store/shingle/api/client"
	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/wire"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

// The benchmark runs its servers in processes of their own, which are this test binary with
// serveEnv set to what to serve and the folder to use: so processor time is the server's alone.
const serveEnv = "SHINGLE_BENCH_SERVE"

// writeSize is how much each turn of BenchmarkWriteSync writes, in bytes.
const writeSize = 256 << 20

// BenchmarkWriteSync streams random data to a file of a whole service over loopback TCP, without
// compression, onto an emulated device in a file, and has it made durable. What it is held against
// does part of the work: "sink" is a gRPC server with the same codec and the same messages from the
// same client that only counts bytes; "file" is sequential 1 MiB writes, direct where the file
// system takes them, into a preallocated file of the same size beside the device's, and an
// fdatasync. The three run in turn. "ratio" is the service's speed over that of the slower of the
// two others; cpu-s/GiB is user and system time of the server's process.
func BenchmarkWriteSync(b *testing.B) {
	dir := b.TempDir()
	payload := slab.Aligned(1 << 20)
	if _, err := rand.Read(payload); err != nil {
		b.Fatal(err)
	}
	service, sink := startChild(b, "service", dir), startChild(b, "sink", dir)
	direct := newDirectFile(b, filepath.Join(dir, "direct"), writeSize)

	// One turn each unmeasured: the first use of a zone, or of the file, allocates disk space.
	service.write(b, payload)
	sink.write(b, payload)
	direct.write(b, payload)
	var times [3]time.Duration
	serviceCPU, sinkCPU := service.cpu(b), sink.cpu(b)
	turns := 0
	for b.Loop() {
		for range 2 {
			times[0] += service.write(b, payload)
			times[1] += sink.write(b, payload)
			times[2] += direct.write(b, payload)
			turns++
		}
	}
	gib := float64(turns) * writeSize / (1 << 30)
	speed := func(i int) float64 { return float64(turns) * writeSize / 1e6 / times[i].Seconds() }
	b.ReportMetric(speed(0), "MB/s")
	b.ReportMetric(speed(1), "sink-MB/s")
	b.ReportMetric(speed(2), "file-MB/s")
	b.ReportMetric(speed(0)/min(speed(1), speed(2)), "ratio")
	b.ReportMetric((service.cpu(b)-serviceCPU)/gib, "cpu-s/GiB")
	b.ReportMetric((sink.cpu(b)-sinkCPU)/gib, "sink-cpu-s/GiB")
	b.ReportMetric(0, "ns/op")
}

// child is a server process.
type child struct {
	c     *client.Client
	stdin io.Writer
	out   *bufio.Reader
}

// startChild starts a server and connects to it. It ends with the benchmark.
func startChild(b *testing.B, what, dir string) *child {
	b.Helper()
	args := []string{"-test.run=^TestServeBenchmark$"}
	if f := flag.Lookup("test.cpuprofile"); f != nil && f.Value.String() != "" {
		args = append(args, "-test.cpuprofile="+f.Value.String()+"."+what)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), serveEnv+"="+what+" "+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	c := &child{stdin: stdin, out: bufio.NewReader(stdout)}
	b.Cleanup(func() {
		if c.c != nil {
			c.c.Close()
		}
		stdin.Close()
		_, _ = io.Copy(io.Discard, c.out)
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s: %v", what, err)
		}
	})
	if c.c, err = client.Dial(c.line(b)); err != nil {
		b.Fatal(err)
	}
	return c
}

// line reads one line from the server.
func (c *child) line(b *testing.B) string {
	b.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		b.Fatalf("the server said %q: %v", s, err)
	}
	return strings.TrimSpace(s)
}

// cpu asks the server for the processor time it has used, in seconds.
func (c *child) cpu(b *testing.B) (seconds float64) {
	b.Helper()
	if _, err := io.WriteString(c.stdin, "cpu\n"); err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Sscan(c.line(b), &seconds); err != nil {
		b.Fatal(err)
	}
	return seconds
}

// write streams writeSize bytes to a file, syncs it, and deletes it.
func (c *child) write(b *testing.B, payload []byte) time.Duration {
	b.Helper()
	ctx := b.Context()
	begin := time.Now()
	w, err := c.c.Write(ctx, "stream", client.WriteOptions{Sync: true})
	if err != nil {
		b.Fatal(err)
	}
	for range writeSize / len(payload) {
		if _, err := w.Write(payload); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	took := time.Since(begin)
	if err := c.remove(ctx); err != nil {
		b.Fatal(err)
	}
	return took
}

func (c *child) remove(ctx context.Context) error {
	_, err := c.c.Delete(ctx, "stream", client.DeleteOptions{})
	return err
}

// directFile is what a program writes to that needs no service.
type directFile struct{ f *os.File }

func newDirectFile(b *testing.B, path string, size int64) directFile {
	b.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		b.Logf("not preallocated: %v", err)
	}
	if d, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0o600); err == nil {
		b.Cleanup(func() { d.Close() })
		f = d
	}
	return directFile{f}
}

func (d directFile) write(b *testing.B, payload []byte) time.Duration {
	b.Helper()
	begin := time.Now()
	for off := int64(0); off < writeSize; off += int64(len(payload)) {
		if _, err := d.f.WriteAt(payload, off); err != nil {
			b.Fatal(err)
		}
	}
	if err := unix.Fdatasync(int(d.f.Fd())); err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}

// TestServeBenchmark is a server process of BenchmarkWriteSync, and nothing else.
func TestServeBenchmark(t *testing.T) {
	what, dir, ok := strings.Cut(os.Getenv(serveEnv), " ")
	if !ok {
		t.Skip("a process that the benchmark starts")
	}
	o := Options{Now: time.Now}
	srv := NewGRPC(o)
	stop := func() error { return nil }
	if what == "service" {
		e, err := benchEngine(dir)
		if err != nil {
			t.Fatal(err)
		}
		stop = func() error { return e.Close(context.Background()) }
		New(e, o).Register(srv)
	} else {
		pb.RegisterFileServiceServer(srv, &sinkService{})
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	fmt.Println(lis.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var use unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
			t.Error(err)
		}
		fmt.Println(time.Duration(use.Utime.Nano() + use.Stime.Nano()).Seconds())
	}
	srv.Stop()
	if err := errors.Join(<-served, stop()); err != nil {
		t.Error(err)
	}
}

// benchEngine opens a new store on a device in a file, with the engine's defaults.
func benchEngine(dir string) (*engine.Engine, error) {
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 64 << 20, ZoneCapacity: 64 << 20, Zones: 32, MaxOpen: 14, MaxActive: 14}
	path, meta := filepath.Join(dir, "device"), filepath.Join(dir, "metadata")
	if err := filedev.Create(path, g, filedev.CreateOptions{}); err != nil {
		return nil, err
	}
	dev, err := filedev.Open(path)
	if err != nil {
		return nil, err
	}
	err = engine.Format(engine.FormatOptions{
		Devices: []engine.Device{{Device: dev}}, MetadataPath: meta, UUID: [16]byte{1}, Compression: extent.CodecNone, Now: time.Now,
	})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return engine.Open(context.Background(), engine.Options{Devices: []engine.Device{{Device: dev}}, MetadataPath: meta, Now: time.Now, Random: rand.Reader})
}

// sinkService counts the bytes of writes and says that they are durable.
type sinkService struct {
	pb.UnimplementedFileServiceServer
}

func (*sinkService) Write(stream grpc.BidiStreamingServer[pb.WriteRequest, pb.WriteResponse]) error {
	r := &pb.WriteResponse{BootId: 1, FileId: 2}
	for said := int64(0); ; {
		var m wire.WriteRequest
		err := stream.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.ReceivedBytes += int64(m.Len())
		r.DurableBytes = r.ReceivedBytes
		finish := m.Header.GetFinish()
		if finish {
			r.State, r.File = pb.WriteState_WRITE_STATE_FINISHED, &pb.File{Name: "stream", FileId: 2, Size: r.ReceivedBytes}
		}
		due := m.Header.GetSync() || m.Header.GetReport() || finish || r.ReceivedBytes-said >= 4<<20
		m.Free()
		if due {
			if err := stream.SendMsg(r); err != nil {
				return err
			}
			said = r.ReceivedBytes
		}
	}
}

func (*sinkService) DeleteFile(context.Context, *pb.DeleteFileRequest) (*pb.DeleteFileResponse, error) {
	return &pb.DeleteFileResponse{}, nil
}
