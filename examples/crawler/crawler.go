package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressfleet/egress/lease"
)

// outcomeInvalid is that of a line that is no URL.
const outcomeInvalid lease.OutcomeKind = "invalid"

// result is what became of a URL: one line of the output.
type result struct {
	URL       string            `json:"url"`
	Status    int               `json:"status,omitempty"`
	Bytes     int64             `json:"bytes"`
	SHA256    string            `json:"sha256,omitempty"`
	Proxy     string            `json:"proxy,omitempty"`
	Attempt   int               `json:"attempt"`
	LatencyMS int64             `json:"latencyMs"`
	Outcome   lease.OutcomeKind `json:"outcome"`
	Error     string            `json:"error,omitempty"`
}

// crawler fetches the jobs of its queue, each request through a lease of its own.
type crawler struct {
	opts     options
	store    lease.Store
	queue    *queue
	results  chan result
	holder   string
	selector lease.Selector
	jar      http.CookieJar // nil unless sticky
	inFlight atomic.Int64
	retries  atomic.Int64
}

func newCrawler(o options, store lease.Store) *crawler {
	selector, _ := lease.ParseSelector(o.selector) // the flags were checked
	host, err := os.Hostname()
	if err != nil {
		host = "crawler"
	}
	c := &crawler{
		opts: o, store: store, queue: newQueue(o.perDomain), results: make(chan result),
		holder: fmt.Sprintf("%s/%d", host, os.Getpid()), selector: selector,
	}
	if o.sticky {
		c.jar, _ = cookiejar.New(nil) // it never fails
	}
	return c
}

// start begins to fetch. The results are closed after the last one.
func (c *crawler) start(ctx context.Context) {
	var workers sync.WaitGroup
	for range c.opts.workers {
		workers.Go(func() {
			for {
				j, ok := c.queue.get()
				if !ok {
					return
				}
				r := c.crawl(ctx, j)
				c.queue.done(j)
				c.results <- r
			}
		})
	}
	go func() {
		workers.Wait()
		close(c.results)
	}()
}

// crawl tries a URL until an attempt settles it.
func (c *crawler) crawl(ctx context.Context, j job) result {
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	if j.invalid {
		return result{URL: j.url, Outcome: outcomeInvalid, Error: "not an http or https URL"}
	}
	var r result
	for attempt := 1; attempt <= c.opts.attempts; attempt++ {
		if attempt > 1 {
			c.retries.Add(1)
		}
		r = c.attempt(ctx, j)
		r.Attempt = attempt
		if r.Outcome == lease.OK || ctx.Err() != nil {
			break
		}
	}
	return r
}

// attempt leases a proxy, fetches through it and reports how it went. A domain
// that blocked the proxy, and a proxy that failed, are not met again for a
// while: so the next attempt takes another.
func (c *crawler) attempt(ctx context.Context, j job) result {
	r := result{URL: j.url}
	wait, cancel := context.WithTimeout(ctx, c.opts.timeout)
	defer cancel()
	req := lease.Request{
		Holder: c.holder, Domain: j.domain, Selector: c.selector, TTL: c.opts.timeout + 15*time.Second,
	}
	if c.opts.sticky {
		req.Session = j.domain
	}
	l, err := c.store.Acquire(wait, req)
	if err != nil {
		r.Outcome, r.Error = lease.Inconclusive, err.Error()
		return r
	}
	defer l.Release(ctx)
	work, stop := l.Keep(ctx, 0) // a server may grant less than an attempt may take
	defer stop()
	r.Proxy = l.Endpoint().ID

	began := time.Now()
	outcome := c.fetch(work, l, j, &r)
	outcome.Latency = time.Since(began)
	r.LatencyMS, r.Outcome = outcome.Latency.Milliseconds(), outcome.Kind
	if err := l.Report(ctx, outcome); err != nil && r.Error == "" {
		r.Error = err.Error()
	}
	return r
}

func (c *crawler) fetch(ctx context.Context, l *lease.Lease, j job, r *result) lease.Outcome {
	ctx, cancel := context.WithTimeout(ctx, c.opts.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, nil)
	if err != nil {
		r.Error = err.Error()
		return lease.Outcome{Kind: lease.Canceled}
	}
	client := *l.Client()
	client.Jar = c.jar
	resp, err := client.Do(req)
	if err == nil {
		r.Status = resp.StatusCode
		r.Bytes, r.SHA256, err = digest(resp.Body)
		err = errors.Join(err, resp.Body.Close())
	}
	outcome := lease.Judge(resp, err)
	if err != nil {
		r.Error = err.Error()
	}
	return outcome
}

func digest(body io.Reader) (n int64, sum string, err error) {
	h := sha256.New()
	n, err = io.Copy(h, body)
	if err != nil {
		return n, "", err
	}
	return n, hex.EncodeToString(h.Sum(nil)), nil
}
