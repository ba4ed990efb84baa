package client

import (
	"fmt"
	"testing"
)

// A caller that fills the window before anything was sent must not cost the pipeline its depth:
// each part of the window is asked for as it is sent.
func TestSyncsAreSpreadOverTheWindow(t *testing.T) {
	for _, c := range []struct {
		limit int64
		want  string
	}{
		{8, "[2 4 6 8]"}, // in messages of one byte
		{4, "[1 2 3 4 5 6 7 8]"},
		{64, "[8]"}, // asked for by the writer
		{1, "[1 2 3 4 5 6 7 8]"},
	} {
		w := &Writer{changed: make(chan struct{})}
		w.win.limit = c.limit
		for i := range int64(8) {
			w.win.push(i, []byte{byte(i)})
		}
		w.want.sync = w.win.accepted
		a := &attempt{synced: -1}
		var asked []int64
		for {
			req := w.requestLocked(a)
			if req == nil {
				break
			}
			if req.Header.GetSync() {
				asked = append(asked, w.win.sent())
			}
			req.Free()
			if len(asked) > 8 {
				t.Fatalf("limit %d: it goes on asking", c.limit)
			}
		}
		if got := fmt.Sprint(asked); got != c.want {
			t.Errorf("limit %d: asked for syncs at %s, want %s", c.limit, got, c.want)
		}
		w.win.release()
	}
}
