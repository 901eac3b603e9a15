// Package alarm keeps many alarms on one timer.
package alarm

import (
	"container/heap"
	"time"
)

// Alarm rings at a time, about something. Its zero value is not set. It belongs
// to one [Clock] for good.
type Alarm[T any] struct {
	// About is the owner's.
	About T

	at    time.Time
	index int // in the queue, counted from one; zero while not set
}

// At is when the alarm rings, or rang last.
func (a *Alarm[T]) At() time.Time { return a.at }

// IsSet tells whether it is still to ring.
func (a *Alarm[T]) IsSet() bool { return a.index > 0 }

// Clock rings alarms. The owner's lock guards all its methods. Fire is called
// without that lock when an alarm may be due; it shall take the lock, handle
// what [Clock.Due] returns until that is nil, and call [Clock.Rearm].
type Clock[T any] struct {
	Fire func()

	queue   queue[T]
	timer   *time.Timer
	timerAt time.Time
}

// Set moves the alarm to that time.
func (c *Clock[T]) Set(a *Alarm[T], at time.Time) {
	a.at = at
	if a.IsSet() {
		heap.Fix(&c.queue, a.index-1)
	} else {
		heap.Push(&c.queue, a)
	}
	c.arm()
}

// Clear takes the alarm back.
func (c *Clock[T]) Clear(a *Alarm[T]) {
	if a.IsSet() {
		heap.Remove(&c.queue, a.index-1)
	}
}

// Due takes out the earliest alarm if its time has come, or returns nil.
func (c *Clock[T]) Due(now time.Time) *Alarm[T] {
	if len(c.queue) == 0 || c.queue[0].at.After(now) {
		return nil
	}
	return heap.Pop(&c.queue).(*Alarm[T])
}

// Rearm sets the timer anew after it has fired.
func (c *Clock[T]) Rearm() {
	c.timerAt = time.Time{}
	c.arm()
}

// Stop ends the timer. Fire may be running.
func (c *Clock[T]) Stop() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// arm sets the timer for the earliest alarm. One that rings too early, because
// its alarm was taken back, does no harm.
func (c *Clock[T]) arm() {
	if len(c.queue) == 0 {
		return
	}
	at := c.queue[0].at
	switch {
	case c.timer == nil:
		c.timer = time.AfterFunc(time.Until(at), c.Fire)
	case c.timerAt.IsZero() || at.Before(c.timerAt):
		c.timer.Reset(time.Until(at))
	default:
		return
	}
	c.timerAt = at
}

// queue implements heap.Interface.
type queue[T any] []*Alarm[T]

func (q queue[T]) Len() int           { return len(q) }
func (q queue[T]) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q queue[T]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i+1, j+1
}

func (q *queue[T]) Push(x any) {
	a := x.(*Alarm[T])
	*q = append(*q, a)
	a.index = len(*q)
}

func (q *queue[T]) Pop() any {
	last := len(*q) - 1
	a := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	a.index = 0
	return a
}
