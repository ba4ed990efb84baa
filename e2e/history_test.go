package e2e

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A register is a block of a file that several clients write, read and sync. Each write has a value of
// its own; 0 is what nobody has written.
type register struct{ file, block int }

type verb uint8

const (
	writes  verb = iota // answered: the value is there
	perhaps             // a write that was not answered: it took place or not
	reads
	syncs // answered: what the register holds is durable
	crash // the register holds its last durable value, or one that was written since
)

func (v verb) String() string { return [...]string{"write", "write?", "read", "sync", "crash"}[v] }

// event is an operation on one register.
type event struct {
	register
	verb  verb
	value uint64
}

// held is what a register holds, and what it may hold after a crash.
type held struct {
	now    uint64
	keeps  string // the values of survivors, so that states can be compared
	values []uint64
}

func hold(now uint64, survivors ...uint64) held {
	slices.Sort(survivors)
	survivors = slices.Compact(survivors)
	return held{now, fmt.Sprint(survivors), survivors}
}

// durableRegister says what a register may do: reads are linearizable, and a crash keeps what was
// synced, or something later.
var durableRegister = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		at := map[register]int{}
		for _, op := range history {
			r := op.Input.(event).register
			i, ok := at[r]
			if !ok {
				i, at[r] = len(parts), len(parts)
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], op)
		}
		return parts
	},
	Init: func() []any { return []any{hold(0, 0)} },
	Step: func(state, input, _ any) []any {
		s, e := state.(held), input.(event)
		written := hold(e.value, append(slices.Clone(s.values), e.value)...)
		switch e.verb {
		case writes:
			return []any{written}
		case perhaps:
			return []any{s, written}
		case syncs:
			return []any{hold(s.now, s.now)}
		case crash:
			var after []any
			for _, v := range s.values {
				after = append(after, hold(v, v))
			}
			return after
		}
		if e.value != s.now {
			return nil
		}
		return []any{s}
	},
	Equal: func(a, b any) bool { return a.(held).now == b.(held).now && a.(held).keeps == b.(held).keeps },
	Hash: func(state any) uint64 {
		return maphash.Comparable(hashSeed, [2]any{state.(held).now, state.(held).keeps})
	},
}

var hashSeed = maphash.MakeSeed()

// checkHistory returns what is wrong with a history, "" if nothing is.
func checkHistory(history []porcupine.Operation, patience time.Duration) string {
	model := durableRegister.ToModel()
	for _, part := range durableRegister.Partition(history) {
		switch porcupine.CheckOperationsTimeout(model, part, patience) {
		case porcupine.Ok:
			continue
		case porcupine.Unknown:
			return fmt.Sprintf("%v: no verdict on %d operations within %v", part[0].Input.(event).register, len(part), patience)
		}
		// The shortest beginning that is wrong ends with the operation that gives it away.
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
		n := 1
		for n < len(part) && porcupine.CheckOperationsTimeout(model, part[:n], patience) == porcupine.Ok {
			n++
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%v cannot have done this:\n", part[0].Input.(event).register)
		for _, op := range part[max(0, n-30):n] {
			e := op.Input.(event)
			fmt.Fprintf(&b, "%12d to %12d client %d: %v %d\n", op.Call, op.Return, op.ClientId, e.verb, e.value)
		}
		return b.String()
	}
	return ""
}

// TestHistoriesAreJudged holds the judge of histories against some that are right and some that are
// not.
func TestHistoriesAreJudged(t *testing.T) {
	type op struct {
		verb       verb
		value      uint64
		call, done int64
	}
	for _, c := range []struct {
		name  string
		legal bool
		ops   []op
	}{
		{"nothing was written", true, []op{{reads, 0, 1, 2}, {crash, 0, 3, 3}, {reads, 0, 4, 5}}},
		{"a value from nowhere", false, []op{{reads, 7, 1, 2}}},
		{"a read sees the write before it", true, []op{{writes, 1, 1, 2}, {reads, 1, 3, 4}}},
		{"a stale read", false, []op{{writes, 1, 1, 2}, {writes, 2, 3, 4}, {reads, 1, 5, 6}}},
		{"a read beside a write sees the old", true, []op{{writes, 1, 1, 2}, {writes, 2, 3, 6}, {reads, 1, 4, 5}}},
		{"or the new, but not the old afterwards", false, []op{{writes, 1, 1, 2}, {writes, 2, 3, 10}, {reads, 2, 4, 5}, {reads, 1, 6, 7}}},
		{"a crash loses what was not synced", true, []op{{writes, 1, 1, 2}, {crash, 0, 3, 3}, {reads, 0, 4, 5}}},
		{"or does not", true, []op{{writes, 1, 1, 2}, {crash, 0, 3, 3}, {reads, 1, 4, 5}}},
		{"but not now this and now that", false, []op{{writes, 1, 1, 2}, {crash, 0, 3, 3}, {reads, 0, 4, 5}, {reads, 1, 6, 7}}},
		{"what was found is durable", false, []op{{writes, 1, 1, 2}, {crash, 0, 3, 3}, {reads, 1, 4, 5}, {crash, 0, 6, 6}, {reads, 0, 7, 8}}},
		{"a synced write is there", true, []op{{writes, 1, 1, 2}, {syncs, 0, 3, 4}, {crash, 0, 5, 5}, {reads, 1, 6, 7}}},
		{"a lost synced write", false, []op{{writes, 1, 1, 2}, {syncs, 0, 3, 4}, {crash, 0, 5, 5}, {reads, 0, 6, 7}}},
		{"one that came back from before the sync", false, []op{
			{writes, 1, 1, 2}, {writes, 2, 3, 4}, {syncs, 0, 5, 6}, {writes, 3, 7, 8}, {crash, 0, 9, 9}, {reads, 1, 10, 11}}},
		{"any later one may be there", true, []op{
			{writes, 1, 1, 2}, {syncs, 0, 3, 4}, {writes, 2, 5, 6}, {writes, 3, 7, 8}, {crash, 0, 9, 9}, {reads, 2, 10, 11}}},
		{"a write beside the sync may be lost", true, []op{{writes, 1, 2, 5}, {syncs, 0, 1, 6}, {crash, 0, 7, 7}, {reads, 0, 8, 9}}},
		{"not one that was over when the sync began", false, []op{{writes, 1, 1, 2}, {syncs, 0, 3, 9}, {crash, 0, 10, 10}, {reads, 0, 11, 12}}},
		{"an unanswered write took place", true, []op{{perhaps, 1, 1, 2}, {reads, 1, 3, 4}}},
		{"or did not", true, []op{{perhaps, 1, 1, 2}, {reads, 0, 3, 4}, {crash, 0, 5, 5}, {reads, 0, 6, 7}}},
		{"but does not after the crash", false, []op{{perhaps, 1, 1, 2}, {crash, 0, 3, 3}, {reads, 0, 4, 5}, {reads, 1, 6, 7}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var history []porcupine.Operation
			for i, o := range c.ops {
				// Another register that does nothing wrong must not matter.
				history = append(history,
					porcupine.Operation{ClientId: i, Input: event{register{1, 2}, o.verb, o.value}, Call: o.call, Return: o.done},
					porcupine.Operation{ClientId: i, Input: event{register{1, 1}, writes, uint64(100 + i)}, Call: o.call, Return: o.done})
			}
			verdict := checkHistory(history, time.Minute)
			if (verdict == "") != c.legal {
				t.Errorf("legal is %t, the verdict is %q", c.legal, verdict)
			}
			if !c.legal && !strings.Contains(verdict, "{1 2} cannot have done this") {
				t.Errorf("the verdict is %q", verdict)
			}
		})
	}
}
