package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/egressfleet/egress/endpoint"
)

// OutcomeKind says whose fault a failure is, if anyone's.
type OutcomeKind string

// The kinds of outcome.
const (
	// OK: the target answered as it should. It ends cooldowns' growth.
	OK OutcomeKind = "ok"
	// ProxyFault: the proxy did not give a tunnel. It cools the endpoint down.
	ProxyFault OutcomeKind = "proxy_fault"
	// TargetBlocked: the target refuses this proxy. It cools the endpoint down
	// for the domain.
	TargetBlocked OutcomeKind = "target_blocked"
	// TargetError: the target answered with a failure of its own.
	TargetError OutcomeKind = "target_error"
	// Inconclusive: it failed, and either side may be at fault.
	Inconclusive OutcomeKind = "inconclusive"
	// Canceled: the holder gave up.
	Canceled OutcomeKind = "canceled"
)

var outcomeKinds = []OutcomeKind{OK, ProxyFault, TargetBlocked, TargetError, Inconclusive, Canceled}

// Outcome is what a holder says of one use of its lease.
type Outcome struct {
	Kind OutcomeKind `json:"kind"`
	// Domain is the one that was used; the lease's own if empty.
	Domain string `json:"domain,omitempty"`
	// Status is the target's HTTP status, if it answered.
	Status int `json:"status,omitempty"`
	// Latency is how long it took; zero if not measured.
	Latency time.Duration `json:"latency,omitempty"`
	// RetryAfter is the target's own wish when it blocks; zero if it has none.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
}

// Validate reports an unknown kind.
func (o Outcome) Validate() error {
	if !slices.Contains(outcomeKinds, o.Kind) {
		return fmt.Errorf("outcome: kind: %q: must be one of %q", o.Kind, outcomeKinds)
	}
	return nil
}

// Judge turns what a client returned into an outcome, by cautious rules: 403,
// 429 and 451 are TargetBlocked, any other status below 500 is OK, and 5xx is
// TargetError. Without a response, a failure to dial the proxy or a refused
// CONNECT is ProxyFault; one that may be the target's too (a proxy that cannot
// reach it, a timeout behind the dial, a connection that broke) is
// Inconclusive. The caller may know better: change Kind before reporting.
func Judge(resp *http.Response, err error) Outcome {
	if err != nil {
		return Outcome{Kind: judgeError(err)}
	}
	o := Outcome{Kind: judgeStatus(resp.StatusCode), Status: resp.StatusCode}
	if o.Kind == TargetBlocked {
		o.RetryAfter = retryAfter(resp.Header.Get("Retry-After"))
	}
	return o
}

func judgeStatus(status int) OutcomeKind {
	switch {
	case status == http.StatusForbidden, status == http.StatusTooManyRequests,
		status == http.StatusUnavailableForLegalReasons:
		return TargetBlocked
	case status == http.StatusProxyAuthRequired:
		return Inconclusive // for http:// URLs either side may have sent it
	case status >= http.StatusInternalServerError:
		return TargetError
	}
	return OK
}

func judgeError(err error) OutcomeKind {
	var failed *endpoint.Error
	switch {
	case errors.Is(err, ErrLost), errors.Is(err, context.Canceled):
		return Canceled
	case !errors.As(err, &failed):
		return Inconclusive
	case failed.Stage == endpoint.StageDial, failed.Stage == endpoint.StageProxyTLS:
		return ProxyFault
	case failed.Stage != endpoint.StageConnect, failed.TargetUnreachable(), failed.Timeout():
		return Inconclusive
	}
	return ProxyFault
}

// retryAfter reads both forms of RFC 9110, section 10.2.3; zero if neither.
func retryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil && seconds > 0 {
		return min(time.Duration(seconds), 24*3600) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(time.Until(at), 0), 24*time.Hour)
	}
	return 0
}
