package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/fleet/fleetmetrics"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/health/healthmetrics"
	"github.com/egressfleet/egress/lease/leasehttp"
	"github.com/egressfleet/egress/lease/leasemetrics"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/providermetrics"
)

// server is one run of serve.
type server struct {
	*app
	*session
	plan *plan
	log  logr.Logger

	store   leaseStore
	fleet   *fleet.Fleet
	api     *leasehttp.Handler
	gate    gate
	metrics *prometheus.Registry

	servers []*http.Server
	serving sync.WaitGroup
	broken  chan error    // a listener that failed
	changed chan struct{} // something may have changed in the fleet
	ended   chan struct{} // closed at the end
}

// newServer listens before it makes anything: an address that is taken is told at
// once.
func (a *app) newServer(s *session, p *plan) (*server, error) {
	srv := &server{
		app: a, session: s, plan: p, log: a.logger().WithName("serve"), metrics: prometheus.NewRegistry(),
		broken: make(chan error, 2), changed: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	listeners, err := p.open()
	if err != nil {
		return nil, err
	}
	if err := srv.assemble(); err != nil {
		err = errors.Join(err, srv.dismantle())
		for _, l := range listeners {
			l.Close()
		}
		return nil, err
	}
	srv.start("lease API", listeners[0], srv.gate.before(srv.api), p.tls)
	if len(listeners) > 1 {
		srv.start("metrics and readiness", listeners[1], srv.statusPages(), nil)
	}
	return srv, nil
}

// open opens the listeners: that of the API, and the other one if it is wanted.
func (p *plan) open() ([]net.Listener, error) {
	var all []net.Listener
	for _, at := range []struct{ flag, address string }{{"listen", p.listen}, {"status-listen", p.status}} {
		if at.address == "" {
			continue
		}
		l, err := net.Listen("tcp", at.address)
		if err != nil {
			for _, open := range all {
				open.Close()
			}
			return nil, advise(fmt.Errorf("--%s: %w", at.flag, err), "choose another address by --%s, or end what listens there", at.flag)
		}
		all = append(all, l)
	}
	return all, nil
}

// assemble puts store, API and fleet together, the fleet last: it begins to work.
func (s *server) assemble() (err error) {
	if s.store, err = s.openStore(); err != nil {
		s.store = nil
		return asUsage(err)
	}
	s.api, err = leasehttp.NewHandler(leasehttp.HandlerConfig{
		Store: s.store, Clients: s.plan.clients, Anonymous: s.plan.anonymous, Logger: s.log.WithName("api"),
	})
	if err != nil {
		return asUsage(err)
	}
	measured, err := providermetrics.New(s.p, s.name, s.metrics)
	if err != nil {
		return err
	}
	if s.fleet, err = fleet.New(s.fleetConfig(measured)); err != nil {
		return asUsage(err)
	}
	return errors.Join(
		s.metrics.Register(collectors.NewGoCollector()),
		s.metrics.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
		fleetmetrics.Register(s.fleet, nil, s.metrics),
		healthmetrics.Register(s.fleet.Engine(), nil, s.metrics),
		leasemetrics.Register(s.store, nil, s.metrics),
	)
}

func (s *server) fleetConfig(p provider.Provider) fleet.Config {
	cfg := fleet.Config{
		Provider: p, Tag: s.flags.tag, Pools: s.plan.pools, Inventory: s.store,
		Endpoint: func(_ string, in provider.Instance) (endpoint.Endpoint, error) {
			return endpointOf(s.p, s.plan.machine.Key, in)
		},
		Health: health.EngineConfig{
			Targets: s.plan.targets, Interval: s.plan.probeInterval, InitialJitter: min(time.Second, s.plan.probeInterval), Logger: s.log.WithName("health"),
		},
		PollInterval: s.poll, AdoptTimeout: s.plan.adoptTimeout, OnEvent: s.onEvent, Logger: s.log.WithName("fleet"),
	}
	if len(s.plan.pools) == 1 && s.plan.pools[0].Name == "" { // one kind needs no name
		only := s.plan.pools[0]
		cfg.Pools, cfg.Size, cfg.MaxAge, cfg.Request = nil, only.Size, only.MaxAge, only.Request
	}
	return cfg
}

// onEvent is a hook of the fleet.
func (s *server) onEvent(fleet.Event) {
	select {
	case s.changed <- struct{}{}:
	default: // it is to be looked at already
	}
}

// tellChanges tells how many proxies are healthy whenever that has changed.
func (s *server) tellChanges() {
	told := ""
	for {
		select {
		case <-s.changed:
		case <-s.ended:
			return
		}
		healthy, all := s.count()
		text := fmt.Sprintf("%d of %d proxies are healthy, of %d that there are", healthy, s.plan.wanted, all)
		if text != told {
			told = text
			s.log.Info("proxies", "healthy", healthy, "wanted", s.plan.wanted, "instances", all)
			s.notify("STATUS=" + text)
		}
	}
}

// count is how many proxies are healthy, and how many instances there are.
func (s *server) count() (healthy, all int) {
	status := s.fleet.Status()
	for _, in := range status {
		if in.Phase == fleet.PhaseServing && in.Verdict.Health == endpoint.Healthy {
			healthy++
		}
	}
	return healthy, len(status)
}

// start serves on a listener.
func (s *server) start(what string, l net.Listener, handler http.Handler, cert *certificate) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: stdlog.New(logWriter{s.log}, "", 0),
	}
	s.servers = append(s.servers, server)
	scheme := "http"
	serve := func() error { return server.Serve(l) }
	if cert != nil {
		scheme = "https"
		server.TLSConfig = &tls.Config{GetCertificate: cert.get, MinVersion: tls.VersionTLS12}
		serve = func() error { return server.ServeTLS(l, "", "") }
	}
	s.log.Info("serving the "+what, "url", scheme+"://"+l.Addr().String())
	s.serving.Go(func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			s.broken <- fmt.Errorf("serving the %s: %w", what, err)
		}
	})
}

// logWriter takes the lines of net/http: of connections that fail.
type logWriter struct{ log logr.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.V(1).Info(strings.TrimSpace(string(line)))
	return len(line), nil
}

// run serves until the first interrupt, or until a listener fails.
func (s *server) run(ctx context.Context) error {
	s.held = true
	s.log.Info("keeping a fleet", append(s.plan.describe(), "provider", s.name, "tag", s.flags.tag)...)
	s.notify("READY=1")
	s.serving.Go(s.tellChanges)
	var broken error
	select {
	case <-ctx.Done():
	case broken = <-s.broken:
	}
	err := s.stop()
	// The second interrupt is none that one ends a server by.
	s.held = s.insistence.Err() == nil
	return errors.Join(broken, err)
}

// stop ends in the order in which the parts depend on each other: no new leases,
// no held ones, no API, no fleet.
func (s *server) stop() error {
	s.notify("STOPPING=1")
	s.log.Info("ending: no more leases are granted", "drain", s.plan.drain, "teardown", s.plan.teardown)
	s.gate.close()
	s.api.Close()
	s.drain()
	return s.dismantle()
}

// drain waits until no lease is held. Clients may renew, report and release
// meanwhile.
func (s *server) drain() {
	s.withhold()
	ctx, cancel := context.WithTimeout(s.insistence, s.plan.drain)
	defer cancel()
	held := 0
	for {
		if now, err := s.leases(ctx); err == nil { // the last call may be cut short
			held = now
			if held == 0 {
				return
			}
		}
		if !sleep(ctx, min(s.poll, 250*time.Millisecond)) {
			switch {
			case held > 0 && s.leavesLeases():
				s.log.Info("leases are left to their clients, who did not give them back in time", "leases", held)
			case held > 0:
				s.log.Info("leases are cut off: their clients did not give them back in time", "leases", held)
			}
			return
		}
	}
}

func (s *server) leases(ctx context.Context) (held int, err error) {
	all, err := s.store.List(ctx)
	own := s.own()
	for _, e := range all {
		if own[e.Endpoint.ID] {
			held += len(e.Leases)
		}
	}
	return held, err
}

// farewell bounds the end of requests that are being answered.
const farewell = 3 * time.Second

// dismantle ends what has been started.
func (s *server) dismantle() error {
	ctx, cancel := context.WithTimeout(s.insistence, farewell)
	defer cancel()
	for _, server := range s.servers {
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}
	close(s.ended)
	s.serving.Wait()
	var err error
	if s.fleet != nil {
		own := s.own()
		err = s.endFleet()
		s.withdraw(own)
	}
	if s.api != nil {
		s.api.Close()
	}
	if s.store != nil {
		s.store.Close()
	}
	return err
}

// endFleet leaves the proxies, or deletes them.
func (s *server) endFleet() error {
	_, all := s.count()
	mode := fleet.Keep
	if s.plan.teardown {
		mode = fleet.Destroy
		s.log.Info("deleting the proxies", "instances", all)
	} else if all > 0 {
		s.log.Info("the proxies stay for the next start", "instances", all, "delete", s.command("rm", "--all"))
	}
	ctx, cancel := context.WithTimeout(s.insistence, s.patience)
	defer cancel()
	if err := s.fleet.Close(ctx, mode); err != nil {
		return advise(err, "delete what is left by: %s", s.command("rm", "--all"))
	}
	return nil
}

// statusPages are for Prometheus and for whoever watches over the process.
func (s *server) statusPages() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{ErrorLog: stdlog.New(logWriter{s.log}, "", 0)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.readyz)
	return mux
}

func (s *server) readyz(w http.ResponseWriter, _ *http.Request) {
	healthy, _ := s.count()
	switch {
	case s.gate.closed.Load():
		http.Error(w, "ending", http.StatusServiceUnavailable)
	case healthy < s.plan.ready:
		http.Error(w, fmt.Sprintf("%d proxies are healthy, %d make it ready", healthy, s.plan.ready), http.StatusServiceUnavailable)
	default:
		fmt.Fprintf(w, "%d proxies are healthy\n", healthy)
	}
}
