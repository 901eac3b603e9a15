package endpoint

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http/httptrace"
	"sync"
)

// Stage is how far a request through a proxy got. Stages are in order; each is
// entered once the one before it succeeded, and some are left out: ProxyTLS
// without an https proxy, Connect and TargetTLS for http:// URLs through an
// http proxy, all up to TargetTLS on a connection that is used again.
type Stage uint8

// The stages. Up to StageConnect a failure is the proxy's.
const (
	// StageDial connects to the proxy.
	StageDial Stage = iota + 1
	// StageProxyTLS is the TLS handshake with an https proxy.
	StageProxyTLS
	// StageConnect asks the proxy for a tunnel, by CONNECT or by SOCKS.
	StageConnect
	// StageTargetTLS is the TLS handshake with the target, through the tunnel.
	StageTargetTLS
	// StageRequest sends the request and waits for the head of the response.
	StageRequest
	// StageStatus judges the status.
	StageStatus
	// StageBody reads and judges the body.
	StageBody
)

var stageNames = [...]string{"none", "dial", "proxy-tls", "connect", "target-tls", "request", "status", "body"}

// String returns the stage as in "target-tls".
func (s Stage) String() string {
	if int(s) >= len(stageNames) {
		return fmt.Sprintf("stage(%d)", uint8(s))
	}
	return stageNames[s]
}

// MarshalText returns [Stage.String].
func (s Stage) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// OfProxy tells whether a failure in this stage is the proxy's.
func (s Stage) OfProxy() bool { return s >= StageDial && s <= StageConnect }

// stageObserverKey finds the function of [WithStageObserver] in a context.
type stageObserverKey struct{}

// WithStageObserver returns a context that makes a [Transport] call observe as
// a round trip enters each stage up to StageRequest. It is called by the
// goroutine at work, one call at a time, and shall return at once.
func WithStageObserver(ctx context.Context, observe func(Stage)) context.Context {
	return context.WithValue(ctx, stageObserverKey{}, observe)
}

// tracker follows one round trip. A dial may go on in the background after its
// request was served by another connection; what such a dial reports is ignored.
type tracker struct {
	observe func(Stage)

	mu      sync.Mutex
	stage   Stage
	dialing bool
}

// trackerKey finds the tracker in the context of a dial.
type trackerKey struct{}

func startTracker(ctx context.Context) (context.Context, *tracker) {
	t := &tracker{}
	t.observe, _ = ctx.Value(stageObserverKey{}).(func(Stage))
	ctx = context.WithValue(ctx, trackerKey{}, t)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:           func(string) { t.begin() },
		TLSHandshakeStart: func() { t.enter(StageTargetTLS) },
		GotConn:           func(httptrace.GotConnInfo) { t.finish() },
	}), t
}

// enterStage reports to the tracker that started the dial of ctx, if any.
func enterStage(ctx context.Context, s Stage) {
	if t, ok := ctx.Value(trackerKey{}).(*tracker); ok {
		t.enter(s)
	}
}

func (t *tracker) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dialing = true
	t.stage = StageDial
}

func (t *tracker) enter(s Stage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dialing {
		t.setLocked(s)
	}
}

func (t *tracker) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dialing = false
	t.setLocked(StageRequest)
}

func (t *tracker) setLocked(s Stage) {
	t.stage = s
	if t.observe != nil {
		t.observe(s)
	}
}

// current is the stage that was reached, or zero if the request did not get as far
// as asking for a connection.
func (t *tracker) current() Stage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stage
}

// proxyTLSConn hides that a connection to an https proxy is TLS, because
// net/http would otherwise take its handshake for the target's.
type proxyTLSConn struct{ *tls.Conn }
