package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// Error says how far a request through a proxy got, and why it failed. Its text
// names the proxy without its credentials.
type Error struct {
	// Stage is the one that failed.
	Stage Stage
	// Status is the HTTP status that the proxy answered to CONNECT, or zero.
	Status int
	// SquidError is the name that Squid gave in X-Squid-Error, such as
	// "ERR_DNS_FAIL", where it gave one.
	SquidError string
	// Proxy is the proxy that was used.
	Proxy URL
	// Err is the cause, never nil.
	Err error
}

// Error names stage, proxy and cause.
func (e *Error) Error() string {
	return fmt.Sprintf("%s through %v: %v", e.Stage, e.Proxy, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout tells whether the cause is a timeout, as net.Error does.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// squidTargetErrors are the names by which Squid says that it works but cannot
// reach the target (Squid's err_type.h).
var squidTargetErrors = []string{
	"ERR_DNS_FAIL", "ERR_CONNECT_FAIL", "ERR_CANNOT_FORWARD", "ERR_LIFETIME_EXP",
	"ERR_READ_TIMEOUT", "ERR_SECURE_CONNECT_FAIL",
}

// socksTargetReplies are net/http's texts for the SOCKS5 replies by which a
// proxy says that it works but cannot reach the target (RFC 1928, section 6).
var socksTargetReplies = []string{
	"network unreachable", "host unreachable", "connection refused", "TTL expired",
}

// TargetUnreachable tells whether the proxy itself answered, and said that it
// could not reach the target: 502 or 504 to CONNECT, 503 from Squid with a name
// that means it, or a SOCKS5 reply. Then either may be at fault: a host name
// that does not exist fails through every proxy, and a proxy without a resolver
// fails for every name.
func (e *Error) TargetUnreachable() bool {
	if e.Stage != StageConnect {
		return false
	}
	if e.SquidError != "" {
		return slices.Contains(squidTargetErrors, e.SquidError)
	}
	switch e.Status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	case 0:
		var op *net.OpError
		return errors.As(e.Err, &op) && op.Op == "socks connect" && op.Err != nil &&
			slices.ContainsFunc(socksTargetReplies, func(reply string) bool {
				return strings.HasSuffix(op.Err.Error(), reply)
			})
	}
	return false
}

// IsProxyFault tells whether err comes from a round trip that failed before the
// proxy gave a tunnel.
func IsProxyFault(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Stage.OfProxy()
}

// connectError is the error for a CONNECT that was answered with no tunnel.
func connectError(proxy URL, resp *http.Response) *Error {
	err := &Error{
		Stage: StageConnect, Status: resp.StatusCode, Proxy: proxy,
		SquidError: squidErrorName(resp.Header.Get("X-Squid-Error")),
	}
	text := strings.TrimSpace(fmt.Sprintf("the proxy answered CONNECT with %d %s",
		resp.StatusCode, http.StatusText(resp.StatusCode)))
	if err.SquidError != "" {
		text += ", " + err.SquidError
	}
	if resp.StatusCode == http.StatusProxyAuthRequired {
		text += ": check user name and password"
	}
	err.Err = errors.New(text)
	return err
}

var squidErrorPattern = regexp.MustCompile(`^ERR_[A-Z0-9_]{1,60}$`)

// squidErrorName takes the name out of "ERR_DNS_FAIL 0". What does not look
// like one is dropped: the other side may send anything.
func squidErrorName(header string) string {
	name, _, _ := strings.Cut(header, " ")
	if !squidErrorPattern.MatchString(name) {
		return ""
	}
	return name
}
