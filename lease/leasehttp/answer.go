package leasehttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/lease"
)

// What is read of an answer at most, and shown of it in an error, in bytes. A list of
// 100,000 endpoints fits.
const (
	maxAnswer = 1 << 20
	maxList   = 64 << 20
	maxText   = 1 << 10
)

var errBadAnswer = errors.New("the lease server's answer cannot be read")

// badAnswer says why. It must not quote an answer, which may hold passwords.
func badAnswer(why error) error { return fmt.Errorf("%w: %w", errBadAnswer, why) }

// read reads an answer into the value given. Without one there must be none.
func read(resp *http.Response, into any) error {
	most := int64(maxAnswer)
	if _, list := into.(*listAnswer); list {
		most = maxList
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return fmt.Errorf("lease server: %w", err)
	case resp.StatusCode/100 != 2:
		return answerErr(resp.StatusCode, text)
	case into == nil && resp.StatusCode != http.StatusNoContent:
		return badAnswer(fmt.Errorf("it is %d, wanted %d: correct the URL", resp.StatusCode, http.StatusNoContent))
	case into == nil:
		return nil
	case int64(len(text)) > most:
		return badAnswer(fmt.Errorf("it has more than %d bytes", most))
	}
	return unmarshal(text, into)
}

func unmarshal(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return badAnswer(syntax)
	case errors.As(err, &kind):
		value, _, _ := strings.Cut(kind.Value, " ") // a number stands behind it
		return badAnswer(fmt.Errorf("%s: is of the wrong kind, %s", kind.Field, value))
	}
	return badAnswer(errors.New("a value of it has not the form of its field"))
}

// grant is what may be used: an endpoint with a proxy, for some time.
func (w wireLease) grant() (lease.Grant, error) {
	url, err := endpoint.ParseURL(w.Endpoint.URL)
	var problems check.Problems
	problems.Require(w.ID != "", "id", "is missing")
	problems.Require(w.Token > 0, "token", "is not positive")
	problems.Require(w.TTL > 0, "ttl", "is not positive")
	problems.Require(w.Endpoint.ID != "", "endpoint.id", "is missing")
	problems.Within("endpoint.url", err)
	if err := problems.Err(); err != nil {
		return lease.Grant{}, badAnswer(err)
	}
	e := w.Endpoint.endpoint()
	e.URL = url
	return lease.Grant{
		Key: lease.Key{ID: w.ID, Token: w.Token}, TTL: time.Duration(w.TTL), Domain: w.Domain, Endpoint: e,
	}, nil
}

// statuses are ordered by ID, each endpoint once.
func (a listAnswer) statuses() ([]lease.Status, error) {
	if a.Endpoints == nil {
		return nil, badAnswer(errors.New("endpoints: is missing"))
	}
	all, last := make([]lease.Status, 0, len(a.Endpoints)), ""
	for i, w := range a.Endpoints {
		switch w.Health {
		case endpoint.Unknown, endpoint.Healthy, endpoint.Unhealthy:
		default:
			return nil, badAnswer(fmt.Errorf("endpoints[%d].health: is none of Unknown, Healthy and Unhealthy", i))
		}
		if w.Endpoint.ID <= last {
			return nil, badAnswer(fmt.Errorf("endpoints[%d].endpoint.id: is missing, or not behind the one before", i))
		}
		last = w.Endpoint.ID
		all = append(all, w.status())
	}
	return all, nil
}

// counted are the statistics, none of them negative.
func (a statsAnswer) counted() (lease.Stats, error) {
	if a.Endpoints == nil {
		return lease.Stats{}, badAnswer(errors.New("endpoints: is missing"))
	}
	w := a.wireStats
	w.Endpoints = *a.Endpoints
	least := min(w.Acquired, w.Released, w.Renewed, w.Expired, w.Revoked, w.Waits, w.Canceled, w.LateReports, w.DroppedReports, int64(w.Waiting))
	for _, n := range w.Outcomes {
		least = min(least, n)
	}
	if least < 0 || w.Endpoints.negative() {
		return lease.Stats{}, badAnswer(errors.New("a count is negative"))
	}
	return w.stats(), nil
}

func (w wireCounts) negative() bool {
	return min(w.Total, w.NotSelected, w.Draining, w.Unknown, w.Unhealthy, w.Leased, w.Cooling, w.CoolingForDomain, w.Free) < 0
}

// answerError is an error that the server answered.
type answerError struct {
	status int
	text   string
	err    error // of package lease, where it is one
}

func (e *answerError) Error() string { return "lease server: " + e.text }
func (e *answerError) Unwrap() error { return e.err }

func answerErr(status int, text []byte) error {
	e := &answerError{status: status, text: strings.TrimSpace(fmt.Sprintf("it answered %d %s", status, http.StatusText(status)))}
	if status < http.StatusBadRequest {
		e.text += ": correct the URL"
		return e
	}
	var answer errorAnswer
	if err := json.Unmarshal(text, &answer); err != nil || answer.Error.Code == "" {
		return e
	}
	e.text = answer.Error.Message
	switch answer.Error.Code {
	case codeNotHeld:
		e.err = lease.ErrNotHeld
	case codeExpired:
		e.err = lease.ErrExpired
	case codeNoMatch:
		e.err = unavailable(lease.ErrNoMatch, answer.Error)
	case codeNoneFree:
		e.err = unavailable(lease.ErrNoneFree, answer.Error)
	}
	return e
}

func unavailable(cause error, answer wireError) error {
	e := &lease.UnavailableError{RetryAfter: time.Duration(answer.RetryAfter), Err: cause}
	if answer.Counts != nil && !answer.Counts.negative() {
		e.Counts = lease.Counts(*answer.Counts)
	}
	return e
}

// shownError is an error whose text was long, or had the bearer token, as that of a
// server that repeats what it was sent.
type shownError struct {
	error
	text string
}

func (e *shownError) Error() string { return e.text }
func (e *shownError) Unwrap() error { return e.error }

// shown makes an error fit to be shown.
func shown(err error, token string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if token != "" {
		text = strings.ReplaceAll(text, token, "***")
	}
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	if text == err.Error() {
		return err
	}
	return &shownError{err, text}
}
