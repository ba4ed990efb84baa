// Command client speaks to a Shingle engine from the shell: it puts and gets files and
// folders, names them, and shows how the store is doing.
//
// It owns nothing but the command line: one file a verb, on package client only. What put,
// mv, rm and sync promise is durable when they exit with 0; get leaves the whole old or the
// whole new file behind. Exit status: 0 ok, 1 error, 2 usage, 3 not found, 4 data loss,
// 5 unavailable, 6 status: something is wrong; of scrub as of btrfs scrub.
package main
