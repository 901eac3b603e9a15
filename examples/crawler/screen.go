package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// screen prints: results as JSON lines, and for people, on standard error, what
// happens, a line of progress where that is a terminal, and a summary.
type screen struct {
	opts     options
	results  *json.Encoder
	terminal bool
	began    time.Time
	// hopeless is closed when a call failed in a way that retrying cannot help,
	// before any proxy was healthy; reason says why.
	hopeless chan struct{}
	reason   error

	mu       sync.Mutex
	err      io.Writer
	progress string // the line that stands on the terminal
	crawler  *crawler
	fleet    *fleet.Fleet
	done     int
	bytes    int64
	outcomes map[lease.OutcomeKind]int
	proxies  map[string]int
	replaced int
	proven   bool // some proxy was healthy
}

func newScreen(o options, stdout, stderr io.Writer) *screen {
	s := &screen{
		opts: o, results: json.NewEncoder(stdout), err: stderr, began: time.Now(), hopeless: make(chan struct{}),
		outcomes: map[lease.OutcomeKind]int{}, proxies: map[string]int{},
	}
	s.results.SetEscapeHTML(false)
	if f, ok := stderr.(*os.File); ok && !o.quiet {
		s.terminal = term.IsTerminal(int(f.Fd()))
	}
	return s
}

// say prints a line for people.
func (s *screen) say(format string, args ...any) {
	if s.opts.quiet {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	fmt.Fprintf(s.err, format+"\n", args...)
}

func (s *screen) eraseLocked() {
	if s.progress != "" {
		fmt.Fprint(s.err, "\r"+strings.Repeat(" ", len(s.progress))+"\r")
		s.progress = ""
	}
}

// event tells what happens to the proxies.
func (s *screen) event(e fleet.Event) {
	s.note(e)
	switch {
	case e.Type == fleet.CallFailed:
		s.say("%s of %s failed: %v", e.Reason, e.UID, e.Err)
	case e.Type == fleet.Replacing || e.Type == fleet.LetGo:
		s.say("%s %s: %s", strings.ToLower(string(e.Type)), e.ID, e.Reason)
	case s.opts.verbose:
		s.say("%s %s %s %s", strings.ToLower(string(e.Type)), e.ID, e.Health, e.Reason)
	}
}

func (s *screen) note(e fleet.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.Type == fleet.Replacing:
		s.replaced++
	case e.Health == endpoint.Healthy:
		s.proven = true
	case !s.proven && s.reason == nil && errors.Is(e.Err, provider.ErrPermanent):
		s.reason = e.Err
		close(s.hopeless)
	}
}

// follow names what the line of progress tells of.
func (s *screen) follow(c *crawler, f *fleet.Fleet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crawler, s.fleet = c, f
}

// consume prints every result.
func (s *screen) consume(c *crawler, onResult func(int, func(string, ...any))) error {
	var failed error
	for r := range c.results {
		s.count(r)
		if err := s.results.Encode(r); err != nil && failed == nil {
			failed = fmt.Errorf("writing results: %w", err)
			c.queue.drop()
		}
		s.show()
		onResult(s.done, s.say)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	return failed
}

func (s *screen) count(r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	s.done++
	s.bytes += r.Bytes
	s.outcomes[r.Outcome]++
	if r.Outcome == lease.OK {
		s.proxies[r.Proxy]++
	}
}

// show draws the line of progress anew.
func (s *screen) show() {
	if !s.terminal {
		return
	}
	proxies := ""
	if s.fleet != nil {
		proxies = fmt.Sprintf(", %d proxies healthy", healthyOf(s.fleet))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	s.progress = fmt.Sprintf("%d done, %d in flight, %d waiting, %d retries%s",
		s.done, s.crawler.inFlight.Load(), s.crawler.queue.waiting(), s.crawler.retries.Load(), proxies)
	fmt.Fprint(s.err, s.progress)
}

func healthyOf(f *fleet.Fleet) (n int) {
	for _, st := range f.Status() {
		if st.Verdict.Health == endpoint.Healthy {
			n++
		}
	}
	return n
}

func (s *screen) allFetched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outcomes[lease.OK] == s.done
}

// summary tells how it went.
func (s *screen) summary() {
	if s.opts.quiet || s.crawler == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	fmt.Fprintf(s.err, "%d URLs in %v: %d bytes, %d retries, %d proxies replaced\n",
		s.done, time.Since(s.began).Round(time.Millisecond), s.bytes, s.crawler.retries.Load(), s.replaced)
	printCounts(s.err, "outcomes", s.outcomes)
	printCounts(s.err, "fetched through", s.proxies)
}

func printCounts[K ~string](w io.Writer, title string, counts map[K]int) {
	var parts []string
	for key, n := range counts {
		parts = append(parts, fmt.Sprintf("%s %d", key, n))
	}
	slices.Sort(parts)
	if len(parts) > 0 {
		fmt.Fprintf(w, "  %s: %s\n", title, strings.Join(parts, ", "))
	}
}
