package manager

import (
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/provider"
)

// Options are what the flags and the environment say.
type Options struct {
	// Tag marks all machines of this installation.
	Tag string
	// ProvidersConfig and ProxyKeyFile are files.
	ProvidersConfig, ProxyKeyFile string
	// Namespaces are those whose Proxies are kept; that of the pod if empty.
	Namespaces []string
	// Kubeconfig is a file that says how to reach the cluster; the pod's own way if
	// empty.
	Kubeconfig string
	// PodNamespace and PodName are where this runs.
	PodNamespace, PodName string

	LeaderElect bool
	// MetricsAddr and HealthAddr listen on; "0" is not at all.
	MetricsAddr, HealthAddr string

	DiscoveryAddr               string
	DiscoveryTokens             string // a folder: a file for each client
	DiscoveryToken              string // of the environment
	DiscoveryAnonymous          bool
	DiscoveryCert, DiscoveryKey string
	LeaseTTL, LeaseMaxTTL       time.Duration
	TakeoverDelay               time.Duration
	MaxHolders                  int
	RedisURL                    string // of the environment
	RedisFresh                  bool
	ProbeURLs                   []string
	ProbeCA                     string
	ProbeInterval               time.Duration
	ProxyClients                []netip.Prefix
	ProxyDestinations           []netip.Prefix
	BootTimeout                 time.Duration
	UnhealthyTimeout            time.Duration
	DrainTimeout                time.Duration
	ReadyInterval               time.Duration
	PollInterval                time.Duration
	OrphanInterval, OrphanGrace time.Duration
	OrphanMaxPercent            int
	MaxConcurrent               int
}

// Bind adds the flags, with their defaults.
func (o *Options) Bind(fs *flag.FlagSet) {
	fs.StringVar(&o.Tag, "tag", "", "the mark on all machines of this installation: unique among all that use the same providers, and never changed; required")
	fs.StringVar(&o.ProvidersConfig, "providers-config", "/etc/egress/providers.yaml", "the providers file; the operator starts again when it changes")
	fs.StringVar(&o.ProxyKeyFile, "proxy-key-file", "/etc/egress/key/proxy-key", "a file with at least 16 random bytes, which proxy passwords are derived from; whoever changes it replaces the proxies")
	fs.Func("namespace", "a namespace whose Proxies are kept; may be repeated (default that of the pod)", appendTo(&o.Namespaces))
	fs.BoolVar(&o.LeaderElect, "leader-elect", true, "have one replica work at a time")
	fs.StringVar(&o.MetricsAddr, "metrics-bind-address", ":8080", "where Prometheus metrics are served; 0 is nowhere")
	fs.StringVar(&o.HealthAddr, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served; 0 is nowhere")
	fs.StringVar(&o.DiscoveryAddr, "discovery-bind-address", ":8090", "where leases are served; 0 is nowhere")
	fs.StringVar(&o.DiscoveryTokens, "discovery-tokens", "", "a folder with a file for each client of the discovery API: its name is the client's, its content the bearer token, at least 16 characters")
	fs.BoolVar(&o.DiscoveryAnonymous, "discovery-anonymous", false, "lease to everyone who can connect")
	fs.StringVar(&o.DiscoveryCert, "discovery-tls-cert", "", "a certificate: answers hold the proxies' passwords")
	fs.StringVar(&o.DiscoveryKey, "discovery-tls-key", "", "its key")
	fs.DurationVar(&o.LeaseTTL, "lease-ttl", time.Minute, "the length of a lease whose request names none")
	fs.DurationVar(&o.LeaseMaxTTL, "lease-max-ttl", 5*time.Minute, "the most that is granted at once; a lease may be renewed")
	fs.DurationVar(&o.TakeoverDelay, "lease-takeover-delay", 0, "how long a new leader leases nothing, until leases of the former one have run out; only without Redis (default --lease-max-ttl, and none without an election)")
	fs.IntVar(&o.MaxHolders, "lease-max-holders", 1, "how many may hold a proxy at a time")
	fs.BoolVar(&o.RedisFresh, "redis-fresh", false, "an empty database is a new fleet, and has not lost its data: for the first start alone")
	fs.Func("probe-url", "a page over https that proves a proxy; may be repeated; required", appendTo(&o.ProbeURLs))
	fs.StringVar(&o.ProbeCA, "probe-ca", "", "certificates in PEM that probed pages are verified by (default the system's)")
	fs.DurationVar(&o.ProbeInterval, "probe-interval", 15*time.Second, "the time between two probes of a healthy proxy")
	fs.Func("proxy-client", "a network that may use proxies with the operator's own Squid; may be repeated (default any, with a password)", prefixesTo(&o.ProxyClients))
	fs.Func("proxy-destination", "a private network that such proxies may reach; may be repeated (default none)", prefixesTo(&o.ProxyDestinations))
	fs.DurationVar(&o.BootTimeout, "boot-timeout", provider.BootTimeout, "how long a machine may take to run, and then again to be healthy")
	fs.DurationVar(&o.UnhealthyTimeout, "unhealthy-timeout", 2*time.Minute, "how long a proxy may be unhealthy before its machine is replaced")
	fs.DurationVar(&o.DrainTimeout, "drain-timeout", time.Minute, "how long leases may hold up a deletion")
	fs.DurationVar(&o.ReadyInterval, "ready-interval", 30*time.Second, "the time between two looks at a machine that serves")
	fs.DurationVar(&o.PollInterval, "poll-interval", 5*time.Second, "the time between two looks at one that is being made or deleted")
	fs.DurationVar(&o.OrphanInterval, "orphan-interval", 2*time.Minute, "the time between two sweeps of machines that no Proxy owns; negative is never")
	fs.DurationVar(&o.OrphanGrace, "orphan-grace", 10*time.Minute, "how old such a machine is at least")
	fs.IntVar(&o.OrphanMaxPercent, "orphan-max-percent", 50, "the share of a provider's machines without a Proxy above which nothing is swept; 100 believes any list")
	fs.IntVar(&o.MaxConcurrent, "max-concurrent-reconciles", 8, "how many Proxies are worked on at a time")
}

// Environ reads what has no flag, so that it stands in no list of processes.
func (o *Options) Environ() {
	o.DiscoveryToken = os.Getenv("DISCOVERY_TOKEN")
	o.RedisURL = os.Getenv("EGRESS_REDIS")
	o.PodNamespace, o.PodName = os.Getenv("POD_NAMESPACE"), os.Getenv("POD_NAME")
}

func appendTo(list *[]string) func(string) error {
	return func(s string) error {
		*list = append(*list, s)
		return nil
	}
}

func prefixesTo(list *[]netip.Prefix) func(string) error {
	return func(s string) error {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("%q is no network: write it like 192.0.2.0/24", s)
		}
		*list = append(*list, prefix.Masked())
		return nil
	}
}

// Validate reports all that is wrong, joined, each with what to do.
func (o *Options) Validate() error {
	var errs []error
	if o.Tag == "" {
		errs = append(errs, errors.New("--tag is required: a name for this installation that no other one on the same providers has, such as crawl-prod-eu"))
	} else if err := provider.ValidTag(o.Tag); err != nil {
		errs = append(errs, fmt.Errorf("--tag: %w", err))
	}
	if len(o.namespaces()) == 0 {
		errs = append(errs, errors.New("--namespace is required outside a pod; in one, set POD_NAMESPACE by the downward API"))
	}
	if o.LeaderElect && o.PodNamespace == "" {
		errs = append(errs, errors.New("POD_NAMESPACE is required to elect a leader: set it, or --leader-elect=false where there is one replica"))
	}
	if len(o.ProbeURLs) == 0 {
		errs = append(errs, errors.New("--probe-url is required: a page over https that you may ask for every few seconds from each proxy, best one of your own"))
	}
	for _, raw := range o.ProbeURLs {
		if u, err := url.Parse(raw); err != nil || u.Scheme != "https" || u.Host == "" {
			errs = append(errs, errors.New("--probe-url: not a URL of the form https://host/path"))
		}
	}
	if o.DiscoveryAddr != "0" && o.DiscoveryToken == "" && o.DiscoveryTokens == "" && !o.DiscoveryAnonymous {
		errs = append(errs, errors.New("the discovery API has no token: set DISCOVERY_TOKEN or --discovery-tokens, or --discovery-anonymous where everyone who can connect may lease, or --discovery-bind-address=0"))
	}
	if (o.DiscoveryCert == "") != (o.DiscoveryKey == "") {
		errs = append(errs, errors.New("--discovery-tls-cert and --discovery-tls-key go together"))
	}
	if _, err := o.redis(); err != nil {
		errs = append(errs, err)
	}
	if o.OrphanMaxPercent < 1 || o.OrphanMaxPercent > 100 {
		errs = append(errs, fmt.Errorf("--orphan-max-percent: %d is not from 1 to 100; --orphan-interval=-1s sweeps nothing", o.OrphanMaxPercent))
	}
	return errors.Join(errs...)
}

func (o *Options) namespaces() []string {
	if len(o.Namespaces) > 0 || o.PodNamespace == "" {
		return o.Namespaces
	}
	return []string{o.PodNamespace}
}

// redis is where leases are shared; nil where they are not. The URL may hold a
// password, and so no error tells it.
func (o *Options) redis() (*redis.Options, error) {
	if o.RedisURL == "" {
		return nil, nil
	}
	at, err := redis.ParseURL(o.RedisURL)
	if err != nil {
		return nil, errors.New("EGRESS_REDIS: write it like rediss://USER:PASSWORD@HOST:6379/0, redis:// or unix://")
	}
	return at, nil
}

// clients are the tokens by the clients' names.
func (o *Options) clients() (map[string]string, error) {
	clients := map[string]string{}
	if o.DiscoveryToken != "" {
		clients["crawler"] = strings.TrimSpace(o.DiscoveryToken)
	}
	if o.DiscoveryTokens == "" {
		return clients, nil
	}
	entries, err := os.ReadDir(o.DiscoveryTokens)
	if err != nil {
		return nil, fmt.Errorf("--discovery-tokens: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, "..") { // how a mounted Secret is kept up to date
			continue
		}
		token, err := os.ReadFile(filepath.Join(o.DiscoveryTokens, name))
		if err != nil {
			return nil, fmt.Errorf("--discovery-tokens: %w", err)
		}
		clients[name] = strings.TrimSpace(string(token))
	}
	if len(clients) == 0 {
		return nil, fmt.Errorf("--discovery-tokens: %s has no file in it: each client needs one", o.DiscoveryTokens)
	}
	return clients, nil
}

func (o *Options) roots() (*x509.CertPool, error) {
	if o.ProbeCA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.ProbeCA)
	if err != nil {
		return nil, fmt.Errorf("--probe-ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--probe-ca: %s holds no certificate in PEM", o.ProbeCA)
	}
	return roots, nil
}
