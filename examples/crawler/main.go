// Command crawler fetches URLs through proxies of its own: it keeps a fleet,
// leases a proxy for each request, tries again through another one where that
// may help, and prints a JSON line for each URL.
//
//	crawler -demo
//	crawler -providers providers.yaml -provider rack-1 -size 5 urls.txt
//	crawler -server https://egress.example:8090 -token-file token urls.txt
//
// With -server it leases proxies that somebody else keeps. With -sticky each
// domain stays with one proxy and its cookies, for sites that tie a session to an
// address.
//
// Ctrl-C finishes what is in flight, a second one cuts it off; both delete the
// proxies unless -keep is given.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// options are the flags.
type options struct {
	demo        bool
	server      string
	tokenFile   string
	selector    string
	providers   string
	provider    string
	placement   provider.Placement
	size        int
	tag         string
	keyFile     string
	keep        bool
	probes      []string
	sticky      bool
	caFile      string
	clients     setup.Prefixes
	destination setup.Prefixes
	perDomain   int
	workers     int
	attempts    int
	timeout     time.Duration
	readyIn     time.Duration
	quiet       bool
	verbose     bool
	urls        string
}

func parseFlags(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("crawler", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "Usage: crawler -demo | -providers FILE | -server URL [flags] [URLS-FILE]\n"+
			"Without a file, or with -, URLs are read from standard input, one a line.\n\n")
		flags.PrintDefaults()
	}
	flags.BoolVar(&o.demo, "demo", false, "crawl a site of its own through proxies in this process")
	flags.StringVar(&o.server, "server", "", "`URL` of a lease API to lease proxies from, instead of a fleet")
	flags.StringVar(&o.tokenFile, "token-file", "", "`file` with the bearer token for -server")
	flags.StringVar(&o.selector, "selector", "", "which proxies to lease, such as 'region in (eu,us)'; all if empty")
	flags.StringVar(&o.providers, "providers", "", "providers `file`")
	flags.StringVar(&o.provider, "provider", "", "`name` of the provider; may be left out if the file has one")
	flags.StringVar(&o.placement.Zone, "zone", "", "host or zone")
	flags.StringVar(&o.placement.MachineType, "machine-type", "", "machine type")
	flags.StringVar(&o.placement.Image, "image", "", "image")
	flags.IntVar(&o.size, "size", 4, "how many proxies")
	flags.StringVar(&o.tag, "tag", "egress-crawler", "tag of the proxies; one crawler for each")
	flags.StringVar(&o.keyFile, "key-file", "", "`file` with the key for proxy passwords; needed with -keep")
	flags.BoolVar(&o.keep, "keep", false, "leave the proxies for the next run")
	probes := flags.String("probe", "https://example.com/", "`URLs` that a healthy proxy must fetch one of, separated by commas: one that is down for all does not count")
	flags.BoolVar(&o.sticky, "sticky", false, "stay with one proxy for each domain while it works, and keep cookies")
	flags.StringVar(&o.caFile, "ca", "", "PEM `file` with the roots that targets are verified by; the system's if empty")
	flags.Var(&o.clients, "clients", "`networks` that may use the proxies; any with the password, if empty")
	flags.Var(&o.destination, "destinations", "private `networks` that the proxies may lead to; none if empty")
	flags.IntVar(&o.perDomain, "per-domain", 2, "requests at a time to one domain")
	flags.IntVar(&o.workers, "workers", 16, "requests at a time")
	flags.IntVar(&o.attempts, "attempts", 4, "attempts for each URL")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Second, "of each attempt")
	flags.DurationVar(&o.readyIn, "ready-in", 20*time.Minute, "how long to wait for the first proxy")
	flags.BoolVar(&o.quiet, "quiet", false, "no progress and no summary")
	flags.BoolVar(&o.verbose, "v", false, "tell what happens to the proxies")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.urls, o.probes = flags.Arg(0), strings.Split(*probes, ",")
	return o, o.validate(flags.NArg())
}

func (o options) validate(args int) error {
	var errs []error
	require := func(ok bool, text string) {
		if !ok {
			errs = append(errs, errors.New(text))
		}
	}
	require(o.demo || o.providers != "" || o.server != "", "give a providers file by -providers or a lease API by -server, or try -demo")
	require(o.server == "" || o.providers == "", "give -providers or -server, not both")
	require(!o.demo || o.providers == "" && o.server == "" && args == 0, "-demo brings its own provider and URLs")
	require(!o.keep || o.keyFile != "", "-keep needs -key-file: the next run must know the passwords")
	require(args <= 1, "give one file of URLs")
	if _, err := lease.ParseSelector(o.selector); err != nil {
		errs = append(errs, err)
	}
	require(o.size > 0 && o.perDomain > 0 && o.workers > 0 && o.attempts > 0 && o.timeout > 0,
		"-size, -per-domain, -workers, -attempts and -timeout must be positive")
	return errors.Join(errs...)
}

// machine is the one that the flags ask for.
func (o options) machine() (setup.Machine, error) {
	m := setup.Machine{
		Key:       setup.RandomKey(),
		Placement: o.placement,
		Squid:     cloudinit.Squid{Clients: o.clients, AllowDestinations: o.destination},
	}
	if o.keyFile == "" {
		return m, nil
	}
	var err error
	m.Key, err = setup.Key(o.keyFile)
	return m, err
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // some URL was not fetched, or the crawl was broken off
	exitUsage  = 2
)

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, "crawler:", err)
		return exitUsage
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ok, err := crawlAll(context.Background(), o, signals, stdin, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "crawler:", err)
	}
	if err != nil || !ok {
		return exitFailed
	}
	return exitOK
}
