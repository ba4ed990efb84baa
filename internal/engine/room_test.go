package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// TestRoom: what is said of a new store is what an engine then says of it, and saying it leaves no trace.
func TestRoom(t *testing.T) {
	short := smallZNS
	short.LastZoneSize = 256 << 10
	for name, g := range map[string]zone.Geometry{
		"zns": smallZNS, "short last zone": short,
		"mixed": {Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 20, Conventional: 4, MaxOpen: 4},
		"disk":  {Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 5, Conventional: 5},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, g, Options{})
			room, err := Room(b.meta)
			if err != nil {
				t.Fatal(err)
			}
			if l, err := label.Read(b.dev); err != nil || l.Generation != FormattedGeneration {
				t.Errorf("the label is %+v, %v", l, err)
			}
			e := b.open()
			if total := e.Usage().Total; room != total || total <= 0 {
				t.Errorf("room for %d is said, %d is total", room, total)
			}
			put(t, e, "a", make([]byte, 1<<16))
			if err := e.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if again, err := Room(b.meta); err != nil || again != room {
				t.Errorf("with a file in it: %d, %v", again, err)
			}
		})
	}
	if _, err := Room(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("there is room in nothing")
	}
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.WriteFile(foreign, []byte("letters to nobody"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Room(foreign); !errdefs.Is(err, errdefs.Corruption) {
		t.Errorf("a foreign file: %v", err)
	}
}
