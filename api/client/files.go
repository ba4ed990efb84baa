package client

import (
	"context"
	"iter"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// The messages of the API under the names that callers of this package use.
type (
	File          = shinglev1.File
	Preconditions = shinglev1.Preconditions
	Freed         = shinglev1.Freed
	Compression   = shinglev1.Compression
	FileExtent    = shinglev1.FileExtent
)

// CreateOptions are what Create gives to a new file.
type CreateOptions struct {
	Directory   bool
	Exclusive   bool // fail with ALREADY_EXISTS instead of answering what is there
	Attributes  map[string]string
	Mtime       time.Time // zero: not set
	Mode        *uint32   // POSIX mode bits
	Compression Compression
}

// Create makes an empty file or a directory, and missing parents. Durable when it returns.
// It is sent again if the engine goes away meanwhile; a request id makes that safe.
func (c *Client) Create(ctx context.Context, name string, o CreateOptions) (*File, error) {
	kind := shinglev1.FileKind_FILE_KIND_FILE
	if o.Directory {
		kind = shinglev1.FileKind_FILE_KIND_DIRECTORY
	}
	req := &shinglev1.CreateFileRequest{
		File: &File{
			Name: name, Kind: kind, Attributes: o.Attributes, Mtime: timestamp(o.Mtime), Mode: o.Mode,
			Compression: o.Compression,
		},
		RequestId: uuid.NewString(),
		Exclusive: o.Exclusive,
	}
	return again(ctx, c, func() (*File, error) {
		r, err := c.files.CreateFile(ctx, req)
		return r.GetFile(), err
	})
}

// Stat looks a file or directory up by name.
func (c *Client) Stat(ctx context.Context, name string) (*File, error) {
	return again(ctx, c, func() (*File, error) {
		r, err := c.files.GetFile(ctx, &shinglev1.GetFileRequest{Name: name})
		return r.GetFile(), err
	})
}

// ListOptions narrow a List.
type ListOptions struct {
	Recursive bool
	// StartAfter lists only what comes after this path; it need not exist. A directory is
	// written with a slash at its end.
	StartAfter string
	// PageSize is how many entries are fetched at a time; 0: the server's choice.
	PageSize int32
}

// List walks the entries of a directory, "" for the root, in byte order of whole paths, where
// a directory sorts as its path with a slash at the end. Pages are fetched as needed; an
// entry that is there throughout is met exactly once. After an error the walk is over.
func (c *Client) List(ctx context.Context, directory string, o ListOptions) iter.Seq2[*File, error] {
	return pages(ctx, c, func(token string) ([]*File, string, error) {
		req := &shinglev1.ListFilesRequest{
			Directory: directory, Recursive: o.Recursive, PageSize: o.PageSize, PageToken: token,
		}
		if token == "" {
			req.StartAfter = o.StartAfter
		}
		r, err := c.files.ListFiles(ctx, req)
		return r.GetFiles(), r.GetNextPageToken(), err
	})
}

// DeleteOptions guard a Delete.
type DeleteOptions struct {
	IfMatch      *Preconditions
	AllowMissing bool // a missing name is no error
}

// Delete removes a file or an empty directory. Durable when it returns; the space comes back
// in the background. With AllowMissing it is sent again if the engine goes away meanwhile.
func (c *Client) Delete(ctx context.Context, name string, o DeleteOptions) (*Freed, error) {
	call := func() (*Freed, error) {
		r, err := c.files.DeleteFile(ctx, &shinglev1.DeleteFileRequest{
			Name: name, IfMatch: o.IfMatch, AllowMissing: o.AllowMissing,
		})
		return r.GetFreed(), err
	}
	if o.AllowMissing && o.IfMatch == nil {
		return again(ctx, c, call)
	}
	return call()
}

// RenameOptions guard a Rename.
type RenameOptions struct {
	Replace       bool           // replace what newName stands for; else ALREADY_EXISTS
	IfMatch       *Preconditions // on the file; with a file id it is safe to call again
	IfTargetMatch *Preconditions // on what newName stands for
}

// Rename gives a file or directory another name in one step. Durable when it returns, the
// file's data included.
func (c *Client) Rename(ctx context.Context, name, newName string, o RenameOptions) (*File, *Freed, error) {
	r, err := c.files.RenameFile(ctx, &shinglev1.RenameFileRequest{
		Name: name, NewName: newName, Replace: o.Replace, IfMatch: o.IfMatch, IfTargetMatch: o.IfTargetMatch,
	})
	return r.GetFile(), r.GetFreed(), err
}

// CloneOptions guard a Clone.
type CloneOptions struct {
	Replace       bool           // replace the file that newName stands for; else ALREADY_EXISTS
	IfMatch       *Preconditions // on the file to clone
	IfTargetMatch *Preconditions // on what newName stands for
}

// Clone makes newName a file with the content that name has now, sharing what is stored instead
// of copying it, and missing parents. Durable when it returns, the source's data included. It is
// sent again if the engine goes away meanwhile; a request id makes that safe.
func (c *Client) Clone(ctx context.Context, name, newName string, o CloneOptions) (*File, *Freed, error) {
	req := &shinglev1.CloneFileRequest{
		Name: name, NewName: newName, Replace: o.Replace, IfMatch: o.IfMatch, IfTargetMatch: o.IfTargetMatch,
		RequestId: uuid.NewString(),
	}
	r, err := again(ctx, c, func() (*shinglev1.CloneFileResponse, error) { return c.files.CloneFile(ctx, req) })
	return r.GetFile(), r.GetFreed(), err
}

// FileMap walks where a file lies from its first byte to its last, in order and without gaps.
// Pages are fetched as needed, each as of its own moment; the File is that of the page that the
// extent came with. An empty file has no extents. After an error the walk is over.
//
// A file that is replaced or renamed meanwhile is followed by its id.
func (c *Client) FileMap(ctx context.Context, name string) iter.Seq2[MappedExtent, error] {
	req := &shinglev1.MapFileRequest{Name: name}
	return func(yield func(MappedExtent, error) bool) {
		for {
			r, err := again(ctx, c, func() (*shinglev1.MapFileResponse, error) { return c.files.MapFile(ctx, req) })
			if err != nil {
				yield(MappedExtent{}, err)
				return
			}
			for _, x := range r.GetExtents() {
				if !yield(MappedExtent{x, r.GetFile()}, nil) {
					return
				}
			}
			if r.NextOffset == nil {
				return
			}
			req = &shinglev1.MapFileRequest{FileId: r.GetFile().GetFileId(), Offset: r.GetNextOffset()}
		}
	}
}

// MappedExtent is a range of a file and the file as it was then.
type MappedExtent struct {
	*FileExtent
	File *File
}

// Truncate sets the size of a file in bytes, cutting it off or extending it by a hole.
// Durable when it returns. ifMatch may be nil.
func (c *Client) Truncate(ctx context.Context, name string, size int64, ifMatch *Preconditions) (*File, *Freed, error) {
	r, err := c.files.TruncateFile(ctx, &shinglev1.TruncateFileRequest{Name: name, Size: size, IfMatch: ifMatch})
	return r.GetFile(), r.GetFreed(), err
}

// Deallocate turns a range of a file, in bytes, into a hole that reads as zeros. Durable when
// it returns. ifMatch may be nil.
func (c *Client) Deallocate(ctx context.Context, name string, offset, length int64, ifMatch *Preconditions) (*File, *Freed, error) {
	r, err := c.files.DeallocateFile(ctx, &shinglev1.DeallocateFileRequest{
		Name: name, Offset: offset, Length: length, IfMatch: ifMatch,
	})
	return r.GetFile(), r.GetFreed(), err
}

// SyncOptions say what to make durable.
type SyncOptions struct {
	// Names of files, at most 1000; none: the whole store.
	Names []string
	// BootID is the run of the engine that received the bytes (Writer.BootID). If the engine
	// was restarted since, Sync fails with ABORTED / RESTARTED. 0: whichever run answers, and
	// then bytes that an earlier one lost are not noticed.
	BootID uint64
}

// SyncResult says who made it durable.
type SyncResult struct {
	BootID         uint64
	CommitSequence int64
}

// Sync makes everything that the engine received before the call durable. With a BootID it is
// sent again while the engine cannot be reached: a second run of the engine refuses it. Without
// one it is never sent twice: an answer from a second run would say nothing of the first.
func (c *Client) Sync(ctx context.Context, o SyncOptions) (SyncResult, error) {
	req := &shinglev1.SyncRequest{Names: o.Names}
	if o.BootID != 0 {
		req.BootId = &o.BootID
	}
	send := func() (*shinglev1.SyncResponse, error) { return c.files.Sync(ctx, req) }
	var r *shinglev1.SyncResponse
	var err error
	if o.BootID != 0 {
		r, err = again(ctx, c, send)
	} else {
		r, err = send()
	}
	return SyncResult{BootID: r.GetBootId(), CommitSequence: r.GetCommitSequence()}, err
}

// timestamp returns t for the wire; the zero time is absent.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// again is retry for a call with a result.
func again[T any](ctx context.Context, c *Client, f func() (T, error)) (out T, err error) {
	err = c.retry(ctx, func() (err error) {
		out, err = f()
		return err
	})
	return out, err
}

// pages walks a paged list.
func pages[T any](ctx context.Context, c *Client, fetch func(token string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for token := ""; ; {
			var page []T
			var next string
			err := c.retry(ctx, func() (err error) {
				page, next, err = fetch(token)
				return err
			})
			if err != nil {
				yield(none, err)
				return
			}
			for _, x := range page {
				if !yield(x, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			token = next
		}
	}
}
