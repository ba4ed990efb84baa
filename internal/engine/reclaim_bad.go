package engine

import (
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// badBlock reports a block that is good in no copy, for a few of the files that refer to it.
func (e *Engine) badBlock(at extent.Addr, want uint32, bad []badCopy) {
	e.rc.badBlocks.Add(1)
	e.count.corruptions.Add(uint64(len(bad)))
	for _, c := range bad {
		e.scrubMet(at, c, want, false)
	}
	err := e.st.View(func(tx *store.Tx) error {
		refs, err := tx.RefsTo(at, 8)
		for _, ref := range refs {
			pieces, err := tx.Map(ref.File, ref.Off, ref.End())
			if err != nil {
				return err
			}
			for _, x := range pieces {
				if block := int64(at-x.Addr) / extent.BlockSize; at < x.Addr || block >= x.Blocks {
					continue
				} else if f := (&file{id: ref.File}); bad[0].err != nil {
					_ = e.readFailed(f, x, block, bad[0].err)
				} else {
					_ = e.corruption(f, x, block, want, bad[0].got)
				}
			}
		}
		return err
	})
	if err != nil {
		e.o.Logger.Warn("it is not known who refers to a bad block", "address", uint64(at), "error", err)
	}
}
