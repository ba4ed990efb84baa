package server

import (
	"context"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
)

// CloneFile implements the RPC.
func (s *fileService) CloneFile(ctx context.Context, r *shinglev1.CloneFileRequest) (*shinglev1.CloneFileResponse, error) {
	req, err := cloneRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.CloneFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	f, freed, err := e.Clone(ctx, req)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.CloneFileResponse{File: fileProto(f), Freed: freedProto(freed)}, nil
}

func cloneRequest(r *shinglev1.CloneFileRequest) (engine.CloneRequest, error) {
	c := check{op: "server.CloneFile"}
	c.name("name", r.GetName())
	c.name("new_name", r.GetNewName())
	c.conditions("if_match", r.GetIfMatch())
	c.conditions("if_target_match", r.GetIfTargetMatch())
	c.id("request_id", r.GetRequestId())
	return engine.CloneRequest{
		Name: r.GetName(), NewName: r.GetNewName(), Replace: r.GetReplace(),
		If: conditionsOf(r.GetIfMatch()), IfTarget: conditionsOf(r.GetIfTargetMatch()), RequestID: r.GetRequestId(),
	}, c.err
}

// MapFile implements the RPC.
func (s *fileService) MapFile(ctx context.Context, r *shinglev1.MapFileRequest) (*shinglev1.MapFileResponse, error) {
	ref, size, err := mapRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.MapFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	f, list, next, err := e.Map(ctx, ref, r.GetOffset(), size)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	out := &shinglev1.MapFileResponse{File: fileProto(f)}
	for _, x := range list {
		out.Extents = append(out.Extents, fileExtentProto(x))
	}
	if next >= 0 {
		out.NextOffset = &next
	}
	return out, nil
}

func mapRequest(r *shinglev1.MapFileRequest) (ref engine.Ref, size int, err error) {
	c := check{op: "server.MapFile"}
	c.nameOrID(r.GetName(), r.GetFileId())
	c.size("offset", r.GetOffset())
	return engine.Ref{Name: r.GetName(), ID: r.GetFileId()}, c.page(r.GetPageSize()), c.err
}

func fileExtentProto(x engine.MapExtent) *shinglev1.FileExtent {
	out := &shinglev1.FileExtent{Offset: x.Offset, Length: x.Length, Kind: mapKindProto(x.Kind)}
	switch x.Kind {
	case engine.MapData:
		out.Address, out.Skip, out.Shared = uint64(x.Address), x.Skip, x.Shared
		out.Zones = placesProto(x.Places, x.ZoneOff)
		fallthrough
	case engine.MapInline:
		out.StoredBytes, out.Compression = x.Stored, codecProto(x.Codec)
	}
	return out
}

func mapKindProto(k engine.MapKind) shinglev1.FileExtentKind {
	switch k {
	case engine.MapData:
		return shinglev1.FileExtentKind_FILE_EXTENT_KIND_DATA
	case engine.MapHole:
		return shinglev1.FileExtentKind_FILE_EXTENT_KIND_HOLE
	case engine.MapInline:
		return shinglev1.FileExtentKind_FILE_EXTENT_KIND_INLINE
	case engine.MapDirty:
		return shinglev1.FileExtentKind_FILE_EXTENT_KIND_DIRTY
	}
	return shinglev1.FileExtentKind_FILE_EXTENT_KIND_UNSPECIFIED
}
