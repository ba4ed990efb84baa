package zone

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var memGeo = Geometry{
	Dialect: ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 6, MaxOpen: 2, MaxActive: 2,
}

func mustMem(t testing.TB, g Geometry) *Mem {
	t.Helper()
	d, err := NewMem(g, MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func payload(seed byte, blocks int) [][]byte { return [][]byte{bytes.Repeat([]byte{seed}, blocks*blk)} }

func appendTo(d Device, z int, seed byte, blocks int) error {
	_, err := d.Append(z, payload(seed, blocks))
	return err
}

func rngOf(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func TestHookSeesEveryOperationTwice(t *testing.T) {
	d := mustMem(t, memGeo)
	must(t, appendTo(d, 1, 1, 2)) // index 0, unseen
	var got []string
	d.SetHook(func(op Op) error {
		got = append(got, fmt.Sprintf("%d %v zone %d at %d+%d after=%v", op.Index, op.Kind, op.Zone, op.Off/blk, op.Len/blk, op.After))
		if op.Off == -1 && op.Kind != OpAppend {
			t.Errorf("only an append does not know where it goes: %+v", op)
		}
		return nil
	})
	must(t, appendTo(d, 1, 1, 3), d.Write(1, 5*blk, payload(1, 1)), d.ReadAt(1, 2*blk, make([]byte, blk)), d.Flush(),
		d.Open(1), d.CloseZone(1), d.Finish(1), d.Reset(1))
	if err := d.Open(-7); err == nil {
		t.Error("zone -7")
	}
	d.SetHook(nil)
	must(t, d.Flush())
	want := []string{
		"1 append zone 1 at 0+3 after=false", "1 append zone 1 at 2+3 after=true",
		"2 write zone 1 at 5+1 after=false", "2 write zone 1 at 5+1 after=true",
		"3 read zone 1 at 2+1 after=false", "3 read zone 1 at 2+1 after=true",
		"4 flush zone -1 at 0+0 after=false", "4 flush zone -1 at 0+0 after=true",
		"5 open zone 1 at 0+0 after=false", "5 open zone 1 at 0+0 after=true",
		"6 close zone 1 at 0+0 after=false", "6 close zone 1 at 0+0 after=true",
		"7 finish zone 1 at 0+0 after=false", "7 finish zone 1 at 0+0 after=true",
		"8 reset zone 1 at 0+0 after=false", "8 reset zone 1 at 0+0 after=true",
		"9 open zone -7 at 0+0 after=false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestHookErrors(t *testing.T) {
	d := mustMem(t, memGeo)
	must(t, appendTo(d, 1, 1, 2))
	boom := errors.New("boom")
	before, _ := d.Report(0, -1)
	stats := d.Stats()
	d.SetHook(func(Op) error { return boom })
	_, appendErr := d.Append(1, payload(1, 1))
	for what, err := range map[string]error{
		"append": appendErr, "write": d.Write(1, 2*blk, payload(1, 1)), "read": d.ReadAt(1, 0, make([]byte, blk)),
		"flush": d.Flush(), "open": d.Open(1), "close": d.CloseZone(1), "finish": d.Finish(1), "reset": d.Reset(1),
	} {
		if !errors.Is(err, boom) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d.SetHook(func(op Op) error {
		if op.After {
			return boom
		}
		return nil
	})
	if after, _ := d.Report(0, -1); !cmp.Equal(before, after) || d.Stats() != stats {
		t.Error("an operation that the hook failed took effect")
	}
	if err := appendTo(d, 1, 1, 1); err != nil {
		t.Errorf("an error after the operation is ignored: %v", err)
	}
}

// An operation that the power fails under may have taken effect but never succeeds.
func TestPowerFailsUnderAnOperation(t *testing.T) {
	for _, after := range []bool{false, true} {
		ends := map[int64]bool{}
		for seed := range uint64(60) {
			d := mustMem(t, memGeo)
			must(t, appendTo(d, 1, 1, 2), d.Flush())
			d.SetHook(func(op Op) error {
				if op.After == after {
					d.CutPower()
				}
				return nil
			})
			if err := appendTo(d, 1, 2, 3); !errors.Is(err, ErrPowerLost) {
				t.Fatal(err)
			}
			if _, err := d.Report(0, -1); !errors.Is(err, ErrPowerLost) {
				t.Fatal(err)
			}
			d.SetHook(nil)
			d.PowerOn(rngOf(seed))
			r, err := d.Report(1, 1)
			must(t, err)
			ends[r[0].WP/blk] = true
		}
		want := map[int64]bool{2: true}
		if after {
			want = map[int64]bool{2: true, 3: true, 4: true, 5: true}
		}
		if !cmp.Equal(ends, want) {
			t.Errorf("cut after=%v: write pointers %v, want %v", after, ends, want)
		}
	}
}

// A call that began before a cut fails even if the power is back when it ends.
func TestACallDoesNotOutliveTheCut(t *testing.T) {
	d := mustMem(t, memGeo)
	d.SetHook(func(op Op) error {
		if op.After {
			d.CutPower()
			d.PowerOn(rngOf(1))
		}
		return nil
	})
	if err := appendTo(d, 1, 1, 1); !errors.Is(err, ErrPowerLost) {
		t.Error(err)
	}
	if err := d.Flush(); !errors.Is(err, ErrPowerLost) {
		t.Error(err)
	}
}

// outcomes runs prepare, cuts the power and collects what zone 1 looks like afterwards.
func outcomes(t *testing.T, prepare func(d *Mem)) map[string]bool {
	t.Helper()
	got := map[string]bool{}
	for seed := range uint64(200) {
		d := mustMem(t, memGeo)
		prepare(d)
		d.PowerOn(rngOf(seed))
		r, err := d.Report(1, 1)
		must(t, err)
		s := fmt.Sprintf("%v at %d", r[0].Condition, r[0].WP/blk)
		if n := min(r[0].WP, r[0].Capacity); n > 0 {
			p := make([]byte, n)
			must(t, d.ReadAt(1, 0, p))
			s += ":"
			for i := int64(0); i < n; i += blk {
				s += fmt.Sprint(p[i])
			}
		}
		got[s] = true
	}
	return got
}

func TestWhatACrashLeaves(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(d *Mem)
		want    []string
	}{
		{"nothing done", func(*Mem) {}, []string{"empty at 0"}},
		{"flushed", func(d *Mem) { must(t, appendTo(d, 1, 1, 2), d.Flush()) }, []string{"closed at 2:11"}},
		{"a tail", func(d *Mem) { must(t, appendTo(d, 1, 1, 1), d.Flush(), appendTo(d, 1, 2, 2)) },
			[]string{"closed at 1:1", "closed at 2:12", "closed at 3:122"}},
		{"opened only", func(d *Mem) { must(t, d.Open(1)) }, []string{"empty at 0"}},
		{"a finish", func(d *Mem) { must(t, appendTo(d, 1, 1, 2), d.Flush(), d.Finish(1)) },
			[]string{"closed at 2:11", "full at 16:110000000000"}},
		{"a finish of unflushed data", func(d *Mem) { must(t, appendTo(d, 1, 1, 1), d.Finish(1)) },
			[]string{"empty at 0", "closed at 1:1", "full at 16:000000000000", "full at 16:100000000000"}},
		{"a flushed finish", func(d *Mem) { must(t, appendTo(d, 1, 1, 1), d.Finish(1), d.Flush()) },
			[]string{"full at 16:100000000000"}},
		{"a reset", func(d *Mem) { must(t, appendTo(d, 1, 1, 2), d.Flush(), d.Reset(1)) },
			[]string{"closed at 2:11", "empty at 0"}},
		{"a flushed reset", func(d *Mem) { must(t, appendTo(d, 1, 1, 2), d.Flush(), d.Reset(1), d.Flush()) },
			[]string{"empty at 0"}},
		{"a reset and a rewrite", func(d *Mem) {
			must(t, appendTo(d, 1, 1, 2), d.Flush(), d.Reset(1), appendTo(d, 1, 2, 2))
		}, []string{"closed at 2:11", "empty at 0", "closed at 1:2", "closed at 2:22"}},
		{"a reset over an unflushed tail", func(d *Mem) {
			must(t, appendTo(d, 1, 1, 1), d.Flush(), appendTo(d, 1, 3, 1), d.Reset(1))
		}, []string{"closed at 1:1", "closed at 2:13", "empty at 0"}},
		{"two resets", func(d *Mem) {
			must(t, appendTo(d, 1, 1, 2), d.Flush(), d.Reset(1), appendTo(d, 1, 2, 2), d.Reset(1), appendTo(d, 1, 3, 1))
		}, []string{"closed at 2:11", "empty at 0", "closed at 1:3"}},
		{"a reset of a finished zone", func(d *Mem) {
			must(t, appendTo(d, 1, 1, 1), d.Finish(1), d.Flush(), d.Reset(1))
		}, []string{"full at 16:100000000000", "empty at 0"}},
		{"filled", func(d *Mem) { must(t, appendTo(d, 1, 1, 11), d.Flush(), appendTo(d, 1, 2, 1)) },
			[]string{"closed at 11:11111111111", "full at 12:111111111112"}},
		{"read-only with a tail", func(d *Mem) {
			must(t, appendTo(d, 1, 1, 1), d.Flush(), appendTo(d, 1, 2, 1), d.SetCondition(1, ReadOnly))
		}, []string{"read-only at 1:1", "read-only at 2:12"}},
	} {
		want := map[string]bool{}
		for _, w := range c.want {
			want[w] = true
		}
		if diff := cmp.Diff(want, outcomes(t, c.prepare)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// Zones 0 and 1 are active at the limit; their finishes are not flushed when 2 and 3 take
// their slots. No crash may bring back more than two active zones.
func TestTheActiveLimitHoldsAfterACrash(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(300) {
		d := mustMem(t, memGeo)
		must(t, appendTo(d, 0, 1, 1), appendTo(d, 1, 1, 1), d.Flush(), d.Finish(0), d.Reset(1),
			appendTo(d, 2, 1, 1), appendTo(d, 3, 1, 1))
		d.PowerOn(rngOf(seed))
		r, err := d.Report(0, 4)
		must(t, err)
		s, active := "", 0
		for _, z := range r {
			s += z.Condition.String()[:1]
			active += b2i(z.Condition.IsActive())
		}
		if seen[s] = true; active > 2 {
			t.Fatalf("seed %d: %s", seed, s)
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %v were seen", seen)
	}
}

func TestTheSameSeedGivesTheSameOutcome(t *testing.T) {
	run := func() string {
		g := Geometry{Dialect: SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 12, Conventional: 3}
		d, err := NewMem(g, MemOptions{Garbage: true})
		must(t, err)
		rng := rngOf(5)
		for range 300 {
			switch z := rng.IntN(g.Zones); {
			case z < g.Conventional:
				must(t, d.Write(z, rng.Int64N(12)*blk, payload(byte(rng.Uint32()), 1+rng.IntN(4))))
			case rng.IntN(6) == 0:
				must(t, d.Reset(z))
			case rng.IntN(50) == 0:
				must(t, d.Flush())
			default:
				_ = appendTo(d, z, byte(rng.Uint32()), 1+rng.IntN(5))
			}
		}
		d.PowerOn(rng)
		var out bytes.Buffer
		r, err := d.Report(0, -1)
		must(t, err)
		for _, z := range r {
			p := make([]byte, min(z.WP, z.Capacity))
			if len(p) > 0 {
				must(t, d.ReadAt(z.Index, 0, p))
			}
			fmt.Fprintf(&out, "%+v %x\n", z, p)
		}
		return out.String()
	}
	if first, second := run(), run(); first != second {
		t.Error("two runs differ")
	}
}

func TestCorrupt(t *testing.T) {
	d := mustMem(t, memGeo)
	must(t, appendTo(d, 1, 0x0f, 2), d.Corrupt(1, blk-1, 2), d.Corrupt(2, 0, blk))
	p := make([]byte, 2*blk)
	must(t, d.ReadAt(1, 0, p))
	if p[blk-2] != 0x0f || p[blk-1] != 0xf0 || p[blk] != 0xf0 || p[blk+1] != 0x0f {
		t.Errorf("bytes around the border: %x", p[blk-2:blk+2])
	}
	for _, err := range []error{d.Corrupt(-1, 0, 1), d.Corrupt(6, 0, 1), d.Corrupt(0, -1, 1), d.Corrupt(0, 12*blk, 1)} {
		if err == nil {
			t.Error("a range that does not exist was corrupted")
		}
	}
}

// 4 GiB of zones cost next to nothing until they are written, and a reset gives memory back.
func TestMemoryIsTakenAsZonesAreWritten(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	d := mustMem(t, Geometry{Dialect: ZNS, ZoneSize: 64 << 20, ZoneCapacity: 64 << 20, Zones: 64})
	if used := heap() - before; used > 1<<20 {
		t.Errorf("an empty device takes %d bytes", used)
	}
	for range 20 {
		must(t, appendTo(d, 3, 1, 1024), d.Reset(3), d.Flush()) // 4 MiB
	}
	if used := heap() - before; used > 10<<20 {
		t.Errorf("4 MiB written over and over take %d bytes", used)
	}
	runtime.KeepAlive(d)
}

// Power comes and goes under parallel work; run with -race.
func TestPowerCutsUnderParallelWork(t *testing.T) {
	d := mustMem(t, Geometry{Dialect: SMR, ZoneSize: 64 * blk, ZoneCapacity: 64 * blk, Zones: 6, Conventional: 1, MaxOpen: 3})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rngOf(uint64(w))
			for range 300 {
				z := rng.IntN(6)
				var err error
				switch rng.IntN(8) {
				case 0:
					err = d.Flush()
				case 1:
					err = d.Reset(z)
				case 2:
					err = d.ReadAt(z, 0, make([]byte, blk))
				case 3:
					err = d.Write(0, rng.Int64N(60)*blk, payload(9, 4))
				default:
					err = appendTo(d, z, byte(w), 2)
				}
				for _, ok := range []error{nil, ErrPowerLost, ErrInvalidRead, ErrZoneFull, ErrBoundary, ErrConventional} {
					if ok == nil && err == nil || ok != nil && errors.Is(err, ok) {
						err = nil
						break
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range uint64(30) {
		d.CutPower()
		d.PowerOn(rngOf(i))
		runtime.Gosched()
	}
	wg.Wait()
}

func BenchmarkMemAppend(b *testing.B) {
	for _, size := range []int{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			d := mustMem(b, Geometry{Dialect: ZNS, ZoneSize: 64 << 20, ZoneCapacity: 64 << 20, Zones: 2})
			bufs := [][]byte{make([]byte, size)}
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := d.Append(0, bufs); errors.Is(err, ErrZoneFull) {
					must(b, d.Reset(0), d.Flush())
				}
			}
		})
	}
}
