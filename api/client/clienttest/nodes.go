package clienttest

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// node is a file or directory. meta holds all but what follows from the data.
type node struct {
	meta    *shinglev1.File
	data    []byte
	durable []byte
}

func (n *node) directory() bool { return n.meta.Kind == shinglev1.FileKind_FILE_KIND_DIRECTORY }

// file returns the node as the API shows it.
func (n *node) file() *shinglev1.File {
	f := proto.Clone(n.meta).(*shinglev1.File)
	f.Size = int64(len(n.data))
	f.AllocatedBytes, f.StoredBytes = int64(len(n.durable)), int64(len(n.durable))
	if string(n.data) != string(n.durable) {
		f.DirtyBytes = max(1, f.Size-int64(len(n.durable)))
	}
	return f
}

// changedLocked gives n a new generation.
func (s *Server) changedLocked(n *node) {
	s.gen++
	n.meta.Generation = s.gen
	n.meta.ContentCrc32C = nil
}

// durableLocked makes n's data durable, and what writes in place sent of it.
func (s *Server) durableLocked(n *node) {
	n.durable = append(n.durable[:0], n.data...)
	for _, w := range s.writes {
		if w.node == n && w.staged == nil {
			w.durable = w.received
		}
	}
}

// newLocked returns a node that has no name yet.
func (s *Server) newLocked(name string, kind shinglev1.FileKind) *node {
	s.lastID++
	n := &node{meta: &shinglev1.File{
		Name: name, FileId: s.lastID, Kind: kind, CreateTime: timestamppb.Now(), UpdateTime: timestamppb.Now(),
		Compression: shinglev1.Compression_COMPRESSION_ZSTD,
	}}
	s.changedLocked(n)
	return n
}

// makeLocked puts a new node under name, and missing parents.
func (s *Server) makeLocked(name string, kind shinglev1.FileKind) *node {
	n := s.newLocked(name, kind)
	s.parentsLocked(name)
	s.nodes[name] = n
	return n
}

func (s *Server) parentsLocked(name string) {
	for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
		if s.nodes[name[:i]] == nil {
			s.nodes[name[:i]] = s.newLocked(name[:i], shinglev1.FileKind_FILE_KIND_DIRECTORY)
		}
	}
}

// findLocked looks a node up by name, or by id if that is not 0.
func (s *Server) findLocked(name string, id uint64) (*node, error) {
	if id == 0 {
		if n := s.nodes[name]; n != nil {
			return n, nil
		}
		return nil, Errorf(codes.NotFound, "NOT_FOUND", nil, fmt.Sprintf("no file %q", name))
	}
	for _, n := range s.nodes {
		if n.meta.FileId == id {
			return n, nil
		}
	}
	return nil, Errorf(codes.NotFound, "NOT_FOUND", nil, fmt.Sprintf("no file with id %d", id))
}

// fileLocked is findLocked for what has bytes.
func (s *Server) fileLocked(name string, id uint64) (*node, error) {
	n, err := s.findLocked(name, id)
	if err == nil && n.directory() {
		return nil, Errorf(codes.FailedPrecondition, "NOT_A_FILE", nil, fmt.Sprintf("%q is a directory", n.meta.Name))
	}
	return n, err
}

// match checks preconditions on n, which may be nil.
func match(n *node, p *shinglev1.Preconditions) error {
	var id uint64
	var gen, size int64
	if n != nil {
		id, gen, size = n.meta.FileId, n.meta.Generation, int64(len(n.data))
	}
	if p == nil || (p.Generation == nil || *p.Generation == gen) && (p.FileId == nil || *p.FileId == id) &&
		(p.Size == nil || *p.Size == size) {
		return nil
	}
	return Errorf(codes.FailedPrecondition, "PRECONDITION",
		map[string]string{"generation": fmt.Sprint(gen), "file_id": fmt.Sprint(id), "size": fmt.Sprint(size)},
		"the file is not as expected")
}

// matchedLocked is fileLocked for what meets preconditions.
func (s *Server) matchedLocked(name string, id uint64, p *shinglev1.Preconditions) (*node, error) {
	n, err := s.fileLocked(name, id)
	if err == nil {
		err = match(n, p)
	}
	return n, err
}

func (s *Server) CreateFile(_ context.Context, r *shinglev1.CreateFileRequest) (*shinglev1.CreateFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := r.GetFile()
	if n := s.nodes[f.GetName()]; n != nil {
		if r.Exclusive && n.meta.RequestId != r.RequestId {
			return nil, Errorf(codes.AlreadyExists, "ALREADY_EXISTS", nil, fmt.Sprintf("%q exists", f.GetName()))
		}
		return &shinglev1.CreateFileResponse{File: n.file()}, nil
	}
	n := s.makeLocked(f.GetName(), f.GetKind())
	n.meta.RequestId, n.meta.Attributes, n.meta.Mtime, n.meta.Mode = r.RequestId, f.Attributes, f.Mtime, f.Mode
	return &shinglev1.CreateFileResponse{File: n.file()}, nil
}

func (s *Server) GetFile(_ context.Context, r *shinglev1.GetFileRequest) (*shinglev1.GetFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.findLocked(r.Name, r.FileId)
	if err != nil {
		return nil, err
	}
	return &shinglev1.GetFileResponse{File: n.file()}, nil
}

func (s *Server) ListFiles(_ context.Context, r *shinglev1.ListFilesRequest) (*shinglev1.ListFilesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prefix := ""
	if r.Directory != "" {
		n, err := s.findLocked(r.Directory, 0)
		if err != nil {
			return nil, err
		}
		if !n.directory() {
			return nil, Errorf(codes.FailedPrecondition, "NOT_A_DIRECTORY", nil, fmt.Sprintf("%q is a file", r.Directory))
		}
		prefix = r.Directory + "/"
	}
	after := max(r.StartAfter, r.PageToken)
	var keys []string
	for name, n := range s.nodes {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok || !r.Recursive && strings.Contains(rest, "/") {
			continue
		}
		if n.directory() {
			name += "/"
		}
		if name > after {
			keys = append(keys, name)
		}
	}
	sort.Strings(keys)
	out := &shinglev1.ListFilesResponse{}
	size := s.PageSize
	if r.PageSize > 0 {
		size = int(r.PageSize)
	}
	if len(keys) > size {
		keys = keys[:size]
		out.NextPageToken = keys[size-1]
	}
	for _, k := range keys {
		out.Files = append(out.Files, s.nodes[strings.TrimSuffix(k, "/")].file())
	}
	return out, nil
}

func (s *Server) DeleteFile(_ context.Context, r *shinglev1.DeleteFileRequest) (*shinglev1.DeleteFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.findLocked(r.Name, 0)
	if err != nil {
		if r.AllowMissing {
			return &shinglev1.DeleteFileResponse{Freed: &shinglev1.Freed{}}, nil
		}
		return nil, err
	}
	if err := match(n, r.IfMatch); err != nil {
		return nil, err
	}
	for name := range s.nodes {
		if strings.HasPrefix(name, r.Name+"/") {
			return nil, Errorf(codes.FailedPrecondition, "DIRECTORY_NOT_EMPTY", nil, fmt.Sprintf("%q is not empty", r.Name))
		}
	}
	delete(s.nodes, r.Name)
	return &shinglev1.DeleteFileResponse{Freed: &shinglev1.Freed{FreedBytes: int64(len(n.data))}}, nil
}

func (s *Server) RenameFile(_ context.Context, r *shinglev1.RenameFileRequest) (*shinglev1.RenameFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.findLocked(r.Name, 0)
	if err != nil {
		return nil, err
	}
	if err := match(n, r.IfMatch); err != nil {
		return nil, err
	}
	if s.nodes[r.NewName] != nil && !r.Replace {
		return nil, Errorf(codes.AlreadyExists, "ALREADY_EXISTS", nil, fmt.Sprintf("%q exists", r.NewName))
	}
	s.parentsLocked(r.NewName)
	moved := map[string]*node{}
	for name, x := range s.nodes {
		if name == r.Name || strings.HasPrefix(name, r.Name+"/") {
			delete(s.nodes, name)
			x.meta.Name = r.NewName + strings.TrimPrefix(name, r.Name)
			moved[x.meta.Name] = x
		}
	}
	for name, x := range moved {
		s.nodes[name] = x
	}
	s.durableLocked(n)
	return &shinglev1.RenameFileResponse{File: n.file(), Freed: &shinglev1.Freed{}}, nil
}

func (s *Server) CloneFile(_ context.Context, r *shinglev1.CloneFileRequest) (*shinglev1.CloneFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.nodes[r.NewName]
	if old != nil && r.RequestId != "" && old.meta.RequestId == r.RequestId {
		return &shinglev1.CloneFileResponse{File: old.file(), Freed: &shinglev1.Freed{}}, nil
	}
	n, err := s.matchedLocked(r.Name, 0, r.IfMatch)
	if err != nil {
		return nil, err
	}
	switch {
	case old != nil && old.directory():
		return nil, Errorf(codes.FailedPrecondition, "NOT_A_FILE", nil, fmt.Sprintf("%q is a directory", r.NewName))
	case old != nil && !r.Replace:
		return nil, Errorf(codes.AlreadyExists, "ALREADY_EXISTS", nil, fmt.Sprintf("%q exists", r.NewName))
	}
	if err := match(old, r.IfTargetMatch); err != nil {
		return nil, err
	}
	s.durableLocked(n)
	c := s.makeLocked(r.NewName, shinglev1.FileKind_FILE_KIND_FILE)
	c.data = append([]byte(nil), n.data...)
	c.meta.RequestId, c.meta.Attributes, c.meta.Mtime, c.meta.Mode = r.RequestId, n.meta.Attributes, n.meta.Mtime, n.meta.Mode
	s.durableLocked(c)
	return &shinglev1.CloneFileResponse{File: c.file(), Freed: &shinglev1.Freed{}}, nil
}

// MapFile answers Server.Maps, an extent a page.
func (s *Server) MapFile(_ context.Context, r *shinglev1.MapFileRequest) (*shinglev1.MapFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.fileLocked(r.Name, r.FileId)
	if err != nil {
		return nil, err
	}
	out := &shinglev1.MapFileResponse{File: n.file()}
	extents := s.Maps[n.meta.Name]
	for i, x := range extents {
		if x.Offset < r.Offset {
			continue
		}
		out.Extents = []*shinglev1.FileExtent{x}
		if i < len(extents)-1 {
			end := x.Offset + x.Length
			out.NextOffset = &end
		}
		break
	}
	return out, nil
}

func (s *Server) TruncateFile(_ context.Context, r *shinglev1.TruncateFileRequest) (*shinglev1.TruncateFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.matchedLocked(r.Name, 0, r.IfMatch)
	if err != nil {
		return nil, err
	}
	n.data = append(n.data, make([]byte, max(0, int(r.Size)-len(n.data)))...)[:r.Size]
	s.changedLocked(n)
	s.durableLocked(n)
	return &shinglev1.TruncateFileResponse{File: n.file(), Freed: &shinglev1.Freed{}}, nil
}

func (s *Server) DeallocateFile(_ context.Context, r *shinglev1.DeallocateFileRequest) (*shinglev1.DeallocateFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.matchedLocked(r.Name, 0, r.IfMatch)
	if err != nil {
		return nil, err
	}
	end := min(r.Offset+r.Length, int64(len(n.data)))
	if r.Offset < end {
		clear(n.data[r.Offset:end])
	}
	s.changedLocked(n)
	s.durableLocked(n)
	return &shinglev1.DeallocateFileResponse{File: n.file(), Freed: &shinglev1.Freed{}}, nil
}

func (s *Server) Sync(_ context.Context, r *shinglev1.SyncRequest) (*shinglev1.SyncResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.BootId != nil && *r.BootId != s.boot {
		return nil, Errorf(codes.Aborted, "RESTARTED", nil, "the engine was restarted since")
	}
	for _, name := range r.Names {
		if _, err := s.findLocked(name, 0); err != nil {
			return nil, err
		}
	}
	for name, n := range s.nodes {
		if len(r.Names) == 0 || slices.Contains(r.Names, name) {
			s.durableLocked(n)
		}
	}
	return &shinglev1.SyncResponse{BootId: s.boot, CommitSequence: s.gen}, nil
}
