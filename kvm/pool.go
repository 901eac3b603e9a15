package kvm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/provider"
)

// maxInFlight is how many calls one connection carries at a time. libvirtd
// serves five for each client and then stops reading.
const maxInFlight = 4

// The purposes of connections. Agent calls wait for a guest, and uploads fill
// their connection, so neither shares one with the others.
const (
	purposeControl = "control"
	purposeAgent   = "agent"
	purposeUpload  = "upload"
	purposeEvents  = "events"
)

// connector makes one connection to libvirt. It calls lost when the connection
// ended by itself; close ends it without waiting.
type connector func(ctx context.Context, way transport, lost func(error)) (api libvirtAPI, close func(), err error)

// hostConn is the way to one host: its transport and its connections.
type hostConn struct {
	name      string
	transport transport
	connect   connector // for calls
	stream    connector // for volumes' content
	timeouts  Timeouts
	log       logr.Logger // has provider and host
	trace     *Trace
	lifetime  context.Context
	backoff   backoff

	// lanes is over how many connections an image is sent.
	lanes func(roundTrip time.Duration) int

	control, agent lane
	// running are the goroutines to wait for at the end.
	running goroutines
}

// lane is one shared connection.
type lane struct {
	shared[*session]
	had atomic.Bool
}

func newHostConn(lifetime context.Context, name string, t transport, timeouts Timeouts, trace *Trace, log logr.Logger) *hostConn {
	h := &hostConn{name: name, transport: t, timeouts: timeouts, trace: trace, log: log, lifetime: lifetime}
	h.connect, h.stream, h.lanes = h.dialLibvirt, h.dialStream, lanesFor
	h.initLane(&h.control, purposeControl)
	h.initLane(&h.agent, purposeAgent)
	return h
}

func (h *hostConn) initLane(l *lane, purpose string) {
	l.shared = shared[*session]{
		lifetime: h.lifetime, timeout: time.Duration(h.timeouts.Dial), alive: (*session).alive,
		create: func(ctx context.Context) (*session, error) {
			if l.had.Swap(false) {
				h.log.V(1).Info("libvirt connection lost, redialing", "address", h.transport.address())
			}
			s, err := h.open(ctx, purpose, h.transport)
			l.had.Store(err == nil)
			return s, err
		},
	}
}

// open makes one connection and tells of it. Soon after a failure it makes none.
func (h *hostConn) open(ctx context.Context, purpose string, way transport) (*session, error) {
	stamp := h.transport.stamp()
	if err := h.backoff.check(time.Now(), stamp); err != nil {
		return nil, err
	}
	end := h.trace.dial(ctx, DialInfo{Host: h.name, Address: h.transport.address(), Purpose: purpose})
	start := time.Now()
	s, err := h.newSession(ctx, purpose, way)
	end(err)
	if err == nil || isDialFailure(ctx, err) {
		h.backoff.note(time.Now(), stamp, time.Since(start), err)
	}
	if err != nil {
		h.log.V(1).Info("libvirt host dial failed", "address", h.transport.address(), "duration", elapsed(start), "error", err.Error())
		return nil, err
	}
	h.log.V(1).Info("libvirt host connected", "address", h.transport.address(), "duration", elapsed(start))
	return s, nil
}

func (h *hostConn) newSession(ctx context.Context, purpose string, way transport) (*session, error) {
	s := &session{slots: make(chan struct{}, maxInFlight), lost: make(chan struct{}), log: h.log}
	connect := h.connect
	if purpose == purposeUpload {
		connect = h.stream
	}
	api, closeConn, err := connect(ctx, way, func(err error) { s.drop("connection lost", err) })
	if err != nil {
		return nil, err
	}
	s.api = api
	s.setClose(closeConn)
	return s, nil
}

// openUpload makes a connection for the content of volumes, which its caller
// closes.
func (h *hostConn) openUpload(ctx context.Context) (*session, error) {
	return h.openOwn(ctx, purposeUpload, h.transport)
}

// openOwn makes a connection that its caller closes.
func (h *hostConn) openOwn(ctx context.Context, purpose string, way transport) (*session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(h.timeouts.Dial), errDialTimeout)
	defer cancel()
	s, err := h.open(ctx, purpose, way)
	if err != nil && errors.Is(context.Cause(ctx), errDialTimeout) {
		return nil, provider.Transientf(codeNoAnswer, "no connection for the %s: %w", purpose, errDialTimeout)
	}
	return s, err
}

var errDialTimeout = errors.New("the host did not answer in time")

// close ends the connections; calls that run fail at once.
func (h *hostConn) close() {
	for _, l := range []*lane{&h.control, &h.agent} {
		l.settle()
		if s, ok := l.current(); ok {
			s.drop("", nil)
		}
	}
	h.transport.close()
	// go-libvirt has ways to wait for ever; Close shall not.
	h.running.Wait(cleanupTime)
}

// dialLibvirt is the connector of real hosts. A *libvirt.Libvirt is used for
// one connection only: its state after an end is not to be relied on.
func (h *hostConn) dialLibvirt(ctx context.Context, way transport, lost func(error)) (libvirtAPI, func(), error) {
	conn, err := way.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	closeConn := h.closer(conn)
	lv := libvirt.NewWithDialer(dialers.NewAlreadyConnected(&onceClosed{Conn: newFrameConn(conn, lost), close: closeConn}))
	err = h.introduce(ctx, closeConn, func() error { return lv.ConnectToURI(libvirt.QEMUSystem) })
	return lv, closeConn, err
}

// closer closes a connection without waiting: closing an SSH channel writes to
// its peer, which may no longer read.
func (h *hostConn) closer(conn net.Conn) func() {
	return sync.OnceFunc(func() { h.running.Go(func() { _ = conn.Close() }) })
}

// introduce runs the first exchange on a connection, which it closes on an
// error.
func (h *hostConn) introduce(ctx context.Context, closeConn func(), exchange func() error) error {
	done := make(chan error, 1)
	h.running.Go(func() { done <- exchange() })
	select {
	case err := <-done:
		if err != nil {
			closeConn()
			err = openingError(err)
		}
		return err
	case <-ctx.Done():
		closeConn()
		return provider.Transientf(codeNoAnswer, "libvirtd does not answer: %w", ctx.Err())
	}
}

// onceClosed keeps go-libvirt from closing a connection a second time, or from
// waiting for it.
type onceClosed struct {
	net.Conn
	close func()
}

func (c *onceClosed) Close() error { c.close(); return nil }

func openingError(err error) error {
	if _, ok := libvirtCode(err); ok {
		if isLibvirt(err, libvirt.ErrAuthFailed) || isLibvirt(err, libvirt.ErrAuthUnavailable) || isLibvirt(err, libvirt.ErrAuthCancelled) {
			return fmt.Errorf("libvirtd refuses the user, add it to the group libvirt: %w", err)
		}
		return err
	}
	return provider.Transientf(codeConnectionLost, "libvirtd ended the connection while it was opened: %w", err)
}

// session is one connection to libvirt. It carries at most maxInFlight calls.
type session struct {
	api   libvirtAPI
	slots chan struct{}
	lost  chan struct{} // closed when the connection is of no more use
	log   logr.Logger

	mu        sync.Mutex
	dropped   bool
	cause     error
	closeConn func()
}

func (s *session) alive() bool {
	select {
	case <-s.lost:
		return false
	default:
		return true
	}
}

// setClose hands over the connection, which may have been lost already.
func (s *session) setClose(closeConn func()) {
	s.mu.Lock()
	s.closeConn = closeConn
	dropped := s.dropped
	s.mu.Unlock()
	if dropped {
		closeConn()
	}
}

// drop ends the connection, once. Without a reason it is a wanted end, of which
// nothing is told.
func (s *session) drop(reason string, err error) {
	s.mu.Lock()
	if s.dropped {
		s.mu.Unlock()
		return
	}
	s.dropped, s.cause = true, err
	closeConn := s.closeConn
	close(s.lost)
	s.mu.Unlock()
	if reason != "" {
		s.log.V(1).Info("libvirt connection dropped", "reason", reason, "error", fmt.Sprint(err))
	}
	if closeConn != nil {
		closeConn()
	}
}

// errConnectionLost marks calls whose connection ended before the answer.
var errConnectionLost = errors.New("the connection to libvirt was lost")

func (s *session) lostError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		return provider.Transientf(codeConnectionLost, "%w", errConnectionLost)
	}
	return provider.Transientf(codeConnectionLost, "%w: %w", errConnectionLost, s.cause)
}

// acquire takes one of the places for calls.
func (s *session) acquire(ctx context.Context) error {
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.lost:
		return s.lostError()
	}
}

func (s *session) release() { <-s.slots }
