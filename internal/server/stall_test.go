package server

import (
	"context"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
)

func TestAStallIsReported(t *testing.T) {
	gate := make(chan struct{})
	c, _ := fakeSetup(t, func(w *fakeWriter) { w.gate, w.gateIn = gate, engine.WaitingSpace })
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Finish: true})
	for range 3 {
		if r := recv(t, s); r.State != pb.WriteState_WRITE_STATE_WAITING_SPACE || r.ReceivedBytes != 0 {
			t.Errorf("heartbeat: %v", r)
		}
	}
	close(gate)
	if last, _, err := rest(s); err != nil || last.ReceivedBytes != 3 {
		t.Errorf("%v, %v", last, err)
	}
}

func TestRefusalComesBeforeTheDeadline(t *testing.T) {
	for state, reason := range map[engine.WriteState]string{
		engine.WaitingSpace: "RECLAIM_PENDING", engine.WaitingWriteback: "WRITEBACK_PENDING",
	} {
		c, f := fakeSetup(t, func(w *fakeWriter) { w.gate, w.gateIn = make(chan struct{}), state })
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		s, err := c.Write(ctx)
		if err != nil {
			t.Fatal(err)
		}
		send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc")})
		_, _, err = rest(s)
		wantWriteError(t, err, codes.ResourceExhausted, reason, 0)
		st := status.Convert(err)
		if detail[*pb.SpaceDetail](st).GetUsage().GetFreeBytes() != 5 || detail[*errdetails.RetryInfo](st) == nil {
			t.Errorf("%v", st.Details())
		}
		if ctx.Err() != nil {
			t.Error("the caller's deadline came first")
		}
		if w := <-f.opened; w.o.MaxWait <= 0 || w.o.MaxWait > 400*time.Millisecond {
			t.Errorf("max wait %v", w.o.MaxWait)
		}
	}
	// Without a deadline the wait is the client's, or left to the engine.
	c, f := fakeSetup(t, nil)
	for _, want := range []time.Duration{0, time.Second} {
		s := openWrite(t, c)
		send(t, s, &pb.WriteRequest{Name: "a", Finish: true, Options: &pb.WriteOptions{MaxWait: durationpb.New(want)}})
		if _, _, err := rest(s); err != nil {
			t.Fatal(err)
		}
		if w := <-f.opened; w.o.MaxWait != want {
			t.Errorf("max wait %v, want %v", w.o.MaxWait, want)
		}
	}
}

func TestPanicsEndTheCallNotTheProcess(t *testing.T) {
	for _, call := range []string{"Write", "Sync", "Finish"} {
		t.Run(call, func(t *testing.T) {
			c, f := fakeSetup(t, func(w *fakeWriter) { w.mu.panicIn = call })
			s := openWrite(t, c)
			send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Sync: call == "Sync", Finish: call == "Finish"})
			if _, _, err := rest(s); status.Code(err) != codes.Internal {
				t.Errorf("%v", err)
			}
			waitFor(t, (<-f.opened).isClosed)
		})
	}
}

func TestDrainingEndsOpenStreams(t *testing.T) {
	c, f := fakeSetup(t, nil)
	s := openWrite(t, c)
	send(t, s, &pb.WriteRequest{Name: "a", Data: []byte("abc"), Report: true})
	recv(t, s)
	f.s.Drain()
	f.s.Drain()
	_, _, err := rest(s)
	wantWriteError(t, err, codes.Unavailable, "DRAINING", 3)
}

func TestACancelledClientLeavesNothing(t *testing.T) {
	gate := make(chan struct{})
	c, f := fakeSetup(t, func(w *fakeWriter) { w.gate, w.gateIn, w.syncGate = gate, engine.WaitingWriteback, make(chan struct{}) })
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.Write(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, s, &pb.WriteRequest{Name: "a", Sync: true})
	send(t, s, &pb.WriteRequest{Data: []byte("abc")})
	w := <-f.opened
	waitFor(t, func() bool { return w.State() == engine.WaitingWriteback })
	cancel()
	waitFor(t, w.isClosed)
}
