package server

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/errdefs"
)

type writeClient = grpc.BidiStreamingClient[pb.WriteRequest, pb.WriteResponse]

func openWrite(t *testing.T, c pb.FileServiceClient) writeClient {
	t.Helper()
	s, err := c.Write(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func send(t *testing.T, s writeClient, m *pb.WriteRequest) {
	t.Helper()
	if err := s.Send(m); err != nil {
		t.Fatal(err)
	}
}

func recv(t *testing.T, s writeClient) *pb.WriteResponse {
	t.Helper()
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// rest receives to the end and answers the last reply and how the stream ended, nil for OK.
func rest(s writeClient) (last *pb.WriteResponse, n int, err error) {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return last, n, nil
		}
		if err != nil {
			return last, n, err
		}
		last, n = r, n+1
	}
}

func TestOneJSONMessageIsAWholeWrite(t *testing.T) {
	c, f := fakeSetup(t, nil)
	var m pb.WriteRequest
	if err := protojson.Unmarshal([]byte(`{"name":"a","data":"aGVsbG8=","sync":true}`), &m); err != nil {
		t.Fatal(err)
	}
	s := openWrite(t, c)
	send(t, s, &m)
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	last, _, err := rest(s)
	if err != nil {
		t.Fatal(err)
	}
	if last.ReceivedBytes != 5 || last.DurableBytes != 5 || last.BootId != 99 || last.FileId != 42 ||
		last.State != pb.WriteState_WRITE_STATE_FINISHED || last.File.GetName() != "a" || last.File.GetSize() != 5 {
		t.Errorf("%v", last)
	}
	w := <-f.opened
	if string(w.mu.content) != "hello" || !w.isClosed() {
		t.Errorf("%q, closed: %v", w.mu.content, w.isClosed())
	}
}

func TestOffsetsAndPositions(t *testing.T) {
	c, f := fakeSetup(t, nil)
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc")})
	send(t, s, &pb.WriteRequest{Data: []byte("def"), Name: "a"})
	send(t, s, &pb.WriteRequest{Offset: proto.Int64(0), Data: []byte("XY")})
	send(t, s, &pb.WriteRequest{Data: []byte("Z")})
	send(t, s, &pb.WriteRequest{Offset: proto.Int64(8)})
	send(t, s, &pb.WriteRequest{Data: []byte("!"), Finish: true})
	last, _, err := rest(s)
	if err != nil {
		t.Fatal(err)
	}
	if last.ReceivedBytes != 10 || last.DurableBytes != 0 {
		t.Errorf("%v", last)
	}
	if w := <-f.opened; string(w.mu.content) != "XYZdef\x00\x00!" || !w.mu.finished {
		t.Errorf("%q", w.mu.content)
	}
}

func TestReplaceNeedsFinish(t *testing.T) {
	c, f := fakeSetup(t, nil)
	for _, finish := range []bool{false, true} {
		s := openWrite(t, c)
		send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Options: &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE}})
		if finish {
			send(t, s, &pb.WriteRequest{Finish: true, Sync: true})
		} else if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		last, _, err := rest(s)
		if err != nil {
			t.Fatal(err)
		}
		w := <-f.opened
		if finish != (last.File != nil) || finish != (last.State == pb.WriteState_WRITE_STATE_FINISHED) || finish != w.mu.finished {
			t.Errorf("finish %v: %v", finish, last)
		}
		if finish != (last.DurableBytes == 3) || last.ReceivedBytes != 3 {
			t.Errorf("finish %v: %v", finish, last)
		}
		if !finish && last.State != pb.WriteState_WRITE_STATE_UNPUBLISHED {
			t.Errorf("%v", last)
		}
		if w.mu.syncs != 0 {
			t.Error("finish of REPLACE needs no sync of its own")
		}
	}
}

func TestRepliesAreSparse(t *testing.T) {
	c, f := fakeSetup(t, nil)
	f.s.pace.idle = time.Hour
	s := openWrite(t, c)
	const n, size = 400, 100
	for i := range n {
		m := &pb.WriteRequest{Data: make([]byte, size)}
		if i == 0 {
			m.Name = "a"
		}
		send(t, s, m)
	}
	recv(t, s) // progress is told of before the end
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	last, replies, err := rest(s)
	if err != nil || last.ReceivedBytes != n*size {
		t.Fatalf("%v, %v", last, err)
	}
	if most := n * size / 1000; replies > most {
		t.Errorf("%d replies after the first; want at most %d", replies, most)
	}
}

func TestIdleReportAndDurableProgress(t *testing.T) {
	c, f := fakeSetup(t, nil)
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc")})
	if r := recv(t, s); r.ReceivedBytes != 3 || r.FileId != 42 || r.State != pb.WriteState_WRITE_STATE_ACCEPTING {
		t.Errorf("when idle: %v", r)
	}
	w := <-f.opened
	w.setDurable(2)
	if r := recv(t, s); r.DurableBytes != 2 || r.FileId != 0 {
		t.Errorf("after background writeback: %v", r)
	}
	send(t, s, &pb.WriteRequest{Report: true})
	if r := recv(t, s); r.ReceivedBytes != 3 {
		t.Errorf("on report: %v", r)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if last, n, err := rest(s); err != nil || n != 1 || last.FileId != 42 {
		t.Errorf("%v, %d replies, %v", last, n, err)
	}
}

func TestSyncsNeitherBlockNorRepeat(t *testing.T) {
	gate := make(chan struct{})
	c, f := fakeSetup(t, func(w *fakeWriter) { w.syncGate = gate })
	f.s.pace.idle = time.Hour
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("a"), Sync: true})
	w := <-f.opened
	begun := func(n int) {
		t.Helper()
		waitFor(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.mu.syncs == n })
	}
	begun(1)
	send(t, s, &pb.WriteRequest{Data: []byte("b"), Sync: true})
	begun(2) // beside the first
	for range 8 {
		send(t, s, &pb.WriteRequest{Data: []byte("b"), Sync: true})
	}
	waitFor(t, func() bool { n, _ := w.Position(); return n == 10 })
	gate <- struct{}{}
	if r := recv(t, s); r.DurableBytes < 1 || r.DurableBytes > 2 || r.ReceivedBytes != 10 {
		t.Errorf("first sync: %v", r)
	}
	begun(3) // one for all that waited
	gate <- struct{}{}
	gate <- struct{}{}
	for recv(t, s).DurableBytes != 10 {
	}
	// Nothing new, and still an answer.
	send(t, s, &pb.WriteRequest{Sync: true})
	gate <- struct{}{}
	if r := recv(t, s); r.DurableBytes != 10 {
		t.Errorf("empty sync: %v", r)
	}
	if w.mu.syncs != 4 {
		t.Errorf("%d syncs", w.mu.syncs)
	}
	// The end of the stream waits for what is outstanding.
	send(t, s, &pb.WriteRequest{Data: []byte("c"), Sync: true})
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	gate <- struct{}{}
	if last, _, err := rest(s); err != nil || last.DurableBytes != 11 {
		t.Errorf("%v, %v", last, err)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited too long")
		}
	}
}

func TestAFailedSyncEndsTheStream(t *testing.T) {
	c, _ := fakeSetup(t, func(w *fakeWriter) {
		w.mu.syncErr = errdefs.New(errdefs.Device, errdefs.ReasonSyncFailed, "fake.Sync", "file a", "flush failed")
	})
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Sync: true})
	_, _, err := rest(s) // with no CloseSend: the server is blocked in receiving
	wantWriteError(t, err, codes.Internal, "SYNC_FAILED", 3)
}

// wantWriteError checks a Write's error and its position.
func wantWriteError(t *testing.T, err error, code codes.Code, reason string, received int64) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code || detail[*errdetails.ErrorInfo](st).GetReason() != reason {
		t.Errorf("want %v %s, got %v %v", code, reason, err, st.Details())
	}
	d := detail[*pb.WriteDetail](st)
	if received < 0 {
		if d != nil {
			t.Errorf("a position with no write open: %v", d)
		}
		return
	}
	if d.GetLast().GetReceivedBytes() != received || d.GetLast().GetBootId() != 99 {
		t.Errorf("want position %d, got %v", received, d)
	}
}

func TestBadMessagesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		second *pb.WriteRequest
		field  string
	}{
		"another name": {&pb.WriteRequest{Name: "b"}, "name"},
		"options":      {&pb.WriteRequest{Options: &pb.WriteOptions{}}, "options"},
		"offset":       {&pb.WriteRequest{Offset: proto.Int64(-1), Data: []byte("x")}, "offset"},
		"data":         {&pb.WriteRequest{Data: make([]byte, 2<<20+1)}, "data"},
	} {
		t.Run(name, func(t *testing.T) {
			client, f := fakeSetup(t, nil)
			s := openWrite(t, client)
			send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc")})
			send(t, s, c.second)
			_, _, err := rest(s)
			wantWriteError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT", 3)
			if got := detail[*errdetails.BadRequest](status.Convert(err)).GetFieldViolations(); len(got) != 1 || got[0].Field != c.field {
				t.Errorf("%v", got)
			}
			if w := <-f.opened; string(w.mu.content) != "abc" {
				t.Errorf("%q", w.mu.content)
			}
		})
	}
	client, f := fakeSetup(t, nil)
	for _, first := range []*pb.WriteRequest{{}, {Name: "../a"}, {Name: "a", Options: &pb.WriteOptions{Mode: 3}}} {
		s := openWrite(t, client)
		send(t, s, first)
		_, _, err := rest(s)
		wantWriteError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT", -1)
	}
	s := openWrite(t, client)
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	_, _, err := rest(s)
	wantWriteError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT", -1)
	if len(f.opened) != 0 {
		t.Error("the engine was asked")
	}
	s = openWrite(t, client)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Crc32C: proto.Uint32(1)})
	_, _, err = rest(s)
	wantWriteError(t, err, codes.InvalidArgument, "PAYLOAD_CHECKSUM", 0)
}

func TestFinishChecks(t *testing.T) {
	client, _ := fakeSetup(t, nil)
	s := openWrite(t, client)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Finish: true, Options: &pb.WriteOptions{ExpectedSize: proto.Int64(4)}})
	_, _, err := rest(s)
	wantWriteError(t, err, codes.FailedPrecondition, "SIZE_MISMATCH", 3)
}

func TestAResumedWriteHearsItsPositionFirst(t *testing.T) {
	c, _ := fakeSetup(t, func(w *fakeWriter) { w.mu.received, w.mu.durable, w.mu.next = 1000, 600, 1000 })
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Options: &pb.WriteOptions{WriteId: "w"}})
	if r := recv(t, s); r.ReceivedBytes != 1000 || r.DurableBytes != 600 || r.FileId != 42 || r.BootId != 99 {
		t.Errorf("%v", r)
	}
	send(t, s, &pb.WriteRequest{Data: []byte("abc"), Finish: true})
	if last, _, err := rest(s); err != nil || last.ReceivedBytes != 1003 {
		t.Errorf("%v, %v", last, err)
	}
	// With data in the first message the position is still the one before it.
	s = openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Finish: true, Options: &pb.WriteOptions{WriteId: "w"}})
	if r := recv(t, s); r.ReceivedBytes != 1000 {
		t.Errorf("%v", r)
	}
	if _, _, err := rest(s); err != nil {
		t.Error(err)
	}
}

func TestLargeMessagesArriveWhole(t *testing.T) {
	c, f := fakeSetup(t, nil)
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: data})
	send(t, s, &pb.WriteRequest{Data: data[:5], Finish: true})
	if last, _, err := rest(s); err != nil || last.ReceivedBytes != int64(len(data))+5 {
		t.Fatalf("%v, %v", last, err)
	}
	if w := <-f.opened; !bytes.Equal(w.mu.content, append(data, data[:5]...)) {
		t.Error("content differs")
	}
}
