package engine

import (
	"context"
	"fmt"

	"github.com/shingle-store/shingle/internal/store"
)

// Problem is something that Check found wrong.
type Problem struct {
	Object string // what it is about: "zone 17", "block group 3", "label", "metadata extents 00ab.."
	Msg    string // what is wrong with it, in a sentence
}

// String returns the problem in one line.
func (p Problem) String() string { return p.Object + ": " + p.Msg }

// CheckOptions say what to check.
type CheckOptions struct {
	Devices      []Device // stay the caller's; only read
	MetadataPath string
	// MetadataLimit is as in Options; 0: its default.
	MetadataLimit int64
	// ReadData has every stored block read and held against its checksum.
	ReadData bool
}

// Check looks over a store that no engine has open: the metadata in itself (store.Check), the
// labels and the device records against each other, every block group against its zone, and with
// ReadData every stored block against its checksum. It calls report for each problem and goes
// on; one damage may be reported from several sides. What a crash legally leaves, and Open mends,
// is no problem. Nothing on the device or in the metadata is changed. Memory is bounded by the
// number of block groups.
//
// The error is for a check that could not be finished: ctx's, those of store.Open (a metadata
// file damaged beyond opening is Corruption), and Device if the zones cannot be reported.
func Check(ctx context.Context, o CheckOptions, report func(Problem)) (err error) {
	c := &check{o: o, report: report}
	limits := Options{MetadataLimit: o.MetadataLimit}
	limits.setDefaults(usableBytes(o.Devices))
	// NoSync: there is nothing to sync, and no space is set aside.
	c.st, err = store.Open(o.MetadataPath, store.Options{MaxBytes: limits.MetadataLimit, NoSync: true})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := c.st.Close(); err == nil {
			err = cerr
		}
	}()
	err = c.st.Check(ctx, func(p store.Problem) { c.problem("metadata "+p.Bucket+" "+p.Key, "%s", p.Msg) })
	if err != nil {
		return err
	}
	return c.st.View(func(tx *store.Tx) error {
		c.super = tx.Superblock()
		if ours, err := c.match(tx); err != nil || !ours {
			return err
		}
		if err := c.blockGroups(ctx, tx); err != nil || !o.ReadData {
			return err
		}
		return c.data(ctx, tx)
	})
}

// check is one run of Check.
type check struct {
	o     CheckOptions
	st    *store.Store
	super store.Superblock
	// devices are those of the store by number, those that are missing too.
	devices map[uint32]*checkedDevice
	several bool
	groups  map[uint32]checkedGroup // those of which a zone is known and can be read
	report  func(Problem)
}

func (c *check) problem(object, format string, a ...any) {
	c.report(Problem{Object: object, Msg: fmt.Sprintf(format, a...)})
}
