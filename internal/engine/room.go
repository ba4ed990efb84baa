package engine

import (
	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/store"
)

// Room answers how many bytes can be stored in a store that Format has made and no engine has open: the
// Total of its Usage as long as no zone has failed. It looks at the metadata only, and changes nothing, so
// that the labels still say that nobody has used the store. Errors are those of store.Open.
func Room(metadataPath string) (room int64, err error) {
	st, err := store.Open(metadataPath, store.Options{NoSync: true}) // as in Check
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := st.Close(); err == nil {
			err = cerr
		}
	}()
	err = st.View(func(tx *store.Tx) error {
		room = -tx.Superblock().RelocationReserve
		return tx.BlockGroups(func(g store.BlockGroup) error {
			room += g.Capacity
			if g.Kind == store.KindSequential && g.Capacity > 0 { // none: its zones have gone to others
				room -= alloc.HeaderSize
			}
			return nil
		})
	})
	return max(0, room), err
}
