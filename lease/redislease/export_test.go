package redislease

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// SetClock makes the scripts take the time from there, not from the server.
func (s *Store) SetClock(micros func() int64) {
	s.lua, s.clock = ofTests, micros
}

const testClock = "local now = tonumber(string.match(ARGV[3], '%d+$'))\n"

var (
	ofTests = compile(testClock, source("quick"))
	long    = compile(testClock, source("quick")+"ordinary = false\n")
)

// GoTheLongWay makes the scripts do without their short way.
func (s *Store) GoTheLongWay() { s.lua = long }

// Deafen keeps the store from hearing notifications: what is left is polling.
func (s *Store) Deafen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listening = true
}

// AcquireAs is TryAcquire with an ID that may have been used before, as by a call that
// is made again.
func (s *Store) AcquireAs(ctx context.Context, id string, req lease.Request) (*lease.Lease, error) {
	w, err := newWant(req)
	if err != nil {
		return nil, err
	}
	w.id = id
	o, err := s.ask(ctx, w, false)
	switch {
	case err != nil:
		return nil, err
	case o.lease == nil:
		return nil, o.why
	}
	return o.lease, nil
}

// AskAfterLeaving gives an acquire up before it asks, and tells whether it got a lease.
func (s *Store) AskAfterLeaving(ctx context.Context, req lease.Request) bool {
	w, err := newWant(req)
	if err != nil {
		panic(err)
	}
	if _, err := s.leave(ctx, w, ""); err != nil {
		panic(err)
	}
	o, err := s.ask(ctx, w, true)
	return err != nil || o.lease != nil
}

// Queued is how many calls wait for a round trip.
func (s *Store) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs)
}

// Follow hears those messages.
func (s *Store) Follow(messages <-chan any) { s.follow(messages, "") }

// Decode reads what stands for an endpoint in Redis.
func Decode(text string) (endpoint.Endpoint, error) { return decode(text) }

// Encode writes what Decode reads.
func Encode(e endpoint.Endpoint) string { return addressText(e.EgressIP) + "\n" + encode(e) }

// ReportOf reads a report of the stream.
func ReportOf(values map[string]any) (lease.Report, bool) {
	return reportOf(redis.XMessage{Values: values})
}
