// Package storetest makes the states that a crash can leave a metadata file in.
//
// It works on images of the file, before and after one commit, and knows only two things of
// bbolt: pages are 4 KiB, and the first two are the meta pages, of which a commit writes one,
// last, after a sync of all the others. It is for tests and promises nothing itself.
package storetest
