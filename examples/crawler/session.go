package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
	"github.com/egressfleet/egress/provider"
)

// session is a store of leases, and the fleet that fills it, if that is ours.
type session struct {
	fleet *fleet.Fleet // nil with -server
	store lease.Store
	close []func() error
}

// source is where proxies and URLs come from.
type source struct {
	provider  provider.Provider
	machine   setup.Machine
	transport endpoint.TransportConfig
	ca        []byte // of the demo's site, in PEM
	probes    []string
	urls      io.Reader
	onResult  func(done int, say func(string, ...any))
	close     []func() error
}

// open prepares what the flags ask for.
func open(o options, stdin io.Reader) (source, error) {
	if o.demo {
		return openDemo(o)
	}
	machine, err := o.machine()
	if err != nil {
		return source{}, err
	}
	roots, err := setup.Roots(o.caFile)
	if err != nil {
		return source{}, err
	}
	urls, closeURLs, err := openURLs(o.urls, stdin)
	if err != nil {
		return source{}, err
	}
	if o.server != "" {
		return source{
			urls: urls, transport: endpoint.TransportConfig{TargetRoots: roots},
			onResult: func(int, func(string, ...any)) {}, close: []func() error{closeURLs},
		}, nil
	}
	providers, p, err := setup.Open(o.providers, o.provider, setup.Types(setup.Hooks{}))
	if err != nil {
		return source{}, errors.Join(err, closeURLs())
	}
	return source{
		provider: p, machine: machine, probes: o.probes, urls: urls,
		transport: endpoint.TransportConfig{TargetRoots: roots},
		onResult:  func(int, func(string, ...any)) {}, close: []func() error{providers.Close, closeURLs},
	}, nil
}

func openURLs(name string, stdin io.Reader) (io.Reader, func() error, error) {
	if name == "" || name == "-" {
		return stdin, func() error { return nil }, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}

// join opens the lease API.
func join(o options, src source) (*session, error) {
	token, err := setup.Token(o.tokenFile)
	if err != nil {
		return nil, err
	}
	store, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: o.server, Token: token, Transport: src.transport})
	return &session{store: store, close: src.close}, err
}

// start makes the fleet, unless another keeps the proxies.
func start(o options, src source, onEvent func(fleet.Event)) (*session, error) {
	if o.server != "" {
		return join(o, src)
	}
	targets, err := src.targets()
	if err != nil {
		return nil, err
	}
	store, err := lease.NewMemory(lease.MemoryConfig{DefaultTTL: o.timeout + 15*time.Second, Transport: src.transport})
	if err != nil {
		return nil, err
	}
	interval, poll := 15*time.Second, 2*time.Second
	if o.demo {
		interval, poll = time.Second, 30*time.Millisecond
	}
	f, err := fleet.New(fleet.Config{
		Provider: src.provider, Tag: o.tag, Size: o.size,
		Request: src.machine.Request, Endpoint: setup.EndpointOf(src.provider, src.machine),
		Health:       health.EngineConfig{Targets: targets, Interval: interval, InitialJitter: time.Millisecond},
		PollInterval: poll,
		Inventory:    store, OnEvent: onEvent,
	})
	if err != nil {
		store.Close()
		return nil, err
	}
	closeStore := func() error { store.Close(); return nil }
	return &session{fleet: f, store: store, close: append([]func() error{closeStore}, src.close...)}, nil
}

// targets are what the proxies are probed with. Where there are several, one that is
// down does not make the proxies unhealthy.
func (s source) targets() ([]health.Target, error) {
	var all []health.Target
	for _, url := range s.probes {
		prober, err := health.NewProber(health.ProbeConfig{URL: url, Transport: s.transport})
		if err != nil {
			return nil, err
		}
		all = append(all, health.Target{Name: url, Probe: prober.Probe})
	}
	return all, nil
}

// end closes everything, the proxies last.
func (s *session) end(mode fleet.CloseMode) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	if s.fleet != nil {
		err = s.fleet.Close(ctx, mode)
	}
	for _, c := range s.close {
		err = errors.Join(err, c())
	}
	return err
}

// crawlAll runs one crawl from the first URL to the last proxy's end. ok tells
// whether every URL was fetched.
func crawlAll(ctx context.Context, o options, signals <-chan os.Signal, stdin io.Reader, stdout, stderr io.Writer) (ok bool, err error) {
	src, err := open(o, stdin)
	if err != nil {
		return false, err
	}
	screen := newScreen(o, stdout, stderr)
	s, err := start(o, src, screen.event)
	if err != nil {
		return false, err
	}
	defer func() {
		mode := fleet.Destroy
		if o.keep {
			mode = fleet.Keep
		}
		if s.fleet != nil {
			screen.say("closing the fleet")
		}
		err = errors.Join(err, s.end(mode))
		screen.summary()
	}()
	draining, cut, stop := twoSignals(ctx, signals, screen)
	defer stop()

	if s.fleet != nil {
		screen.say("waiting for the first of %d proxies", o.size)
		if err := waitReady(draining, o, s.fleet, screen); err != nil {
			return false, err
		}
	}
	c := newCrawler(o, s.store)
	screen.follow(c, s.fleet)
	c.start(cut)
	go func() {
		<-draining.Done()
		c.queue.drop()
	}()
	fed := make(chan error, 1)
	go func() { fed <- c.feed(draining, src.urls) }()
	if err := screen.consume(c, src.onResult); err != nil {
		return false, err
	}
	select {
	case err := <-fed:
		if err != nil {
			return false, err
		}
	case <-draining.Done(): // it may wait for input that never comes
	}
	return screen.allFetched() && draining.Err() == nil, nil
}

// waitReady waits for the first proxy, but not where waiting cannot help.
func waitReady(ctx context.Context, o options, f *fleet.Fleet, screen *screen) error {
	ctx, cancel := context.WithTimeout(ctx, o.readyIn)
	defer cancel()
	go func() {
		select {
		case <-screen.hopeless:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := f.WaitReady(ctx, 1)
	select {
	case <-screen.hopeless:
		return screen.reason
	default:
		return err
	}
}

// twoSignals returns a context that ends with the first signal, after which
// nothing new is begun, and one that ends with the second.
func twoSignals(ctx context.Context, signals <-chan os.Signal, screen *screen) (draining, cut context.Context, stop func()) {
	cut, cancelCut := context.WithCancel(ctx)
	draining, cancelDraining := context.WithCancel(cut)
	go func() {
		for _, next := range []struct {
			cancel func()
			say    string
		}{
			{cancelDraining, "finishing what is in flight; Ctrl-C again cuts it off"},
			{cancelCut, "cutting off what is in flight"},
		} {
			select {
			case <-signals:
				screen.say(next.say)
				next.cancel()
			case <-cut.Done():
				return
			}
		}
	}()
	return draining, cut, cancelCut
}

// feed reads URLs, one a line, and queues them. Empty lines and lines that begin
// with # are skipped; a line that is no URL is reported as a result.
func (c *crawler) feed(ctx context.Context, r io.Reader) error {
	defer c.queue.close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && ctx.Err() == nil {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		u, err := url.Parse(line)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			c.queue.put(job{url: line, invalid: true})
			continue
		}
		c.queue.put(job{url: u.String(), domain: u.Hostname()})
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading URLs: %w", err)
	}
	return nil
}
