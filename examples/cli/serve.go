package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/provider"
)

const serveHelp = `Keep a fleet of proxies, and lend them to crawlers by the lease API, over HTTP.

The fleet makes the proxies, probes them, and replaces what dies. A crawler in any
language leases one, fetches through it, and gives it back; the document of the
API is at /v1/openapi.json. A second listener has Prometheus metrics at /metrics,
and /healthz and /readyz: ready is a fleet with --ready healthy proxies.

Every client has a bearer token. They stand in --token-file, or in the environment's
EGRESS_TOKENS, one a line: a name and a token, or a token alone, whose client is
then called "crawler". Without one serve does not start, unless --anonymous says
that everyone who can connect may lease. Answers hold the proxies' passwords: beyond
loopback serve wants --tls-cert and --tls-key, or --plain-http where something in
front of it speaks TLS.

Proxies alike are described by the flags that up has, and counted by --size.
Several kinds stand in a --pools file:

  pools:
    - {name: small, size: 10, machineType: small, attributes: {class: cheap}}
    - {name: eu, size: 5, zone: kvm1, maxAge: 24h, attributes: {region: eu}}

Leases live in this process, and end with it. With --redis they live in a database,
and every serve with the same --redis and --redis-fleet lends the proxies of all, as
do programs of yours with package redislease; each serve still needs a tag of its
own. An empty database is taken for one that has lost its data, and nothing is leased
for an hour, or --lease-ttl if that is longer: the first start of all wants
--redis-fresh.

The first interrupt or SIGTERM ends leasing, and waits for --drain until no lease
is held. The proxies stay for the next start, which finds them by --tag, unless
--teardown deletes them. A second interrupt ends at once.

The fleet takes all of its tag for its own, so there must be one serve for each, and
up must not have it: here --tag is egressctl-serve if it is not given.`

// serveTag is apart from that of up: the fleet takes all of its tag for its own.
const serveTag = "egressctl-serve"

// serveFlags are the flags of serve.
type serveFlags struct {
	machineFlags

	size   int
	maxAge time.Duration
	pools  string
	ready  int

	probes        []string
	probeCA       string
	probeInterval time.Duration
	adoptTimeout  time.Duration

	leaseTTL   time.Duration
	maxHolders int

	redis, redisFleet string
	redisFresh        bool

	listen, status  string
	tokenFile       string
	anonymous       bool
	tlsCert, tlsKey string
	plainHTTP       bool
	drain           time.Duration
	teardown        bool
	logFormat       string
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use: "serve", Short: "Keep a fleet of proxies and lend them over HTTP", Long: serveHelp, Args: cobra.NoArgs,
		Example: `  egressctl serve --size 5 --token-file tokens
  egressctl serve --pools pools.yaml --token-file tokens --listen :8090 --tls-cert tls.crt --tls-key tls.key
  egressctl ls --tag egressctl-serve`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context(), &f, cmd.Flags()) },
	}
	f.register(cmd.Flags())
	return cmd
}

func (f *serveFlags) register(flags *pflag.FlagSet) {
	f.machineFlags.register(flags)
	flags.IntVar(&f.size, "size", 1, "how many healthy proxies to keep")
	flags.DurationVar(&f.maxAge, "max-age", 0, "replace proxies that are older; never if zero")
	flags.StringVar(&f.pools, "pools", "", "YAML `file` with several kinds of proxies, in place of --size and what says where")
	flags.IntVar(&f.ready, "ready", 1, "how many healthy proxies make /readyz ready")
	flags.StringSliceVar(&f.probes, "probe", []string{"https://example.com/"}, "`URLs` that healthy proxies fetch; of several, one that is down for all does not count")
	registerProbeCA(flags, &f.probeCA)
	flags.DurationVar(&f.probeInterval, "probe-interval", 15*time.Second, "time between two probes of a proxy")
	flags.DurationVar(&f.adoptTimeout, "adopt-timeout", 5*time.Minute,
		"make proxies after this time though a host has not told yet what it has; zero waits for all hosts")
	flags.DurationVar(&f.leaseTTL, "lease-ttl", time.Minute, "how long a lease lasts whose client does not say")
	flags.IntVar(&f.maxHolders, "max-holders", 1, "how many may lease one proxy at a time")
	flags.StringVar(&f.redis, "redis", "", "`URL` of a Redis or Valkey that keeps the leases, to share them with others; the environment's EGRESS_REDIS if empty, where a password belongs")
	flags.StringVar(&f.redisFleet, "redis-fleet", "egressctl", "`name` of what is leased together there")
	flags.BoolVar(&f.redisFresh, "redis-fresh", false, "lease at once though the database is empty; for the first start alone")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8090", "`address` of the lease API")
	flags.StringVar(&f.status, "status-listen", "127.0.0.1:8091", "`address` of /metrics, /healthz and /readyz; none if empty")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with the clients' bearer tokens; the environment's EGRESS_TOKENS if empty")
	flags.BoolVar(&f.anonymous, "anonymous", false, "lend to everyone who can connect, on loopback only")
	flags.StringVar(&f.tlsCert, "tls-cert", "", "PEM `file` with the certificate of the API; read again when it changes")
	flags.StringVar(&f.tlsKey, "tls-key", "", "PEM `file` with its key")
	flags.BoolVar(&f.plainHTTP, "plain-http", false, "serve without TLS beyond loopback")
	flags.DurationVar(&f.drain, "drain", time.Minute, "how long to wait for leases to end")
	flags.BoolVar(&f.teardown, "teardown", false, "delete the proxies at the end")
	flags.StringVar(&f.logFormat, "log-format", logText, "`form` of the log on standard error: text or json")
}

// plan is what the flags of serve come to.
type plan struct {
	*serveFlags
	machine setup.Machine
	pools   []fleet.Pool
	wanted  int
	targets []health.Target
	clients map[string]string
	tls     *certificate // nil for none
	redisAt *redis.Options
	// transport is how probes reach their targets.
	transport endpoint.TransportConfig
}

// serve does all that can fail for its flags before anything is made.
func (a *app) serve(ctx context.Context, f *serveFlags, set *pflag.FlagSet) error {
	if !set.Changed("tag") {
		a.flags.tag = serveTag
	}
	p, err := a.plan(f, set)
	if err != nil {
		return err
	}
	if f.logFormat == logJSON {
		a.screen.asJSON(a.flags.verbosity)
	}
	return a.withSession(func(s *session) error {
		srv, err := a.newServer(s, p)
		if err != nil {
			return err
		}
		return srv.run(ctx)
	})
}

// plan checks the flags, and reads the files that they name.
func (a *app) plan(f *serveFlags, set *pflag.FlagSet) (*plan, error) {
	p := &plan{serveFlags: f}
	for _, step := range []func() error{
		func() error { return f.check(set) },
		func() (err error) { p.clients, err = f.clientTokens(os.Getenv); return err },
		func() (err error) { p.tls, err = openCertificate(f.tlsCert, f.tlsKey); return err },
		func() (err error) { p.machine, err = f.machine(set, a.stdin); return err },
		func() error { return p.choosePools(a.flags.tag) },
		p.chooseTargets,
		p.chooseStore,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (f *serveFlags) check(set *pflag.FlagSet) error {
	switch {
	case f.size < 0 || f.maxAge < 0 || f.ready < 0 || f.adoptTimeout < 0 || f.drain < 0:
		return usagef("--size, --max-age, --ready, --adopt-timeout and --drain must not be negative")
	case f.probeInterval <= 0 || f.leaseTTL <= 0 || f.maxHolders < 1:
		return usagef("--probe-interval, --lease-ttl and --max-holders must be positive")
	case f.logFormat != logText && f.logFormat != logJSON:
		return usagef("--log-format: %q: must be text or json", f.logFormat)
	case (f.tlsCert == "") != (f.tlsKey == ""):
		return usagef("give --tls-cert and --tls-key, or neither")
	}
	if f.pools != "" {
		for _, name := range []string{"size", "max-age", "zone", "machine-type", "image"} {
			if set.Changed(name) {
				return usagef("--%s: leave it out with --pools: each pool has its own", name)
			}
		}
	}
	return f.checkListen()
}

// checkListen keeps passwords off the wire, and strangers out.
func (f *serveFlags) checkListen() error {
	for _, address := range []struct{ flag, value string }{{"listen", f.listen}, {"status-listen", f.status}} {
		if _, _, err := net.SplitHostPort(address.value); err != nil && (address.value != "" || address.flag == "listen") {
			return usagef("--%s: %q: write it like 127.0.0.1:8090", address.flag, address.value)
		}
	}
	switch {
	case isLoopback(f.listen):
		return nil
	case f.anonymous:
		return usagef("--anonymous: lends proxies to everyone who can reach %s: give clients tokens by --token-file, or listen on loopback", f.listen)
	case f.tlsCert == "" && !f.plainHTTP:
		return usagef("--listen: %s is beyond loopback, and answers hold passwords: give --tls-cert and --tls-key, or --plain-http where something in front of it speaks TLS", f.listen)
	}
	return nil
}

func isLoopback(hostport string) bool {
	host, _, _ := net.SplitHostPort(hostport)
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}

// choosePools makes pools of the file, or of the flags.
func (p *plan) choosePools(tag string) error {
	if p.serveFlags.pools == "" {
		p.pools, p.wanted = []fleet.Pool{{Size: p.size, MaxAge: p.maxAge, Request: requestOf(p.machine, tag)}}, p.size
		return nil
	}
	all, err := readPools(p.serveFlags.pools)
	if err != nil {
		return usagef("--pools: %s: %w", filepath.Base(p.serveFlags.pools), err)
	}
	for _, pool := range all {
		machine := p.machine
		machine.Placement = pool.Placement
		p.wanted += pool.Size
		p.pools = append(p.pools, fleet.Pool{
			Name: pool.Name, Size: pool.Size, MaxAge: time.Duration(pool.MaxAge), Attributes: pool.Attributes, Request: requestOf(machine, tag),
		})
	}
	return nil
}

func requestOf(m setup.Machine, tag string) func(string) (provider.CreateRequest, error) {
	return func(uid string) (provider.CreateRequest, error) { return request(m, uid, tag) }
}

// chooseTargets makes a target of each probe.
func (p *plan) chooseTargets() error {
	roots, err := setup.Roots(p.probeCA)
	if err != nil {
		return usagef("--probe-ca: %w", err)
	}
	p.transport.TargetRoots = roots
	for _, url := range p.probes {
		prober, err := newProber(url, p.transport, min(10*time.Second, p.probeInterval))
		if err != nil {
			return usagef("--probe: %w", err)
		}
		p.targets = append(p.targets, health.Target{Name: url, Probe: prober.Probe})
	}
	if len(p.targets) == 0 {
		return usagef("--probe: give at least one URL")
	}
	return nil
}

// describe is the plan for the log.
func (p *plan) describe() []any {
	return []any{"wanted", p.wanted, "pools", max(len(p.pools), 1), "probes", len(p.targets), "clients", len(p.clients), "tls", p.tls != nil}
}

var errNoToken = errors.New("no bearer token")

// tokenAdvice is how to get a token.
const tokenAdvice = `draw one by: (umask 077; echo "crawler $(openssl rand -hex 32)" > tokens), and give --token-file tokens; --anonymous serves everyone on loopback`

func (f *serveFlags) clientTokens(getenv func(string) string) (map[string]string, error) {
	text := getenv("EGRESS_TOKENS")
	from := "EGRESS_TOKENS"
	if f.tokenFile != "" {
		data, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, usagef("--token-file: %w", err)
		}
		text, from = string(data), "--token-file"
	}
	if f.anonymous {
		if text != "" {
			return nil, usagef("--anonymous: there are tokens in %s: leave one out", from)
		}
		return nil, nil
	}
	clients, err := parseTokens(text)
	if err != nil {
		return nil, usagef("%s: %w", from, err)
	}
	if len(clients) == 0 {
		return nil, advise(usagef("%s: %w: serve lends proxies to those only who have one", cmp.Or(from, "--token-file"), errNoToken), "%s", tokenAdvice)
	}
	return clients, nil
}
