package engine

import "sync/atomic"

// counters are exact counts since the engine was opened.
type counters struct {
	clientBytes, deviceBytes, readBytes   atomic.Uint64
	extents, chunks, inlined              atomic.Uint64
	commits, syncs, flushes               atomic.Uint64
	appendErrors, flushErrors, readErrors atomic.Uint64
	corruptions, mended                   atomic.Uint64 // bad copies of blocks
	trims, discardBatches                 atomic.Uint64
	rangesInFlight                        atomic.Int64
}

// Counters returns the exact counts since this run began, by the names of design.md 5.
func (e *Engine) Counters() map[string]uint64 {
	c, a, d, dl := &e.count, e.al.Stats(), e.dev.Stats(), &e.mode.Counters
	return map[string]uint64{
		"allocations":                   a.Allocations,
		"block_groups_examined":         a.Examined,
		"block_groups_examined_max":     a.MaxExamined,
		"allocation_hint_hits":          a.HintHits,
		"zones_opened":                  a.Opened,
		"zones_retired":                 a.Retired,
		"zones_reset":                   d.Resets,
		"zones_finished":                d.Finishes,
		"zones_closed":                  d.Closes,
		"zones_evicted":                 d.Evictions,
		"peak_open_zones":               uint64(d.PeakOpen),
		"peak_active_zones":             uint64(d.PeakActive),
		"zones_refused_too_many_open":   d.RefusedTooManyOpen,
		"zones_refused_too_many_active": d.RefusedTooManyActive,
		"trims":                         c.trims.Load(),
		"discard_commands":              d.Discards,
		"discard_batches":               c.discardBatches.Load(),
		"discard_ranges":                d.DiscardRanges,
		"discarded_bytes":               d.DiscardedBytes,
		"zones_released":                d.Releases,
		"delalloc_ranges":               dl.Ranges.Load(),
		"delalloc_range_bytes":          dl.RangeBytes.Load(),
		"delalloc_largest_range":        uint64(dl.LargestRange.Load()),
		"delalloc_scans":                dl.Scans.Load(),
		"chunks":                        c.chunks.Load(),
		"extents":                       c.extents.Load(),
		"files_inlined":                 c.inlined.Load(),
		"commits":                       e.st.Stats().Commits,
		"syncs":                         c.syncs.Load(),
		"flushes":                       c.flushes.Load(),
		"flush_errors":                  c.flushErrors.Load(),
		"append_errors":                 c.appendErrors.Load(),
		"read_errors":                   c.readErrors.Load(),
		"corruptions":                   c.corruptions.Load(),
		"corruptions_repaired":          c.mended.Load(),
		"client_bytes_written":          c.clientBytes.Load(),
		"device_bytes_written":          d.WrittenBytes,
		"extent_bytes_appended":         c.deviceBytes.Load(),
		"device_bytes_read":             d.ReadBytes,
		"extent_bytes_read":             c.readBytes.Load(),
		"device_appends":                d.Appends,
		"reclaim_victims":               e.rc.victims.Load(),
		"reclaim_emptied":               e.rc.emptied.Load(),
		"reclaim_failed":                e.rc.failed.Load(),
		"reclaim_bytes_moved":           e.rc.moved.Load(),
		"reclaim_bytes_dropped":         e.rc.dropped.Load(),
		"reclaim_bytes_discarded":       e.rc.discarded.Load(),
		"reclaim_bad_blocks":            e.rc.badBlocks.Load(),
		"space_waits":                   e.rc.spaceWaits.Load(),
		"scrub_extent_lookups":          e.scrubs.lookups.Load(),
		"scrub_checksum_lookups":        e.scrubs.sumLookups.Load(),
		"scrub_reads":                   e.scrubs.reads.Load(),
		"scrub_bytes_read":              e.scrubs.bytes.Load(),
		"scrub_findings":                e.scrubs.findings.Load(),
		"allocator_mismatches":          a.Mismatches,
		"device_writes":                 d.Writes,
		"reads_open":                    uint64(len(e.reads.readers)),
		"read_memory_bytes":             uint64(e.reads.inUse.Load()),
		"read_memory_peak_bytes":        uint64(e.reads.peak.Load()),
		"dirty_memory_bytes":            uint64(e.arena.InUse()),
		"dirty_memory_peak_bytes":       uint64(e.arena.Peak()),
	}
}
