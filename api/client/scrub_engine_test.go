package client_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// TestScrubSurvivesPowerCuts: a scrub whose engine loses power again and again is watched over each cut,
// resumed, and comes to its end with one total, progress that never falls, and each bad block once.
func TestScrubSurvivesPowerCuts(t *testing.T) {
	r := newRig(t)
	c := r.dial()
	w, err := c.Write(t.Context(), "a", client.WriteOptions{Mode: client.Replace})
	must(t, err)
	_, err = w.ReadFrom(bytes.NewReader(noise(1, 24<<20)))
	must(t, err)
	must(t, w.Close())
	bad := 0
	for x, err := range c.FileMap(t.Context(), "a") {
		must(t, err)
		z := x.GetZones()[0]
		must(t, r.dev.Corrupt(int(z.GetZone()), int64(z.GetOffset())+4096+7, 1))
		bad++
	}
	begun, err := c.StartScrub(t.Context(), client.ScrubOptions{Limit: 8 << 20})
	must(t, err)
	done := uint64(0)
	for cuts := 0; ; {
		s, err := c.WatchScrub(t.Context(), "", 100*time.Millisecond, func(s *client.Scrub) {
			if s.GetScrubId() != begun.GetScrubId() || s.GetTotalBytes() != begun.GetTotalBytes() || s.GetDoneBytes() > s.GetTotalBytes() {
				t.Errorf("begun as %v, seen as %v", begun, s)
			}
			if share := uint64(cuts+1) * s.GetTotalBytes() / 5; s.GetState() == shinglev1.ScrubState_SCRUB_STATE_RUNNING && s.GetDoneBytes() > share && cuts < 3 {
				cuts++
				r.crash()
			}
		})
		must(t, err)
		if s.GetDoneBytes() < done {
			t.Errorf("%d bytes were done, now %d", done, s.GetDoneBytes())
		}
		done = s.GetDoneBytes()
		if s.GetState() == shinglev1.ScrubState_SCRUB_STATE_FINISHED {
			if cuts < 2 || done != s.GetTotalBytes() || s.GetFindings() != uint64(bad) || s.GetCounters().GetCsumErrors() != uint64(bad) {
				t.Errorf("%d bad blocks and %d cuts, and it ends as %v", bad, cuts, s)
			}
			break
		}
		if s.GetState() != shinglev1.ScrubState_SCRUB_STATE_INTERRUPTED {
			t.Fatalf("%v", s)
		}
		_, err = c.ResumeScrub(t.Context(), "")
		must(t, err)
	}
	named := map[uint64]bool{}
	for f, err := range c.ScrubFindings(t.Context(), "", true) {
		must(t, err)
		if f.GetName() != "a" || named[f.GetAddress()] {
			t.Errorf("%v", f)
		}
		named[f.GetAddress()] = true
	}
	if len(named) != bad {
		t.Errorf("%d bad blocks, %d named", bad, len(named))
	}
}
