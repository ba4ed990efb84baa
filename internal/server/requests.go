package server

import (
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/engine"
)

// The functions here turn requests into what the engine takes. Nothing reaches the engine
// that has not been through them; their errors are InvalidArgument and name the field.

func createRequest(r *shinglev1.CreateFileRequest) (engine.CreateRequest, error) {
	c := check{op: "server.CreateFile"}
	f := r.GetFile()
	if f == nil {
		c.fail("file", "must be given")
		return engine.CreateRequest{}, c.err
	}
	c.name("file.name", f.GetName())
	if _, ok := shinglev1.FileKind_name[int32(f.GetKind())]; !ok {
		c.fail("file.kind", "unknown value %d", f.GetKind())
	}
	c.attributes("file.attributes", f.GetAttributes())
	c.timestamp("file.mtime", f.GetMtime())
	c.mode("file.mode", f.Mode)
	c.compression("file.compression", f.GetCompression())
	c.id("request_id", r.GetRequestId())
	return engine.CreateRequest{
		Name: f.GetName(), Directory: f.GetKind() == shinglev1.FileKind_FILE_KIND_DIRECTORY,
		Attributes: f.GetAttributes(), Mtime: timeOf(f.GetMtime()), Mode: f.Mode,
		Compression: codecOf(f.GetCompression()), RequestID: r.GetRequestId(), Exclusive: r.GetExclusive(),
	}, c.err
}

func getRequest(r *shinglev1.GetFileRequest) (engine.Ref, error) {
	c := check{op: "server.GetFile"}
	c.nameOrID(r.GetName(), r.GetFileId())
	return engine.Ref{Name: r.GetName(), ID: r.GetFileId()}, c.err
}

// listRequest also answers the query that a page token of this list carries.
func listRequest(r *shinglev1.ListFilesRequest) (out engine.ListRequest, query string, err error) {
	c := check{op: "server.ListFiles"}
	c.directory("directory", r.GetDirectory())
	out = engine.ListRequest{
		Directory: r.GetDirectory(), Recursive: r.GetRecursive(),
		StartAfter: r.GetStartAfter(), Limit: c.page(r.GetPageSize()),
	}
	if len(out.StartAfter) > maxNameBytes+1 {
		c.fail("start_after", "%d bytes long; at most %d", len(out.StartAfter), maxNameBytes+1)
	}
	query = "files\x00" + out.Directory
	if out.Recursive {
		query += "\x00recursive"
	}
	if t := r.GetPageToken(); t != "" && c.err == nil {
		if out.StartAfter != "" {
			c.fail("start_after", "not together with page_token")
		} else {
			out.StartAfter, c.err = parseToken(c.op, query, t)
		}
	}
	return out, query, c.err
}

func deleteRequest(r *shinglev1.DeleteFileRequest) (engine.DeleteRequest, error) {
	c := check{op: "server.DeleteFile"}
	c.name("name", r.GetName())
	c.conditions("if_match", r.GetIfMatch())
	return engine.DeleteRequest{Name: r.GetName(), If: conditionsOf(r.GetIfMatch()), AllowMissing: r.GetAllowMissing()}, c.err
}

func renameRequest(r *shinglev1.RenameFileRequest) (engine.RenameRequest, error) {
	c := check{op: "server.RenameFile"}
	c.name("name", r.GetName())
	c.name("new_name", r.GetNewName())
	c.conditions("if_match", r.GetIfMatch())
	c.conditions("if_target_match", r.GetIfTargetMatch())
	return engine.RenameRequest{
		Name: r.GetName(), NewName: r.GetNewName(), Replace: r.GetReplace(),
		If: conditionsOf(r.GetIfMatch()), IfTarget: conditionsOf(r.GetIfTargetMatch()),
	}, c.err
}

func checkTruncate(r *shinglev1.TruncateFileRequest) error {
	c := check{op: "server.TruncateFile"}
	c.name("name", r.GetName())
	c.size("size", r.GetSize())
	c.conditions("if_match", r.GetIfMatch())
	return c.err
}

func checkDeallocate(r *shinglev1.DeallocateFileRequest) error {
	c := check{op: "server.DeallocateFile"}
	c.name("name", r.GetName())
	c.span(r.GetOffset(), r.GetLength(), 1)
	c.conditions("if_match", r.GetIfMatch())
	return c.err
}

func checkSync(r *shinglev1.SyncRequest) error {
	c := check{op: "server.Sync"}
	if n := len(r.GetNames()); n > maxSyncNames {
		c.fail("names", "%d names; at most %d", n, maxSyncNames)
	}
	for _, name := range r.GetNames() {
		c.name("names", name)
	}
	return c.err
}

func readRequest(r *shinglev1.ReadRequest) (engine.ReadRequest, error) {
	c := check{op: "server.Read"}
	c.nameOrID(r.GetName(), r.GetFileId())
	c.span(r.GetOffset(), r.GetLength(), 0)
	c.conditions("if_match", r.GetIfMatch())
	return engine.ReadRequest{
		Ref:    engine.Ref{Name: r.GetName(), ID: r.GetFileId()},
		Offset: r.GetOffset(), Length: r.Length, If: conditionsOf(r.GetIfMatch()), ReportHoles: r.GetReportHoles(),
	}, c.err
}

// writerOptions reads the first message of a Write. MaxWait is the client's, 0 if unset.
func writerOptions(r *shinglev1.WriteRequest) (engine.WriterOptions, error) {
	c := check{op: "server.Write"}
	c.name("name", r.GetName())
	o := r.GetOptions()
	out := engine.WriterOptions{Name: r.GetName()}
	switch o.GetMode() {
	case shinglev1.WriteMode_WRITE_MODE_UNSPECIFIED, shinglev1.WriteMode_WRITE_MODE_IN_PLACE:
		out.Mode = engine.InPlace
	case shinglev1.WriteMode_WRITE_MODE_REPLACE:
		out.Mode = engine.Replace
	default:
		c.fail("options.mode", "unknown value %d", o.GetMode())
	}
	c.conditions("options.if_match", o.GetIfMatch())
	c.id("options.write_id", o.GetWriteId())
	c.duration("options.max_wait", o.GetMaxWait())
	if o != nil && o.ExpectedSize != nil {
		c.size("options.expected_size", *o.ExpectedSize)
		out.ExpectedSize = o.ExpectedSize
	}
	c.compression("options.compression", o.GetCompression())
	c.attributes("options.attributes", o.GetAttributes())
	c.timestamp("options.mtime", o.GetMtime())
	if o != nil {
		c.mode("options.mode_bits", o.ModeBits)
		out.FileMode = o.ModeBits
	}
	out.If = conditionsOf(o.GetIfMatch())
	out.MustExist = o.GetMustExist()
	out.WriteID = o.GetWriteId()
	out.MaxWait = o.GetMaxWait().AsDuration()
	out.Compression = codecOf(o.GetCompression())
	out.NoDelalloc = o.GetNodelalloc()
	out.Attributes = o.GetAttributes()
	out.Mtime = timeOf(o.GetMtime())
	return out, c.err
}

// checkWrite checks what every message of a Write of the file name must keep to; first says
// that it is the first. size is the length of its data in bytes.
func checkWrite(r *shinglev1.WriteRequest, name string, first bool, size int) error {
	c := check{op: "server.Write"}
	if !first {
		if n := r.GetName(); n != "" && n != name {
			c.fail("name", "%q is not the file of this stream, %q", n, name)
		}
		if r.GetOptions() != nil {
			c.fail("options", "only the first message may have options")
		}
	}
	if size > maxDataBytes {
		c.fail("data", "%d bytes; at most %d", size, maxDataBytes)
	}
	if r.Offset != nil {
		c.size("offset", *r.Offset)
		if c.err == nil && int64(size) > maxFileSize-*r.Offset {
			c.fail("offset", "%d bytes at %d pass the largest file size of %d", size, *r.Offset, int64(maxFileSize))
		}
	}
	if r.ContentCrc32C != nil && !r.GetFinish() {
		c.fail("content_crc32c", "only together with finish")
	}
	return c.err
}

func zonesRequest(r *shinglev1.ListZonesRequest) (first, size int, query string, err error) {
	c := check{op: "server.ListZones"}
	query = "zones"
	for _, v := range r.GetConditions() {
		if _, ok := shinglev1.ZoneCondition_name[int32(v)]; !ok || v == 0 {
			c.fail("conditions", "unknown value %d", v)
		}
		query += "\x00" + v.String()
	}
	first, size = int(r.GetStartZone()), c.page(r.GetPageSize())
	if t := r.GetPageToken(); t != "" {
		if first != 0 {
			c.fail("start_zone", "not together with page_token")
		}
		first = c.position(query, t)
	}
	return first, size, query, c.err
}

func blockGroupsRequest(r *shinglev1.ListBlockGroupsRequest) (first, size int, query string, err error) {
	c := check{op: "server.ListBlockGroups"}
	query = "block groups\x00" + decimal(int(r.GetMinUnusablePercent()))
	for _, v := range r.GetStates() {
		if _, ok := shinglev1.BlockGroupState_name[int32(v)]; !ok || v == 0 {
			c.fail("states", "unknown value %d", v)
		}
		query += "\x00" + v.String()
	}
	if p := r.GetMinUnusablePercent(); p > 100 {
		c.fail("min_unusable_percent", "%d is over 100", p)
	}
	size = c.page(r.GetPageSize())
	if t := r.GetPageToken(); t != "" {
		first = c.position(query, t)
	}
	return first, size, query, c.err
}
