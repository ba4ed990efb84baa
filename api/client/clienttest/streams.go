package clienttest

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pieceSize is that of the messages of a Read, and of the holes it finds.
const pieceSize = 64 << 10

// write is what is known of a Write over all its streams.
type write struct {
	node     *node // written in place, or to be replaced: nil until published
	staged   *node // of a replacement
	received int64
	durable  int64
	next     int64 // file offset behind the last message
	fence    chan struct{}
}

// Write serves FileService.Write.
func (s *Server) Write(st shinglev1.FileService_WriteServer) error {
	var w *write
	var fence chan struct{}
	var name string
	told := int64(0)
	for first := true; ; first = false {
		m, err := st.Recv()
		if err == io.EOF {
			return s.reply(st, w, shinglev1.WriteState_WRITE_STATE_UNPUBLISHED, nil)
		}
		if err != nil {
			return err
		}
		if f := s.Faults.Write; f != nil {
			if err := f(m); err != nil {
				return err
			}
		}
		if first {
			name = m.Name
			if w, err = s.open(m); err != nil {
				return err
			}
			s.mu.Lock()
			fence = make(chan struct{})
			if w.fence != nil {
				close(w.fence)
			}
			w.fence = fence
			s.mu.Unlock()
		}
		select {
		case <-fence:
			return Errorf(codes.Aborted, "FENCED", nil, "a newer stream has taken the write over")
		default:
		}
		if err := s.apply(st.Context(), w, m); err != nil {
			return err
		}
		if m.Finish {
			f, err := s.finish(name, w, m)
			if err != nil {
				return err
			}
			return s.reply(st, w, shinglev1.WriteState_WRITE_STATE_FINISHED, f)
		}
		s.mu.Lock()
		due := m.Sync || m.Report || w.received-told >= s.AckInterval
		if due {
			told = w.received
		}
		s.mu.Unlock()
		if due {
			if err := s.reply(st, w, shinglev1.WriteState_WRITE_STATE_ACCEPTING, nil); err != nil {
				return err
			}
		}
	}
}

func (s *Server) open(m *shinglev1.WriteRequest) (*write, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := m.GetOptions()
	if w := s.writes[o.GetWriteId()]; w != nil {
		return w, nil
	}
	n := s.nodes[m.Name]
	if err := match(n, o.GetIfMatch()); err != nil {
		return nil, err
	}
	if n != nil && n.directory() {
		return nil, Errorf(codes.FailedPrecondition, "NOT_A_FILE", nil, fmt.Sprintf("%q is a directory", m.Name))
	}
	if n == nil && o.GetMustExist() {
		return nil, Errorf(codes.NotFound, "NOT_FOUND", nil, fmt.Sprintf("no file %q", m.Name))
	}
	w := &write{node: n}
	if o.GetMode() == shinglev1.WriteMode_WRITE_MODE_REPLACE {
		w.staged = s.newLocked(m.Name, shinglev1.FileKind_FILE_KIND_FILE)
		n = w.staged
	} else if n == nil {
		n = s.makeLocked(m.Name, shinglev1.FileKind_FILE_KIND_FILE)
		w.node = n
	}
	if o.GetMtime() != nil {
		n.meta.Mtime = o.GetMtime()
	}
	if o.ModeBits != nil {
		n.meta.Mode = o.ModeBits
	}
	n.meta.RequestId = o.GetWriteId()
	if id := o.GetWriteId(); id != "" {
		s.writes[id] = w
	}
	return w, nil
}

// apply takes a message's bytes and, if it asks for it, makes them durable.
func (s *Server) apply(ctx context.Context, w *write, m *shinglev1.WriteRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if m.Crc32C != nil && crc32.Checksum(m.Data, castagnoli) != *m.Crc32C {
		return Errorf(codes.InvalidArgument, "PAYLOAD_CHECKSUM", nil, "the bytes do not match their checksum")
	}
	n := w.node
	if w.staged != nil {
		n = w.staged
	}
	if len(m.Data) > 0 {
		if m.Offset != nil {
			w.next = *m.Offset
		}
		end := w.next + int64(len(m.Data))
		if grow := end - int64(len(n.data)); grow > 0 {
			n.data = append(n.data, make([]byte, grow)...)
		}
		copy(n.data[w.next:], m.Data)
		w.next = end
		w.received += int64(len(m.Data))
		s.changedLocked(n)
	}
	if m.Sync {
		s.durableLocked(n)
		w.durable = w.received
	}
	return nil
}

// finish ends a write, publishing a replacement.
func (s *Server) finish(name string, w *write, m *shinglev1.WriteRequest) (*shinglev1.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := w.node
	if w.staged != nil {
		n = w.staged
		sum := crc32.Checksum(n.data, castagnoli)
		if m.ContentCrc32C != nil && sum != *m.ContentCrc32C {
			return nil, Errorf(codes.InvalidArgument, "PAYLOAD_CHECKSUM", nil, "the content does not match its checksum")
		}
		s.durableLocked(n)
		w.durable = w.received
		s.changedLocked(n)
		n.meta.ContentCrc32C = &sum
		s.parentsLocked(name)
		s.nodes[name] = n
	}
	for id, x := range s.writes {
		if x == w {
			delete(s.writes, id)
		}
	}
	return n.file(), nil
}

func (s *Server) reply(st shinglev1.FileService_WriteServer, w *write, state shinglev1.WriteState, f *shinglev1.File) error {
	s.mu.Lock()
	r := &shinglev1.WriteResponse{BootId: s.boot, State: state, File: f}
	if w != nil {
		r.ReceivedBytes, r.DurableBytes = w.received, w.durable
		if w.staged != nil {
			r.FileId = w.staged.meta.FileId
		} else {
			r.FileId = w.node.meta.FileId
		}
	}
	s.mu.Unlock()
	if f := s.Faults.Reply; f != nil {
		if err := f(r); err != nil {
			return err
		}
	}
	return st.Send(r)
}

// Read serves FileService.Read. It sends zeros as holes where they fill a piece.
func (s *Server) Read(r *shinglev1.ReadRequest, st shinglev1.FileService_ReadServer) error {
	s.mu.Lock()
	n, err := s.matchedLocked(r.Name, r.FileId, r.IfMatch)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	f, data := n.file(), bytes.Clone(n.data)
	s.mu.Unlock()
	end := int64(len(data))
	if r.Length != nil && *r.Length < end-r.Offset {
		end = r.Offset + *r.Length
	}
	m := &shinglev1.ReadResponse{File: f, Offset: r.Offset}
	for off := r.Offset; off < end || m != nil; {
		if m == nil {
			m = &shinglev1.ReadResponse{Offset: off}
		}
		if off < end {
			p := data[off:min(off+pieceSize, end)]
			if r.ReportHoles && len(p) == pieceSize && len(bytes.TrimLeft(p, "\x00")) == 0 {
				m.HoleBytes = int64(len(p))
			} else {
				sum := crc32.Checksum(p, castagnoli)
				m.Data, m.Crc32C = append([]byte(nil), p...), &sum
			}
			off += int64(len(p))
		}
		if f := s.Faults.Read; f != nil {
			if err := f(m); err != nil {
				return err
			}
		}
		if err := st.Send(m); err != nil {
			return err
		}
		m = nil
	}
	return nil
}

func (s *Server) GetServerInfo(context.Context, *shinglev1.GetServerInfoRequest) (*shinglev1.GetServerInfoResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := proto.Clone(s.Info).(*shinglev1.GetServerInfoResponse)
	info.BootId = s.boot
	return info, nil
}

func (s *Server) GetUsage(context.Context, *shinglev1.GetUsageRequest) (*shinglev1.GetUsageResponse, error) {
	return &shinglev1.GetUsageResponse{Usage: s.Usage}, nil
}

func (s *Server) ListConditions(context.Context, *shinglev1.ListConditionsRequest) (*shinglev1.ListConditionsResponse, error) {
	return &shinglev1.ListConditionsResponse{Conditions: s.Conditions}, nil
}

func (s *Server) GetCounters(context.Context, *shinglev1.GetCountersRequest) (*shinglev1.GetCountersResponse, error) {
	return &shinglev1.GetCountersResponse{BootId: s.Boot(), Counters: s.Counters}, nil
}

func (s *Server) ListZones(_ context.Context, r *shinglev1.ListZonesRequest) (*shinglev1.ListZonesResponse, error) {
	page, next := page(s.Zones, s.PageSize, r.PageToken)
	return &shinglev1.ListZonesResponse{Zones: page, NextPageToken: next}, nil
}

func (s *Server) ListBlockGroups(_ context.Context, r *shinglev1.ListBlockGroupsRequest) (*shinglev1.ListBlockGroupsResponse, error) {
	page, next := page(s.BlockGroups, s.PageSize, r.PageToken)
	return &shinglev1.ListBlockGroupsResponse{BlockGroups: page, NextPageToken: next}, nil
}

// page cuts a page of a list; the token is the index of its first entry.
func page[T any](all []T, size int, token string) ([]T, string) {
	from, _ := strconv.Atoi(token)
	from = min(from, len(all))
	if from+size >= len(all) {
		return all[from:], ""
	}
	return all[from : from+size], strconv.Itoa(from + size)
}
