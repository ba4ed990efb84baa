package clienttest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// Trims is what Trim answers.
type Trims struct {
	// Replies are the summaries of each Trim, the last one last.
	Replies []*shinglev1.TrimResponse
	// Hold, unless nil, keeps a Trim from its last reply until it is closed; CancelTrim, or the end
	// of the stream, ends the wait too, and makes the one before the last reply the last, CANCELLED.
	Hold chan struct{}
	// Requests are the requests so far. Read it when no call runs.
	Requests []*shinglev1.TrimRequest
	// Cancels counts CancelTrim; likewise.
	Cancels int

	cancel chan struct{} // closed by CancelTrim; guarded by Server.mu
}

// Trim implements the RPC: it sends Trims.Replies.
func (s *Server) Trim(r *shinglev1.TrimRequest, stream grpc.ServerStreamingServer[shinglev1.TrimResponse]) error {
	if f := s.Faults.Call; f != nil {
		if err := f("Trim"); err != nil {
			return err
		}
	}
	s.mu.Lock()
	cancel := make(chan struct{})
	s.Trims.cancel = cancel
	s.Trims.Requests = append(s.Trims.Requests, r)
	s.mu.Unlock()
	for i, reply := range s.Trims.Replies {
		if i == len(s.Trims.Replies)-1 && s.Trims.Hold != nil {
			select {
			case <-s.Trims.Hold:
			case <-stream.Context().Done():
				return stream.Context().Err()
			case <-cancel:
				reply = proto.CloneOf(s.Trims.Replies[i-1])
				reply.State = shinglev1.MaintenanceState_MAINTENANCE_STATE_CANCELLED
			}
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
	return nil
}

// CancelTrim implements the RPC.
func (s *Server) CancelTrim(context.Context, *shinglev1.CancelTrimRequest) (*shinglev1.CancelTrimResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Trims.Cancels++
	if s.Trims.cancel == nil {
		return nil, status.Error(codes.NotFound, "no trim is running")
	}
	close(s.Trims.cancel)
	s.Trims.cancel = nil
	return &shinglev1.CancelTrimResponse{}, nil
}
