package server

import (
	"testing"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestBlockGroupOfReclaim(t *testing.T) {
	for _, c := range []struct {
		b     alloc.BlockGroup
		class pb.BlockGroupClass
		state pb.BlockGroupState
	}{
		{alloc.BlockGroup{Class: alloc.ClassRelocation, State: alloc.Active}, pb.BlockGroupClass_BLOCK_GROUP_CLASS_RELOCATION, pb.BlockGroupState_BLOCK_GROUP_STATE_ACTIVE},
		{alloc.BlockGroup{Class: alloc.ClassData, State: alloc.Full, Pinned: true}, pb.BlockGroupClass_BLOCK_GROUP_CLASS_DATA, pb.BlockGroupState_BLOCK_GROUP_STATE_RELOCATING},
		{alloc.BlockGroup{State: alloc.ReadOnly, Pinned: true}, pb.BlockGroupClass_BLOCK_GROUP_CLASS_UNSPECIFIED, pb.BlockGroupState_BLOCK_GROUP_STATE_READ_ONLY},
	} {
		if got := blockGroupProto(engine.BlockGroupInfo{BlockGroup: c.b}, zone.Geometry{}); got.GetClass() != c.class || got.GetState() != c.state {
			t.Errorf("%+v is %v", c.b, got)
		}
	}
}
