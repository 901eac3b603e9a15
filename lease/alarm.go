package lease

import (
	"container/heap"
	"time"
)

// alarm wakes the store at a time, about one thing: a lease that expires, a
// slot that has cooled down, for all or for a domain, or an ended lease to be
// forgotten.
type alarm struct {
	at     time.Time
	index  int // in the heap, counted from one; zero while not set
	lease  *held
	slot   *slot
	domain string
	forget string
}

// alarms is a heap of alarms with one timer for the earliest. The store's lock
// guards it; fire is called without.
type alarms struct {
	queue   alarmQueue
	timer   *time.Timer
	timerAt time.Time
	fire    func()
}

// set moves the alarm to that time.
func (a *alarms) set(al *alarm, at time.Time) {
	al.at = at
	if al.index > 0 {
		heap.Fix(&a.queue, al.index-1)
	} else {
		heap.Push(&a.queue, al)
	}
	a.arm()
}

func (a *alarms) clear(al *alarm) {
	if al.index > 0 {
		heap.Remove(&a.queue, al.index-1)
	}
}

// due takes out the earliest alarm if its time has come.
func (a *alarms) due(now time.Time) *alarm {
	if len(a.queue) == 0 || a.queue[0].at.After(now) {
		return nil
	}
	return heap.Pop(&a.queue).(*alarm)
}

// arm sets the timer for the earliest alarm. One that rings too early, because
// its alarm was cleared, does no harm.
func (a *alarms) arm() {
	if len(a.queue) == 0 {
		return
	}
	at := a.queue[0].at
	switch {
	case a.timer == nil:
		a.timer = time.AfterFunc(time.Until(at), a.fire)
	case a.timerAt.IsZero() || at.Before(a.timerAt):
		a.timer.Reset(time.Until(at))
	default:
		return
	}
	a.timerAt = at
}

func (a *alarms) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// alarmQueue implements heap.Interface.
type alarmQueue []*alarm

func (q alarmQueue) Len() int           { return len(q) }
func (q alarmQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q alarmQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i+1, j+1
}

func (q *alarmQueue) Push(x any) {
	al := x.(*alarm)
	*q = append(*q, al)
	al.index = len(*q)
}

func (q *alarmQueue) Pop() any {
	old := *q
	last := len(old) - 1
	al := old[last]
	old[last] = nil
	*q = old[:last]
	al.index = 0
	return al
}

// onAlarm runs when the timer rings.
func (m *Memory) onAlarm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	now := time.Now()
	for al := m.alarms.due(now); al != nil; al = m.alarms.due(now) {
		m.handleLocked(al, now)
	}
	m.alarms.timerAt = time.Time{}
	m.alarms.arm()
}

func (m *Memory) handleLocked(al *alarm, now time.Time) {
	switch {
	case al.lease != nil:
		m.expireLocked(al.lease)
	case al.forget != "":
		delete(m.ended, al.forget)
	case al.domain != "":
		m.unblockLocked(al.slot, al.domain, now)
	default:
		m.settleLocked(al.slot, now)
	}
}

// unblockLocked runs when a domain's cooldown ends, and once more when the
// memory of it does.
func (m *Memory) unblockLocked(s *slot, domain string, now time.Time) {
	b, ok := s.blocks[domain]
	if !ok {
		return
	}
	forgetAt := b.until.Add(m.cfg.MaxDomainCooldown)
	if !forgetAt.After(now) {
		delete(s.blocks, domain)
		return
	}
	m.alarms.set(&b.alarm, forgetAt)
	m.offerLocked(s)
}
