package alarm_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/egressfleet/egress/internal/alarm"
)

// ringer writes down what rings, and when.
type ringer struct {
	mu    sync.Mutex
	clock alarm.Clock[string]
	rang  []string
	began time.Time
}

func newRinger() *ringer {
	r := &ringer{began: time.Now()}
	r.clock.Fire = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for a := r.clock.Due(time.Now()); a != nil; a = r.clock.Due(time.Now()) {
			r.rang = append(r.rang, a.About+" "+time.Since(r.began).String())
		}
		r.clock.Rearm()
	}
	return r
}

func TestAlarmsRingInTurnAndWhenMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRinger()
		alarms := map[string]*alarm.Alarm[string]{}
		r.mu.Lock()
		for about, in := range map[string]time.Duration{"a": 4, "b": 3, "c": 2, "d": 1, "e": 5} {
			alarms[about] = &alarm.Alarm[string]{About: about}
			r.clock.Set(alarms[about], r.began.Add(in*time.Second))
		}
		r.clock.Clear(alarms["d"])
		r.clock.Clear(alarms["d"])
		r.clock.Set(alarms["e"], r.began.Add(500*time.Millisecond))
		r.clock.Set(alarms["b"], r.began.Add(time.Minute))
		r.mu.Unlock()
		time.Sleep(time.Hour)
		r.mu.Lock()
		defer r.mu.Unlock()
		assert.Equal(t, []string{"e 500ms", "c 2s", "a 4s", "b 1m0s"}, r.rang)
		assert.False(t, alarms["a"].IsSet())
		assert.Equal(t, r.began.Add(4*time.Second), alarms["a"].At())
	})
}

func TestStoppedClockIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRinger()
		r.clock.Stop()
		r.clock.Set(&alarm.Alarm[string]{About: "a"}, r.began.Add(time.Second))
		r.clock.Stop()
		time.Sleep(time.Minute)
		r.mu.Lock()
		defer r.mu.Unlock()
		assert.Empty(t, r.rang)
	})
}
