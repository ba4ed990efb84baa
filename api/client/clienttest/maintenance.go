package clienttest

import (
	"google.golang.org/grpc"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// Reclaim implements the RPC by OnReclaim.
func (s *Server) Reclaim(r *shinglev1.ReclaimRequest, stream grpc.ServerStreamingServer[shinglev1.ReclaimResponse]) error {
	if s.OnReclaim == nil {
		return s.UnimplementedMaintenanceServiceServer.Reclaim(r, stream)
	}
	return s.OnReclaim(r, stream)
}
