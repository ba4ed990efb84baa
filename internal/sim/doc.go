// Package sim attacks the promises of the engine, deterministically.
//
// It owns a run: simulated clients drive the real engine over a memory device that fails, lies and
// loses power, on virtual time (testing/synctest). Whenever everything in the run is blocked, the
// run chooses the one thing that goes next: a pending device operation or commit with its outcome, a
// client's next step, a client's patience ending, or the clock. Beside the engine stands a model that
// knows what must be true: exactly for the files that one client has to itself, as registers of
// blocks for the files that all share. What is found is an error with the history that led to it.
//
// Every choice comes from one stream, so a run is a list of numbers: it can be saved, replayed and
// reduced (trace.go). The same seed gives the same trace, as far as the Go scheduler lets it: one
// goroutine is woken at a time, and what it wakes in turn goes in an order that hardly ever matters.
//
// A cut of the power comes at a device operation (before or after it takes effect), at a commit
// (before, in the middle, after), when idle, or as the death of the process alone, also in the middle
// of recovery. What survives of the device is drawn by zone.Mem, of the metadata by storetest.
//
// A share of the runs has several devices, or two copies of what is stored. Then what goes bad does so in
// one copy (disks.go), so that nothing may be lost; a device may die and come back (loss.go), be added or
// replaced (members.go).
//
// It is for tests and promises nothing after a crash but to have noticed. What is legal to lose is
// docs/reliability.md's to say. It uses the engine through its exported interface only.
package sim
