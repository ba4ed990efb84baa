// Package store keeps Shingle's metadata in one bbolt file: the schema of docs/format.md
// section 2, the record codecs, transactions, group commit and the offline check.
//
// # What it owns
//
// The file, and these buckets (integers in keys are big-endian, so byte order is numeric
// order; [f] marks buckets that are filled to 0.9 because their keys mostly ascend):
//
//	root
//	├── super            "super"                          -> Superblock
//	├── devices          device u32                       -> Device
//	├── block_groups     slot u32                         -> BlockGroup
//	├── nodes        [f] node u64                         -> Node
//	├── names            parent u64, name, "/" if a dir   -> node id
//	├── file_extents [f] file u64, offset u64             -> FileExtent
//	├── extents      [f] address u64                      -> Extent
//	├── back_references [f] address u64, file u64, offset u64 -> stored length
//	├── checksums    [f] address u64                      -> packed crc32c, at most 256
//	├── orphans          node u64                         -> kind, since
//	├── bitmaps      [f] slot u32, chunk u32              -> a bit for each of 8,192 blocks
//	├── trim_state   [f] slot u32, chunk u32              -> a bit for each of 8,192 blocks
//	├── scrub_state      scrub u64                        -> Scrub
//	└── scrub_findings [f] scrub u64, sequence u64        -> Finding
//
// Every value is payload || crc32c(bucket name || key || payload); the payload is
// protocol-buffer wire format. A record is never believed before its checksum matched.
//
// # What it promises after a crash
//
// A transaction whose Update returned nil is there, whole; one whose Update had not
// returned is there whole or not at all. bbolt writes changed pages to free places, syncs,
// then writes one of two meta pages and syncs again; the older meta page stays valid until
// then. bbolt's own pages carry no checksums, so the structure of the page tree is checked
// before the file is mapped (pages.go), and a panic or a memory fault inside bbolt is
// returned as an error of kind Corruption.
//
// # What it leaves to others
//
// It knows nothing of devices, of dirty data or of what can be allocated: it keeps the bitmaps of
// conventional block groups as the extents have it, and says what a commit freed there
// (Options.Freed). What the disk has no room for is refused and not promised (aside.go). The engine appends, flushes and only then asks for the transaction that publishes (the order of
// docs/format.md 2.11). A transaction never waits on anything but the disk below the file.
package store
