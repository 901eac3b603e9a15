package leasehttp

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/lease"
)

// HandlerConfig says what a handler serves, and to whom. Store is required, and
// Clients or Anonymous.
type HandlerConfig struct {
	// Store is what is served.
	Store lease.Store
	// Clients are the bearer tokens by the clients' names. A token has at least
	// 16 characters, and is one client's alone. A name is made of letters, digits,
	// '_', '.' and '-', and becomes a part of the holders' names.
	Clients map[string]string
	// Anonymous serves everyone who can connect. Set it on loopback only.
	Anonymous bool
	// MaxWait caps the wait of an acquire; 1 min if zero.
	MaxWait time.Duration
	// PollGrace is how long an acquire keeps its place, and a lease that was
	// granted is kept, while its client does not ask; 10 s if zero.
	PollGrace time.Duration
	// MaxBody caps the bytes of a request's body; 16 KiB if zero.
	MaxBody int64
	// BodyTimeout bounds the time in which a body arrives; 10 s if zero.
	BodyTimeout time.Duration
	// MaxPending caps the acquires that wait at one time; 10,000 if zero. More are
	// answered 503.
	MaxPending int
	// Logger gets a V(1) line for each request, without secrets.
	Logger logr.Logger
}

const minTokenLength = 16

func (c HandlerConfig) withDefaults() (HandlerConfig, error) {
	var problems check.Problems
	problems.Require(c.Store != nil, "store", "give the store to serve")
	problems.Require(len(c.Clients) > 0 || c.Anonymous, "clients",
		"give each client a bearer token, or set Anonymous to lend proxies to everyone who can connect")
	problems.Require(len(c.Clients) == 0 || !c.Anonymous, "anonymous", "is of no use beside clients with tokens: leave one out")
	owners := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		token := c.Clients[name]
		if !clientName.MatchString(name) {
			problems.Add("clients", name, "a name must match "+clientName.String())
		}
		if owner, taken := owners[token]; taken {
			problems.Missing(fmt.Sprintf("clients[%q]", name), fmt.Sprintf("has the token of %q: give each its own", owner))
		}
		owners[token] = name
		problems.Require(len(token) >= minTokenLength, fmt.Sprintf("clients[%q]", name),
			fmt.Sprintf("the token has less than %d characters: draw one at random", minTokenLength))
	}
	c.MaxWait = cmp.Or(c.MaxWait, time.Minute)
	c.PollGrace = cmp.Or(c.PollGrace, 10*time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, 16<<10)
	c.BodyTimeout = cmp.Or(c.BodyTimeout, 10*time.Second)
	c.MaxPending = cmp.Or(c.MaxPending, 10_000)
	for path, n := range map[string]int64{
		"maxWait": int64(c.MaxWait), "pollGrace": int64(c.PollGrace), "maxBody": c.MaxBody, "bodyTimeout": int64(c.BodyTimeout), "maxPending": int64(c.MaxPending),
	} {
		if n < 0 {
			problems.Add(path, n, "must not be negative")
		}
	}
	return c, problems.Err()
}

// Handler serves the API. Close it after the server.
type Handler struct {
	cfg     HandlerConfig
	clients []client
	mux     *http.ServeMux
	pending *pendings
}

// NewHandler returns the handler. The error lists all that is wrong with cfg, and
// shows no token.
func NewHandler(cfg HandlerConfig) (*Handler, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("leasehttp.HandlerConfig: %w", err)
	}
	h := &Handler{cfg: cfg, mux: http.NewServeMux(), pending: newPendings(cfg)}
	for name, token := range cfg.Clients {
		h.clients = append(h.clients, newClient(name, token))
	}
	for pattern, serve := range map[string]func(*http.Request, client) (int, any, error){
		"GET /v1/endpoints":            h.list,
		"GET /v1/stats":                h.stats,
		"POST /v1/leases":              h.acquire,
		"POST /v1/leases/{id}/renew":   h.renew,
		"POST /v1/leases/{id}/release": h.release,
		"POST /v1/leases/{id}/report":  h.report,
		"DELETE /v1/requests/{id}":     h.giveUp,
	} {
		h.mux.Handle(pattern, h.authorized(serve))
	}
	h.mux.HandleFunc("GET /v1/openapi.json", serveOpenAPI)
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, &apiError{http.StatusNotFound, codeNotFound, "there is no " + r.Method + " of that path; see /v1/openapi.json"})
	})
	return h, nil
}

// Close ends the acquires that wait, and gives back leases that no client has
// fetched.
func (h *Handler) Close() { h.pending.close() }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = h.limited(w, r.Body)
	h.mux.ServeHTTP(w, r)
}

// limited bounds the size of a body and the time in which it arrives. The server
// lifts the deadline when the body has come: a wait that follows is not bounded.
func (h *Handler) limited(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	if body == http.NoBody {
		return body
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.cfg.BodyTimeout)) // where it can
	return http.MaxBytesReader(w, body, h.cfg.MaxBody)
}

//go:embed openapi.json
var files embed.FS

func serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	http.ServeFileFS(w, r, files, "openapi.json")
}

// authorized answers a request of a known client by serve.
func (h *Handler) authorized(serve func(*http.Request, client) (int, any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, ok := h.client(r)
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			h.fail(w, r, &apiError{http.StatusUnauthorized, codeUnauthorized, "send the client's token as Authorization: Bearer TOKEN"})
			return
		}
		status, answer, err := serve(r, client)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		h.cfg.Logger.V(1).Info("lease api", "client", client.name, "method", r.Method, "path", r.URL.Path, "status", status)
		w.Header().Set("Cache-Control", "no-store")
		if answer == nil {
			w.WriteHeader(status)
			return
		}
		write(w, status, answer)
	})
}

func write(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(mustJSON(answer))
}

// apiError is an error that the API itself has found.
type apiError struct {
	status  int
	code    string
	message string
}

func (e *apiError) Error() string { return e.message }

// fail answers with the status that belongs to the error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, answer := describe(err)
	h.cfg.Logger.V(1).Info("lease api", "method", r.Method, "path", r.URL.Path, "status", status, "error", err.Error())
	if answer.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(time.Duration(answer.RetryAfter).Seconds()))))
	}
	write(w, status, errorAnswer{answer})
}

func describe(err error) (int, wireError) {
	var known *apiError
	var unavailable *lease.UnavailableError
	answer := wireError{Message: err.Error()}
	switch {
	case errors.As(err, &known):
		answer.Code = known.code
		return known.status, answer
	case errors.As(err, &unavailable):
		return describeUnavailable(unavailable)
	case errors.Is(err, lease.ErrNotHeld):
		answer.Code = codeNotHeld
		return http.StatusConflict, answer
	case errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost):
		answer.Code = codeExpired
		return http.StatusGone, answer
	}
	answer.Code, answer.RetryAfter = codeUnavailable, duration(time.Second)
	return http.StatusServiceUnavailable, answer
}

func describeUnavailable(e *lease.UnavailableError) (int, wireError) {
	counts := wireCounts(e.Counts)
	answer := wireError{Code: codeNoneFree, Message: e.Error(), Counts: &counts}
	if errors.Is(e, lease.ErrNoMatch) {
		answer.Code = codeNoMatch
		return http.StatusNotFound, answer
	}
	answer.RetryAfter = duration(max(e.RetryAfter, time.Second))
	return http.StatusServiceUnavailable, answer
}

// decode reads a body strictly: one JSON value, no unknown fields.
func decode(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &apiError{http.StatusRequestEntityTooLarge, codeTooLarge, fmt.Sprintf("the body is longer than %d bytes", tooLarge.Limit)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &apiError{http.StatusRequestTimeout, codeTooSlow, "the body did not arrive in time"}
	}
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err = decoder.Decode(into); err == nil && decoder.More() {
			err = errors.New("there is more than one JSON value")
		}
	}
	if err != nil {
		return badRequest("body: %v", err)
	}
	return nil
}

func badRequest(format string, args ...any) error {
	return &apiError{http.StatusBadRequest, codeBadRequest, fmt.Sprintf(format, args...)}
}

func (h *Handler) list(r *http.Request, c client) (int, any, error) {
	all, err := h.cfg.Store.List(r.Context())
	answer := listAnswer{make([]wireStatus, 0, len(all))}
	for _, s := range all {
		answer.Endpoints = append(answer.Endpoints, fromStatus(s, c))
	}
	return http.StatusOK, answer, err
}

func (h *Handler) stats(r *http.Request, _ client) (int, any, error) {
	s, err := h.cfg.Store.Stats(r.Context())
	return http.StatusOK, fromStats(s), err
}

func (h *Handler) acquire(r *http.Request, c client) (int, any, error) {
	began := time.Now()
	var body acquireRequest
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	req, err := body.request(c)
	if err != nil {
		return 0, nil, badRequest("%v", err)
	}
	wait, err := h.waitOf(r)
	if err != nil {
		return 0, nil, err
	}
	grant, err := h.pending.acquire(r.Context(), c.own(body.RequestID), body.RequestID != "", req, wait)
	if err != nil {
		return 0, nil, err
	}
	answer := toWire(grant, req.Holder, time.Since(began))
	answer.ID = c.seal(answer.ID)
	return http.StatusCreated, answer, nil
}

func (h *Handler) waitOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 {
		return 0, badRequest("wait: %q: write a duration like 30s", text)
	}
	return min(wait, h.cfg.MaxWait), nil
}

func (h *Handler) giveUp(r *http.Request, c client) (int, any, error) {
	h.pending.giveUp(c.own(r.PathValue("id")))
	return http.StatusNoContent, nil, nil
}

func (h *Handler) renew(r *http.Request, c client) (int, any, error) {
	var body renewRequest
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	grant, err := h.cfg.Store.Renew(r.Context(), lease.Key{ID: c.open(r.PathValue("id")), Token: body.Token}, time.Duration(body.TTL))
	return http.StatusOK, renewAnswer{TTL: duration(grant.TTL)}, err
}

func (h *Handler) release(r *http.Request, c client) (int, any, error) {
	var body releaseRequest
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	release := h.cfg.Store.Release
	if body.Unused {
		release = h.cfg.Store.ReleaseUnused
	}
	key := lease.Key{ID: c.open(r.PathValue("id")), Token: body.Token}
	err := release(context.WithoutCancel(r.Context()), key)
	if err == nil {
		h.pending.released(key)
	}
	return http.StatusNoContent, nil, err
}

func (h *Handler) report(r *http.Request, c client) (int, any, error) {
	var body reportRequest
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	outcome := lease.Outcome{
		Kind: body.Outcome, Domain: body.Domain, Status: body.Status,
		Latency: time.Duration(body.Latency), RetryAfter: time.Duration(body.RetryAfter),
	}
	if err := outcome.Validate(); err != nil {
		return 0, nil, badRequest("%v", err)
	}
	err := h.cfg.Store.Report(r.Context(), lease.Key{ID: c.open(r.PathValue("id")), Token: body.Token}, outcome)
	return http.StatusNoContent, nil, err
}
