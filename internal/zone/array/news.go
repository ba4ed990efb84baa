package array

// news is what happened and has not been told: a place of a zone is Stale, or a member was taken out.
type news struct {
	zone   int // -1: it is of a member
	number int
	err    error
}

// OnFail makes f be called once for each member that is taken out, with no lock held. OnStale comes
// first for the places that are Stale because of it. f may ask (Places, Members, Report), and may not
// write, flush, command or Fail. It replaces the one before; nil is none.
func (a *Array) OnFail(f func(number int, err error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onFail = f
}

// OnStale makes f be called when a place of a zone (Places) has become Stale otherwise than by
// SetPlaces. Appends, writes and resets that the place missed, and flushes that it was out for, return
// after f has, whoever found out: what the owner records of it in f is not later than what it records of
// them. Otherwise as OnFail.
func (a *Array) OnStale(f func(zone int)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onStale = f
}

// missedLocked queues that a place of the zone is Stale.
func (a *Array) missedLocked(z int) {
	a.news = append(a.news, news{zone: z})
}

// tell passes on all news there is, also that of calls still under way, and waits for who is at it.
// News stays queued until it has been heard, so that nothing queued is nothing to wait for.
func (a *Array) tell() {
	a.mu.RLock()
	none := len(a.news) == 0
	a.mu.RUnlock()
	if none {
		return
	}
	a.telling <- struct{}{}
	defer func() { <-a.telling }()
	for {
		a.mu.RLock()
		if len(a.news) == 0 {
			a.mu.RUnlock()
			return
		}
		n, failed, stale := a.news[0], a.onFail, a.onStale
		a.mu.RUnlock()
		switch {
		case n.zone < 0 && failed != nil:
			failed(n.number, n.err)
		case n.zone >= 0 && stale != nil:
			stale(n.zone)
		}
		a.mu.Lock()
		a.news = a.news[1:]
		a.mu.Unlock()
	}
}
