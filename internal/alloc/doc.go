// Package alloc decides which block group the next bytes go to, and keeps the books on space.
//
// It owns, in memory only: the state of every block group, the short lists of active block
// groups that give the allocation hint (S1), the budget of active zones, and the
// accounts of space: what is live, free, promised, unusable and lost. It does no I/O and reads
// no clock. Where in a zone bytes land is not decided here: an append decides that; alloc
// hands out a number of bytes in a block group.
//
// # The life of a byte
//
//	Reserve -> Allocate (a Grant) -> append -> Complete -> flush, transaction -> Publish -> Free
//	                                        \-> Fail           \-> Discard
//
// A reserved byte is promised but lies nowhere. A granted one is pending in a block group
// until its transaction is durable (Publish: live) or will never be (Discard: unusable). A live
// one becomes unusable when the transaction that dropped its last reference is durable (Free),
// and comes back as free space when its whole block group has been reset.
//
// # The life of a block group
//
//	Empty -BeginOpen,FinishOpen-> Active -(every byte appended)-> Full -BeginReset-> Resetting -> Empty
//	                                 \-Fail,Suspect-> Closing -Retire-> Full
//	Full -Pin-> kept from being reset while its live parts are moved -Unpin-> as before
//	Empty -HoldEmpty-> kept from being opened, its bytes free all the while -ReleaseEmpty-> as before
//	any -Quarantine-> ReadOnly, Quarantined
//	Empty, Resetting -Resize-> of another capacity; of none: Quarantined, until Resize gives it one again
//
// A block group holds an active slot of the device from BeginOpen until it is full, retired,
// reset or quarantined. Its header block is not part of the usable bytes. Relocation has a slot
// of its own beside those of data (Options.RelocationActive); without one, and where data holds
// them all, it shares data's block groups.
//
// # Conventional block groups
//
// A conventional zone takes writes anywhere, so its block group has none of these states: it has a
// bitmap. A grant is one free run of it; what is discarded is free at once, what is freed counts as
// free at once and can be granted again when its owner says that nobody reads it any more (Vacate).
// Any free block can be granted, so a promise of bytes holds however short the free runs are: more
// grants come of it. Small data goes there first (AllocateSmall), other data when no sequential
// block group has room. They hold no active slot.
//
// # The reserve
//
// Options.Reserve bytes of the free space, wherever they lie, are kept back: Reserve never
// promises them to data. Relocation is granted sequential space only, so what of the reserve it must
// find is kept there. One half is for relocation alone, so that it can always move a block
// group's live parts and get space back. The other half relocation uses too, but bytes that
// were promised before something was lost (a zone failed, a tail was given up) may be granted
// out of it: a promise is kept as long as that can be done without stopping reclaim.
//
// # The cost
//
// Full block groups are never looked at. An allocation looks at the active ones with room, at
// most as many as the budget, and at two empty ones at most; Stats counts them. Conventional ones
// are found by the length of their longest free run: at most four are looked at, and one way down a tree
// over the bitmap.
//
// # After a crash
//
// Nothing here is durable. New builds everything from the recovered block groups; reservations
// and grants of the run before are gone, as the dirty data behind them is.
//
// Left to others: writing zone headers, finishing and resetting zones, persisting block group
// records, keeping readers out of zones that are reset, choosing what to relocate.
package alloc
