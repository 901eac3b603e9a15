package redislease

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/lease"
)

// enter registers a waiter to be woken, and listens from the first on.
func (s *Store) enter(id string) <-chan struct{} {
	woken := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[id] = woken
	s.listenLocked()
	return woken
}

func (s *Store) exit(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, id)
}

// listenLocked subscribes once for all waiters and readers of this store. What gets
// lost is found by polling.
func (s *Store) listenLocked() {
	if s.listening || s.closed {
		return
	}
	s.listening = true
	s.tasks.Go(func() {
		faults := s.base + "reports"
		channel := s.cfg.Client.Subscribe(s.ctx, s.base+"wake:"+s.name, faults)
		defer func() { _ = channel.Close() }()
		s.follow(channel.ChannelWithSubscriptions(), faults)
	})
}

// follow hears messages until the store is closed or, where they end, its client.
func (s *Store) follow(messages <-chan any, faults string) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			s.hear(m, faults)
		}
	}
}

// hear wakes whom a message is for, and all after a subscription: what came before
// it was not heard.
func (s *Store) hear(m any, faults string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := m.(type) {
	case *redis.Message:
		if m.Channel == faults {
			s.wakeReadersLocked()
		} else if woken := s.waiting[m.Payload]; woken != nil {
			wake(woken)
		}
	case *redis.Subscription:
		for _, woken := range s.waiting {
			wake(woken)
		}
		s.wakeReadersLocked()
	}
}

func (s *Store) wakeReadersLocked() {
	for woken := range s.readers {
		wake(woken)
	}
}

func wake(woken chan<- struct{}) {
	select {
	case woken <- struct{}{}:
	default:
	}
}

// reportBuffer is how far a reader of Reports may fall behind.
const reportBuffer = 256

// Reports implements [lease.Inventory]. Reports come from the holders of all stores
// of the fleet. Those of the last minutes survive a connection that breaks.
func (s *Store) Reports(ctx context.Context) <-chan lease.Report {
	reports := make(chan lease.Report, reportBuffer)
	last, known := s.lastReport(ctx)
	woken := make(chan struct{}, 1)
	s.mu.Lock()
	s.readers[woken] = struct{}{}
	s.listenLocked()
	s.mu.Unlock()
	if !s.begin(func() {
		defer close(reports)
		defer s.unread(woken)
		for s.pause(ctx, woken, 0) {
			if !known {
				last, known = s.lastReport(ctx)
				continue
			}
			last = s.readReports(ctx, last, reports)
		}
	}) {
		close(reports)
	}
	return reports
}

func (s *Store) unread(woken chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, woken)
}

// lastReport is the ID of the newest report so far.
func (s *Store) lastReport(ctx context.Context) (id string, known bool) {
	newest, err := s.stream(ctx, func(ctx context.Context) ([]redis.XMessage, error) {
		return s.cfg.Client.XRevRangeN(ctx, s.base+"reports", "+", "-", 1).Result()
	})
	if err != nil {
		return "", false
	}
	if len(newest) == 0 {
		return "0-0", true
	}
	return newest[0].ID, true
}

// readReports passes on what is newer, and returns where to go on.
func (s *Store) readReports(ctx context.Context, last string, to chan<- lease.Report) string {
	for {
		page, err := s.stream(ctx, func(ctx context.Context) ([]redis.XMessage, error) {
			return s.cfg.Client.XRangeN(ctx, s.base+"reports", "("+last, "+", reportBuffer).Result()
		})
		if err != nil || len(page) == 0 {
			return last
		}
		for _, m := range page {
			last = m.ID
			if r, ok := reportOf(m); ok {
				s.deliver(r, to)
			}
		}
	}
}

func (s *Store) deliver(r lease.Report, to chan<- lease.Report) {
	select {
	case to <- r:
	default:
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.CallTimeout)
		defer cancel()
		_ = s.cfg.Client.HIncrBy(ctx, s.base+"meta", "n:dropped", 1).Err()
	}
}

// stream makes a call that returns when ctx or the store ends.
func (s *Store) stream(ctx context.Context, call func(context.Context) ([]redis.XMessage, error)) ([]redis.XMessage, error) {
	type answer struct {
		messages []redis.XMessage
		err      error
	}
	answered := make(chan answer, 1)
	go func() {
		calling, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CallTimeout)
		defer cancel()
		messages, err := call(calling)
		answered <- answer{messages, err}
	}()
	select {
	case a := <-answered:
		return a.messages, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, lease.ErrClosed
	}
}

// reportOf reads a report, if it is one.
func reportOf(m redis.XMessage) (r lease.Report, ok bool) {
	text := func(name string) string { t, _ := m.Values[name].(string); return t }
	generation, err := strconv.ParseUint(text("gen"), 10, 64)
	r = lease.Report{EndpointID: text("id"), Generation: generation, Holder: text("holder")}
	if err == nil {
		err = json.Unmarshal([]byte(text("outcome")), &r.Outcome)
	}
	return r, err == nil && r.EndpointID != "" && r.Outcome.Validate() == nil
}
