package telemetry

// count is one of engine.Counters as a metric.
type count struct {
	key  string // in engine.Counters
	name string // of the metric, behind "shingle_"; of one that only grows it ends in _total
	help string
}

// counts are all of engine.Counters, in the order of docs/operations.md. Names are stable: they are
// in people's alerts.
var counts = []count{
	{"client_bytes_written", "client_written_bytes_total", "Bytes received from clients."},
	{"files_inlined", "files_inlined_total", "Ranges small enough to be stored in the file's own record."},
	{"delalloc_ranges", "delalloc_ranges_total", "Dirty ranges taken for writeback."},
	{"delalloc_range_bytes", "delalloc_range_bytes_total", "Bytes of the dirty ranges taken for writeback."},
	{"delalloc_largest_range", "delalloc_largest_range_bytes", "The largest dirty range taken for writeback."},
	{"delalloc_scans", "delalloc_scans_total", "Searches for dirty data that took a lock; none with nodelalloc."},
	{"chunks", "chunks_total", "Chunks of up to 512 KiB handed to compression."},
	{"extents", "extents_total", "Extents placed."},
	{"dirty_memory_bytes", "dirty_memory_bytes", "Memory that holds received data which is not durable yet."},
	{"dirty_memory_peak_bytes", "dirty_memory_peak_bytes", "The most that dirty_memory_bytes has been."},

	{"syncs", "syncs_total", "Syncs answered, of clients and of the engine itself."},
	{"commits", "commits_total", "Metadata transactions committed."},
	{"flushes", "flushes_total", "Device flushes that commits waited for."},

	{"reads_open", "reads_open", "Reads that are open."},
	{"read_memory_bytes", "read_memory_bytes", "Memory that holds what was read and clients have not taken yet."},
	{"read_memory_peak_bytes", "read_memory_peak_bytes", "The most that read_memory_bytes has been."},
	{"extent_bytes_read", "extent_read_bytes_total", "Stored bytes read for clients."},

	{"allocations", "allocations_total", "Places given by the allocator."},
	{"block_groups_examined", "block_groups_examined_total", "Block groups looked at to give them."},
	{"block_groups_examined_max", "block_groups_examined_max", "The most block groups looked at for one place."},
	{"allocation_hint_hits", "allocation_hint_hits_total", "Places found at the first look."},
	{"allocator_mismatches", "allocator_mismatches_total", "Figures that contradict the allocator's books: damaged metadata, or a bug."},

	{"extent_bytes_appended", "extent_appended_bytes_total", "Stored bytes of extents appended to the device."},
	{"device_bytes_written", "device_written_bytes_total", "Bytes written to the device, all told."},
	{"device_bytes_read", "device_read_bytes_total", "Bytes read from the device, all told."},
	{"device_appends", "device_appends_total", "Appends to the device."},
	{"device_writes", "device_writes_total", "Writes to the device that are no appends."},
	{"append_errors", "append_errors_total", "Appends that failed; the data was placed elsewhere."},
	{"flush_errors", "flush_errors_total", "Device flushes that failed; what was in doubt was appended again."},
	{"read_errors", "read_errors_total", "Device reads that failed."},
	{"corruptions", "corruptions_total", "Copies of stored blocks met that are bad."},
	{"corruptions_repaired", "corruptions_repaired_total", "Bad copies that were mended from a good one."},

	{"zones_opened", "zones_opened_total", "Zones opened to be written."},
	{"zones_closed", "zones_closed_total", "Zones closed by command."},
	{"zones_finished", "zones_finished_total", "Zones finished by command."},
	{"zones_retired", "zones_retired_total", "Zones finished before they were full, to make room for another."},
	{"zones_reset", "zones_reset_total", "Zones reset."},
	{"zones_released", "zones_released_total", "Zones whose space the host got back."},
	{"zones_evicted", "zones_evicted_total", "Open zones that the device closed by itself to open another."},
	{"zones_refused_too_many_open", "zones_refused_too_many_open_total", "Commands that the device refused for its limit of open zones."},
	{"zones_refused_too_many_active", "zones_refused_too_many_active_total", "Commands that the device refused for its limit of active zones."},
	{"peak_open_zones", "zones_open_peak", "The most zones open at a time."},
	{"peak_active_zones", "zones_active_peak", "The most zones active at a time."},

	{"reclaim_victims", "reclaim_victims_total", "Block groups chosen to be emptied."},
	{"reclaim_emptied", "reclaim_emptied_total", "Block groups emptied."},
	{"reclaim_failed", "reclaim_failed_total", "Block groups that could not be emptied."},
	{"reclaim_bytes_moved", "reclaim_moved_bytes_total", "Live bytes moved to empty block groups."},
	{"reclaim_bytes_dropped", "reclaim_dropped_bytes_total", "Bytes copied that had died before the move was committed."},
	{"reclaim_bytes_discarded", "reclaim_discarded_bytes_total", "Bytes copied whose move came to nothing."},
	{"reclaim_bad_blocks", "reclaim_bad_blocks_total", "Bad blocks met while moving; they were left in place and reported."},
	{"space_waits", "space_waits_total", "Writes that had to wait for space."},

	{"trims", "trims_total", "Trims begun."},
	{"discard_commands", "discard_commands_total", "Discard commands sent to the device."},
	{"discard_ranges", "discard_ranges_total", "Ranges carried by them."},
	{"discard_batches", "discard_batches_total", "Batches of discards submitted together."},
	{"discarded_bytes", "discarded_bytes_total", "Bytes discarded."},

	{"scrub_extent_lookups", "scrub_extent_lookups_total", "Look-ups of extents by scrub."},
	{"scrub_checksum_lookups", "scrub_checksum_lookups_total", "Look-ups of checksums by scrub."},
	{"scrub_reads", "scrub_reads_total", "Device reads by scrub."},
	{"scrub_bytes_read", "scrub_read_bytes_total", "Bytes read by scrub."},
	{"scrub_findings", "scrub_findings_total", "Findings that scrub recorded."},
}
