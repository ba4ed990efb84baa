package store

// SetTrimmed notes that the zone of a block group is empty and was given back to the device, by
// a flush that is over. It changes nothing if the record is of another generation, or says that
// something was stored since.
func (tx *Tx) SetTrimmed(slot uint32, generation uint64) error {
	g, err := tx.BlockGroup(slot)
	if err != nil {
		return err
	}
	if g.Generation != generation || g.AllocOffset != 0 || g.LiveBytes != 0 || g.Flags&BGTrimmed != 0 {
		return nil
	}
	g.Flags |= BGTrimmed
	return tx.PutBlockGroup(g)
}
