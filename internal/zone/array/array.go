package array

import (
	"fmt"
	"sync"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Place is one zone of one member.
type Place struct {
	Device int // member number: the device number in the store (docs/format.md 1.2)
	Zone   int // zone number on that device
	// Stale says that the zone's content is not that of the set: it is not read and not written
	// until a Reset of the set, or SetPlaces, makes it good.
	Stale bool
}

// Array is a zone.Device over the zones of its members. All methods may be called at any time from
// several goroutines, but for what SetPlaces and RemoveMember say.
//
// A set of one place passes calls straight through to the member. The calls that change a sequential
// set of several are taken one after another, and go to its places at the same time, as writes at the
// write pointer, so that offsets agree. Reads wait for no turn, and neither does what is written to a
// conventional set: its caller keeps writes of the same blocks apart. A set's turn and a member's
// flushing are one-token channels; no lock is held over a call of a member or over a wait.
type Array struct {
	mu      sync.RWMutex // guards what is below, and sets and members as they say
	members []*member    // in ascending order of number
	sets    []*set
	geo     zone.Geometry
	share   int // most places of one set on one member; at least 1
	removed zone.Stats
	lost    error // a member left with the last copy of something: the next Flush answers it
	closed  bool
	onFail  func(number int, err error)
	onStale func(zone int)
	news    []news        // what they have not heard yet, the oldest first
	telling chan struct{} // holds a token while they are told
}

var _ zone.Discarder = (*Array)(nil)

// set is a zone of the array. All fields are guarded by Array.mu.
type set struct {
	turn   chan struct{} // holds a token while a call changes the set; nil until it is needed
	places []place
	known  bool  // wp and torn are up to date, but for what conditions say
	torn   bool  // the places may differ in length: takes no writes while two can be read
	wp     int64 // where the next append goes
}

type place struct {
	Place
	m *member // nil if there is no member of that number
	// touched is the member's count of flushes when the place was last written or reset; 0: it
	// was not.
	touched uint64
}

// target is a place that a call goes to. Of the member only what does not change is used without
// the lock.
type target struct {
	*member
	Place
	copy int // index in the set's places
}

// New makes zone i of the array the set sets[i], of any number of places: without any, or with none
// of a member that is there, it is Offline. It reads the members' zone reports to find torn sets.
//
// Members of different zone sizes or dialects, sets that mix conventional and sequential zones,
// places that do not exist or are in two sets, and two copies on a device that cannot have two zones
// active are Precondition errors that say so in a sentence; a report that fails is the member's
// error. members and sets are the caller's again on return.
func New(members []Member, sets [][]Place) (*Array, error) {
	const op = "array.New"
	a := &Array{share: 1, telling: make(chan struct{}, 1)}
	for _, m := range members {
		if a.memberLocked(m.Number) != nil {
			return nil, mismatch(op, fmt.Sprintf("device %d is given twice", m.Number))
		}
		if err := a.addLocked(op, m); err != nil {
			return nil, err
		}
	}
	if err := a.growLocked(op, sets); err != nil {
		return nil, err
	}
	if err := a.surveyAll(); err != nil {
		return nil, err
	}
	return a, nil
}

// surveyAll makes every set known, with one report a member.
func (a *Array) surveyAll() error {
	all := make([]int, len(a.sets))
	views := make([][]target, len(a.sets))
	for i, s := range a.sets {
		all[i], views[i] = i, s.targetsLocked(false)
	}
	found, err := reports(views)
	if err != nil {
		return err
	}
	for i, s := range a.sets {
		s.known = true
		s.wp, s.torn = compare(found[i])
	}
	return nil
}

// admitLocked refuses calls after Close and zones that do not exist.
func (a *Array) admitLocked(op string, z int) error {
	if a.closed {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "", zone.ErrClosed)
	}
	if z < 0 || z >= len(a.sets) {
		return noSuchZone(op, z, len(a.sets))
	}
	return nil
}

// set returns the set of a zone. If the set is one place that can be used, only says which: calls
// go straight there. With several places only.member is nil.
func (a *Array) set(op string, z int) (s *set, only target, err error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if err := a.admitLocked(op, z); err != nil {
		return nil, only, err
	}
	s = a.sets[z]
	if len(s.places) == 1 && s.places[0].usable() {
		only = s.targetLocked(0)
	}
	return s, only, nil
}

// usable reports whether the place can be read and written.
func (p *place) usable() bool { return p.present() && !p.Stale }

// present reports whether the member of the place is there.
func (p *place) present() bool { return p.m != nil && p.m.dev != nil && !p.m.out.Load() }

func (s *set) targetLocked(i int) target {
	return target{member: s.places[i].m, Place: s.places[i].Place, copy: i}
}

// targetsLocked are the places of the set that calls go to; with stale also those that are Stale on
// a member that is there.
func (s *set) targetsLocked(stale bool) []target {
	ts := make([]target, 0, len(s.places))
	for i := range s.places {
		if p := &s.places[i]; p.usable() || stale && p.present() {
			ts = append(ts, s.targetLocked(i))
		}
	}
	return ts
}

// find returns the set's place that t was, nil if it is no longer one of them.
func (s *set) findLocked(t target) *place {
	for i := range s.places {
		if p := &s.places[i]; p.Device == t.Device && p.Zone == t.Zone {
			return p
		}
	}
	return nil
}

// enter waits for the set's turn; leave gives it up.
func (a *Array) enter(s *set) {
	a.mu.RLock()
	turn := s.turn
	a.mu.RUnlock()
	if turn == nil {
		a.mu.Lock()
		if s.turn == nil {
			s.turn = make(chan struct{}, 1)
		}
		turn = s.turn
		a.mu.Unlock()
	}
	turn <- struct{}{}
}

// leave gives up the turn that enter took.
func (a *Array) leave(s *set) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	<-s.turn
}

// each runs f for every target, at the same time, and returns when all are done. The last runs on
// the caller's goroutine.
func each(ts []target, f func(i int, t target) error) []error {
	errs := make([]error, len(ts))
	var wg sync.WaitGroup
	for i, t := range ts[:len(ts)-1] {
		wg.Go(func() { errs[i] = f(i, t) })
	}
	last := len(ts) - 1
	errs[last] = f(last, ts[last])
	wg.Wait()
	return errs
}

func object(z int) string { return fmt.Sprintf("zone %d", z) }

func refuse(op string, z int, cause error) error {
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, object(z), cause)
}

func noSuchZone(op string, z, zones int) error {
	err := errdefs.Invalid(op, "zone", fmt.Sprintf("the array has zones 0..%d", zones-1))
	err.Object = object(z)
	return err
}

func mismatch(op, msg string) error {
	return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, op, "", msg)
}
