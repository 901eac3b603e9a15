package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/check"
)

// ProbeConfig says what a probe fetches and expects. Only URL is required.
type ProbeConfig struct {
	// URL is the target, with https. Take one that you run, or that you may ask
	// this often.
	URL string
	// AllowPlainHTTP lets URL be http. Such a probe proves little: without a
	// tunnel any page of the proxy's own may pass for the target's. It is of use
	// with Echo, to see which headers the proxy adds.
	AllowPlainHTTP bool
	// ExpectedStatuses are those of success; 200 to 299 if empty.
	ExpectedStatuses []int
	// BodyMatch, if set, must match the body, read up to BodySizeLimit.
	BodyMatch *regexp.Regexp
	// BodySizeLimit in bytes fails a body that is longer; 64 KiB if zero.
	BodySizeLimit int64
	// Timeout bounds the whole probe with the body in it; 5 s if zero.
	Timeout time.Duration
	// Echo, if set, reads from the body what the target saw. A body that it
	// cannot read is a failure. EchoJSON and EchoText are ready ones.
	Echo EchoFunc
	// UserAgent is what the target sees; "egress-probe" if empty.
	UserAgent string
	// Transport is how to connect: give traffic the same. Connections are always
	// fresh.
	Transport endpoint.TransportConfig
}

func (c ProbeConfig) withDefaults() (ProbeConfig, error) {
	var problems check.Problems
	c.validateURL(&problems)
	notNegative(&problems, "timeout", c.Timeout)
	notNegative(&problems, "bodySizeLimit", c.BodySizeLimit)
	for i, status := range c.ExpectedStatuses {
		if status < 100 || status > 599 {
			problems.Add(fmt.Sprintf("expectedStatuses[%d]", i), status, "must be an HTTP status, 100 to 599")
		}
	}
	c.ExpectedStatuses = slices.Clone(c.ExpectedStatuses)
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.BodySizeLimit == 0 {
		c.BodySizeLimit = 64 << 10
	}
	if c.UserAgent == "" {
		c.UserAgent = "egress-probe"
	}
	c.Transport.FreshConnections = true
	return c, problems.Err()
}

func (c ProbeConfig) validateURL(problems *check.Problems) {
	target, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
		problems.Missing("url", "give a target to fetch, such as https://example.com/")
	case err != nil || target.Host == "":
		problems.Missing("url", "must be an absolute URL, such as https://example.com/")
	case target.User != nil:
		problems.Missing("url", "must not hold credentials: they would be sent to the target")
	case target.Scheme == "http" && !c.AllowPlainHTTP:
		problems.Add("url", c.URL, "proves little: through plain http the proxy can answer for the target; "+
			"use https, or set AllowPlainHTTP")
	case target.Scheme != "https" && target.Scheme != "http":
		problems.Add("url", target.Scheme, "must be https")
	}
}

// Prober probes proxies. It keeps no state between probes and is safe for
// concurrent use.
type Prober struct {
	cfg ProbeConfig
}

// NewProber returns a prober. The error lists all that is wrong with cfg.
func NewProber(cfg ProbeConfig) (*Prober, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("health.ProbeConfig: %w", err)
	}
	return &Prober{cfg}, nil
}

// Result is what one probe found.
type Result struct {
	// EndpointID and Generation tell what was probed.
	EndpointID string
	Generation uint64
	// Target is the name of the target, where the engine has several.
	Target string
	// Started is when the probe began.
	Started time.Time
	// Err is nil for a success. Otherwise it is an [*endpoint.Error] with the
	// stage that failed, or the error of ctx if that ended the probe.
	Err error
	// Status is the target's, if it answered.
	Status int
	// Timings tell how long each stage took.
	Timings Timings
	// EgressIP is the address that the target saw, where it echoes it.
	EgressIP netip.Addr
	// Leaks are headers by which the target can tell a proxy or its client, where
	// it echoes them. They do not fail the probe.
	Leaks []string
}

// Stage is the one that failed, or zero.
func (r Result) Stage() endpoint.Stage {
	var failed *endpoint.Error
	if errors.As(r.Err, &failed) {
		return failed.Stage
	}
	return 0
}

// Timings tell how long each stage of a probe took. A stage that was left out
// or not reached is zero.
type Timings struct {
	Dial, ProxyTLS, Connect, TargetTLS time.Duration
	// Request is from sending it to the head of the response.
	Request time.Duration
	Body    time.Duration
	Total   time.Duration
}

// Probe fetches the target through the endpoint once.
func (p *Prober) Probe(ctx context.Context, e endpoint.Endpoint) Result {
	r := Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
	watch := startStopwatch(r.Started)
	probeCtx, cancel := context.WithTimeout(endpoint.WithStageObserver(ctx, watch.enter), p.cfg.Timeout)
	defer cancel()
	r.Err = p.fetch(probeCtx, e.URL, &r, watch)
	r.Timings = watch.stop()
	if r.Err != nil && ctx.Err() != nil {
		r.Err = ctx.Err() // the caller's end says nothing about the proxy
	}
	return r
}

func (p *Prober) fetch(ctx context.Context, proxy endpoint.URL, r *Result, watch *stopwatch) error {
	transport, err := endpoint.NewTransport(proxy, p.cfg.Transport)
	if err != nil {
		return err
	}
	defer transport.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.cfg.URL, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", p.cfg.UserAgent)
	req.Header.Set("Accept-Encoding", "identity") // the limit is on what is sent
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r.Status = resp.StatusCode
	if !p.expected(resp.StatusCode) {
		return &endpoint.Error{
			Stage: endpoint.StageStatus, Proxy: proxy,
			Err: fmt.Errorf("the target answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode)),
		}
	}
	watch.enter(endpoint.StageBody)
	err = p.judgeBody(resp.Body, r)
	if err == nil {
		// Our own hanging up may make the target end its body as if it were whole.
		err = ctx.Err()
	}
	if err != nil {
		return &endpoint.Error{Stage: endpoint.StageBody, Proxy: proxy, Err: err}
	}
	return nil
}

func (p *Prober) expected(status int) bool {
	if len(p.cfg.ExpectedStatuses) == 0 {
		return status/100 == 2
	}
	return slices.Contains(p.cfg.ExpectedStatuses, status)
}

// judgeBody reads to the end, so that the deadline holds for all of it.
func (p *Prober) judgeBody(body io.Reader, r *Result) error {
	content, err := io.ReadAll(io.LimitReader(body, p.cfg.BodySizeLimit+1))
	switch {
	case err != nil:
		return fmt.Errorf("after %d bytes: %w", len(content), err)
	case int64(len(content)) > p.cfg.BodySizeLimit:
		return fmt.Errorf("the body is longer than %d bytes", p.cfg.BodySizeLimit)
	case p.cfg.BodyMatch != nil && !p.cfg.BodyMatch.Match(content):
		return fmt.Errorf("the body does not match %q", p.cfg.BodyMatch)
	case p.cfg.Echo == nil:
		return nil
	}
	echo, err := p.cfg.Echo(content)
	if err != nil {
		return fmt.Errorf("reading the echo: %w", err)
	}
	r.EgressIP, r.Leaks = echo.IP, echo.leaks()
	return nil
}

// stopwatch takes the time of each stage as it is entered.
type stopwatch struct {
	mu      sync.Mutex
	stage   endpoint.Stage
	since   time.Time
	began   time.Time
	timings Timings
}

func startStopwatch(now time.Time) *stopwatch {
	return &stopwatch{since: now, began: now}
}

func (w *stopwatch) enter(s endpoint.Stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if d := w.timings.of(w.stage); d != nil {
		*d += now.Sub(w.since)
	}
	w.stage, w.since = s, now
}

func (w *stopwatch) stop() Timings {
	w.enter(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timings.Total = w.since.Sub(w.began)
	return w.timings
}

func (t *Timings) of(s endpoint.Stage) *time.Duration {
	switch s {
	case endpoint.StageDial:
		return &t.Dial
	case endpoint.StageProxyTLS:
		return &t.ProxyTLS
	case endpoint.StageConnect:
		return &t.Connect
	case endpoint.StageTargetTLS:
		return &t.TargetTLS
	case endpoint.StageRequest:
		return &t.Request
	case endpoint.StageBody:
		return &t.Body
	}
	return nil
}

// String tells the stages that took time, such as "dial 2ms connect 5ms".
func (t Timings) String() string {
	var parts []string
	for s := endpoint.StageDial; s <= endpoint.StageBody; s++ {
		if d := t.of(s); d != nil && *d > 0 {
			parts = append(parts, fmt.Sprintf("%v %v", s, d.Round(time.Microsecond)))
		}
	}
	return strings.Join(parts, " ")
}
