package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
)

// maxPageBytes bounds a page of files, which may have 64 KiB of attributes each: gRPC clients
// take messages of 4 MiB unless told otherwise.
const maxPageBytes = 2 << 20

// CreateFile implements the RPC.
func (s *fileService) CreateFile(ctx context.Context, r *shinglev1.CreateFileRequest) (*shinglev1.CreateFileResponse, error) {
	req, err := createRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.CreateFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	f, err := e.Create(ctx, req)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.CreateFileResponse{File: fileProto(f)}, nil
}

// GetFile implements the RPC.
func (s *fileService) GetFile(ctx context.Context, r *shinglev1.GetFileRequest) (*shinglev1.GetFileResponse, error) {
	ref, err := getRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.GetFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	f, err := e.Get(ctx, ref)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.GetFileResponse{File: fileProto(f)}, nil
}

// ListFiles implements the RPC.
func (s *fileService) ListFiles(ctx context.Context, r *shinglev1.ListFilesRequest) (*shinglev1.ListFilesResponse, error) {
	req, query, err := listRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.ListFiles")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	files, next, err := e.List(ctx, req)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	out, last := filePage(files, maxPageBytes)
	if last != "" {
		next = last
	}
	page := &shinglev1.ListFilesResponse{Files: out}
	if next != "" {
		page.NextPageToken = pageToken(query, next)
	}
	return page, nil
}

// filePage converts files up to limit bytes of messages, at least one. If some were left out
// last is where the next page starts after; else it is empty.
func filePage(files []engine.File, limit int) (out []*shinglev1.File, last string) {
	size := 0
	for i, f := range files {
		p := fileProto(f)
		size += proto.Size(p)
		if size > limit && i > 0 {
			return out, listPath(files[i-1])
		}
		out = append(out, p)
	}
	return out, ""
}

// listPath is how a list orders f (engine.ListRequest).
func listPath(f engine.File) string {
	if f.Directory {
		return f.Name + "/"
	}
	return f.Name
}

// DeleteFile implements the RPC.
func (s *fileService) DeleteFile(ctx context.Context, r *shinglev1.DeleteFileRequest) (*shinglev1.DeleteFileResponse, error) {
	req, err := deleteRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.DeleteFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	freed, err := e.Delete(ctx, req)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.DeleteFileResponse{Freed: freedProto(freed)}, nil
}

// RenameFile implements the RPC.
func (s *fileService) RenameFile(ctx context.Context, r *shinglev1.RenameFileRequest) (*shinglev1.RenameFileResponse, error) {
	req, err := renameRequest(r)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.RenameFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	f, freed, err := e.Rename(ctx, req)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.RenameFileResponse{File: fileProto(f), Freed: freedProto(freed)}, nil
}

// TruncateFile implements the RPC.
func (s *fileService) TruncateFile(ctx context.Context, r *shinglev1.TruncateFileRequest) (*shinglev1.TruncateFileResponse, error) {
	if err := checkTruncate(r); err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.TruncateFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	f, freed, err := e.Truncate(ctx, r.GetName(), r.GetSize(), conditionsOf(r.GetIfMatch()))
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.TruncateFileResponse{File: fileProto(f), Freed: freedProto(freed)}, nil
}

// DeallocateFile implements the RPC.
func (s *fileService) DeallocateFile(ctx context.Context, r *shinglev1.DeallocateFileRequest) (*shinglev1.DeallocateFileResponse, error) {
	if err := checkDeallocate(r); err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.DeallocateFile")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	f, freed, err := e.Deallocate(ctx, r.GetName(), r.GetOffset(), r.GetLength(), conditionsOf(r.GetIfMatch()))
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.DeallocateFileResponse{File: fileProto(f), Freed: freedProto(freed)}, nil
}

// Sync implements the RPC.
func (s *fileService) Sync(ctx context.Context, r *shinglev1.SyncRequest) (*shinglev1.SyncResponse, error) {
	if err := checkSync(r); err != nil {
		return nil, s.status(ctx, err)
	}
	e, err := s.open("server.Sync")
	if err != nil {
		return nil, s.status(ctx, err)
	}
	res, err := e.Sync(ctx, r.GetNames(), r.BootId)
	if err != nil {
		return nil, s.status(ctx, err)
	}
	return &shinglev1.SyncResponse{BootId: res.BootID, CommitSequence: int64(res.CommitSequence)}, nil
}
