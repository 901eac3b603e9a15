package leasehttp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/lease"
)

// ClientConfig says where a client's store is. URL is required.
type ClientConfig struct {
	// URL is the server's, such as https://egress.example:8090.
	URL string
	// Token is the client's bearer token; none is sent if empty.
	Token string
	// HTTPClient makes the calls; one of its own without a proxy if nil. Its
	// Timeout must be longer than Wait. A redirect is an error, unless its
	// CheckRedirect is set.
	HTTPClient *http.Client
	// Wait is how long one call of a waiting Acquire lasts; 30 s if zero. The
	// server may answer sooner, and then the client asks again.
	Wait time.Duration
	// Transport is how the clients of leases connect.
	Transport endpoint.TransportConfig
}

func (c ClientConfig) withDefaults() (ClientConfig, error) {
	var problems check.Problems
	u, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
		problems.Missing("url", "give the server's URL, such as https://egress.example:8090")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		problems.Missing("url", "must be an http or https URL, such as https://egress.example:8090")
	case u.User != nil:
		problems.Missing("url", "must not hold credentials: use Token")
	}
	if c.Wait < 0 {
		problems.Add("wait", c.Wait, "must not be negative")
	}
	c.Wait = cmp.Or(c.Wait, 30*time.Second)
	if c.HTTPClient == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = nil
		c.HTTPClient = &http.Client{Transport: transport}
	}
	if c.HTTPClient.CheckRedirect == nil {
		client := *c.HTTPClient
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		c.HTTPClient = &client
	}
	return c, problems.Err()
}

// Client is a [lease.Store] behind a [Handler]. It is safe for concurrent use.
type Client struct {
	cfg ClientConfig
}

var _ lease.Store = (*Client)(nil)

// NewClient returns a client. It does not connect.
func NewClient(cfg ClientConfig) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("leasehttp.ClientConfig: %w", err)
	}
	return &Client{cfg}, nil
}

// TryAcquire implements [lease.Store].
func (c *Client) TryAcquire(ctx context.Context, req lease.Request) (*lease.Lease, error) {
	body, err := newAcquireRequest(req)
	if err != nil {
		return nil, err
	}
	return c.acquireOnce(ctx, body, "")
}

// Acquire implements [lease.Store]. It asks again, with the same request ID, when
// the server's wait is over or the connection breaks, until ctx ends.
func (c *Client) Acquire(ctx context.Context, req lease.Request) (*lease.Lease, error) {
	body, err := newAcquireRequest(req)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for failures := 0; ; {
		asked := time.Now()
		l, err := c.acquireOnce(ctx, body, "?wait="+c.cfg.Wait.String())
		if err == nil || !retryable(err) {
			return l, err
		}
		sleep(ctx, c.pauseAfter(err, &failures, time.Since(asked)))
		if ctx.Err() != nil {
			c.giveUp(body.RequestID)
			return nil, endOfWait(ctx, err, time.Since(began))
		}
	}
}

// retryable tells whether the same request may succeed later.
func retryable(err error) bool {
	var answered *answerError
	if errors.As(err, &answered) {
		return answered.status >= http.StatusInternalServerError
	}
	return !errors.Is(err, errBadAnswer) && !errors.Is(err, lease.ErrLost)
}

// shortestCall is how long a call lasts at least that the server has waited in: one that
// answers at once is not asked without end.
const shortestCall = 100 * time.Millisecond

// pauseAfter is how long to wait before asking again: not at all where the server
// has waited itself, else longer with each failure.
func (c *Client) pauseAfter(err error, failures *int, took time.Duration) time.Duration {
	if errors.Is(err, lease.ErrNoneFree) {
		*failures = 0
		return min(shortestCall, c.cfg.Wait) - took
	}
	*failures++
	return min(100*time.Millisecond<<min(*failures, 10), 5*time.Second)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func endOfWait(ctx context.Context, last error, waited time.Duration) error {
	e := &lease.UnavailableError{Waited: waited, Err: errors.Join(ctx.Err(), last)}
	var unavailable *lease.UnavailableError
	if errors.As(last, &unavailable) {
		e.Counts, e.RetryAfter = unavailable.Counts, unavailable.RetryAfter
	}
	if !errors.Is(e.Err, lease.ErrNoneFree) {
		e.Err = errors.Join(lease.ErrNoneFree, e.Err)
	}
	return e
}

// giveUpTimeout bounds the farewell of an Acquire whose context has ended.
const giveUpTimeout = 2 * time.Second

// giveUp lets the server take back what it may have granted.
func (c *Client) giveUp(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), giveUpTimeout)
	go func() {
		defer cancel()
		_ = c.call(ctx, http.MethodDelete, "/v1/requests/"+id, nil, nil)
	}()
}

func (c *Client) acquireOnce(ctx context.Context, body acquireRequest, query string) (*lease.Lease, error) {
	asked := time.Now()
	var answer wireLease
	if err := c.call(ctx, http.MethodPost, "/v1/leases"+query, body, &answer); err != nil {
		return nil, err
	}
	grant, err := answer.grant()
	if err != nil {
		return nil, err
	}
	// What the way there and back took is on the safe side. It did not wait for longer
	// than all that.
	waited := min(time.Duration(answer.Waited), time.Since(asked))
	return lease.New(c, grant, asked.Add(waited), c.cfg.Transport), nil
}

// newAcquireRequest is a request with an ID of its own, as it travels. A selector whose text
// would be read as another one, as with a comma in a value, is refused.
func newAcquireRequest(req lease.Request) (acquireRequest, error) {
	if err := req.Validate(); err != nil {
		return acquireRequest{}, fmt.Errorf("lease.Request: %w", err)
	}
	text := req.Selector.String()
	read, err := lease.ParseSelector(text)
	same := slices.EqualFunc(req.Selector, read, func(a, b lease.Requirement) bool {
		return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
	})
	if err != nil || !same {
		return acquireRequest{}, fmt.Errorf("lease.Request: selector: %q cannot be sent: keep keys and values to letters, digits and _ . / : -", text)
	}
	return acquireRequest{
		RequestID: rand.Text(), Holder: req.Holder, Domain: req.Domain, TTL: duration(req.TTL),
		Selector: text, Session: req.Session,
	}, nil
}

// Renew implements [lease.Store].
func (c *Client) Renew(ctx context.Context, key lease.Key, ttl time.Duration) (lease.Grant, error) {
	var answer renewAnswer
	err := c.call(ctx, http.MethodPost, leasePath(key, "renew"), renewRequest{Token: key.Token, TTL: duration(ttl)}, &answer)
	if err == nil && answer.TTL <= 0 {
		err = badAnswer(errors.New("ttl: is not positive"))
	}
	if err != nil {
		return lease.Grant{}, err
	}
	return lease.Grant{Key: key, TTL: time.Duration(answer.TTL)}, nil
}

// Release implements [lease.Store].
func (c *Client) Release(ctx context.Context, key lease.Key) error {
	return c.call(ctx, http.MethodPost, leasePath(key, "release"), releaseRequest{Token: key.Token}, nil)
}

// ReleaseUnused implements [lease.Store].
func (c *Client) ReleaseUnused(ctx context.Context, key lease.Key) error {
	return c.call(ctx, http.MethodPost, leasePath(key, "release"), releaseRequest{Token: key.Token, Unused: true}, nil)
}

// Report implements [lease.Store].
func (c *Client) Report(ctx context.Context, key lease.Key, o lease.Outcome) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, leasePath(key, "report"), reportRequest{
		Token: key.Token, Outcome: o.Kind, Domain: o.Domain, Status: o.Status,
		Latency: duration(o.Latency), RetryAfter: duration(o.RetryAfter),
	}, nil)
}

func leasePath(key lease.Key, action string) string {
	return "/v1/leases/" + url.PathEscape(key.ID) + "/" + action
}

// List implements [lease.Store]. The URLs of endpoints are left out: a list shows
// no credentials.
func (c *Client) List(ctx context.Context) ([]lease.Status, error) {
	var answer listAnswer
	if err := c.call(ctx, http.MethodGet, "/v1/endpoints", nil, &answer); err != nil {
		return nil, err
	}
	return answer.statuses()
}

// Stats implements [lease.Store].
func (c *Client) Stats(ctx context.Context) (lease.Stats, error) {
	var answer statsAnswer
	if err := c.call(ctx, http.MethodGet, "/v1/stats", nil, &answer); err != nil {
		return lease.Stats{}, err
	}
	return answer.counted()
}

// call sends a request and reads the answer into the value given, or wants none.
func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	var text io.Reader
	if body != nil {
		text = bytes.NewReader(mustJSON(body))
	}
	req, err := http.NewRequestWithContext(ctx, method, c.cfg.URL+path, text)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	}
	resp, err := c.cfg.HTTPClient.Do(req)
	if err != nil {
		return shown(fmt.Errorf("lease server: %w", err), c.cfg.Token)
	}
	defer resp.Body.Close()
	return shown(read(resp, into), c.cfg.Token)
}
