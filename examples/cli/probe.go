package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/health"
)

// probeFlags say how proxies are probed.
type probeFlags struct {
	url string
	ca  string
}

func (f *probeFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "probe", "https://example.com/", "`URL` that must be fetched through the proxy")
	registerProbeCA(flags, &f.ca)
}

func registerProbeCA(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "probe-ca", "", "PEM `file` with the authorities that its certificate is verified by; the system's if empty")
}

func (f *probeFlags) prober(timeout time.Duration) (*health.Prober, error) {
	roots, err := setup.Roots(f.ca)
	if err != nil {
		return nil, usagef("--probe-ca: %w", err)
	}
	p, err := newProber(f.url, endpoint.TransportConfig{TargetRoots: roots}, timeout)
	if err != nil {
		return nil, usagef("--probe: %w", err)
	}
	return p, nil
}

func newProber(url string, transport endpoint.TransportConfig, timeout time.Duration) (*health.Prober, error) {
	return health.NewProber(health.ProbeConfig{URL: url, Timeout: timeout, Transport: transport, Echo: echo})
}

// echo reads the address from the answer of a target that tells it, and nothing
// from any other.
func echo(body []byte) (health.Echo, error) {
	for _, read := range []health.EchoFunc{health.EchoText, health.EchoJSON} {
		if e, err := read(body); err == nil {
			return e, nil
		}
	}
	return health.Echo{}, nil
}

const probeHelp = `Fetch a page through proxies, and tell how long each stage took.

Proxies are given by URL, or by --name for instances of --tag. A URL with a
password is better read from standard input, by the argument -, than given where
other users of this machine can see it. One that fetches the page is Healthy;
below any other stands the stage that failed. The exit code is 1 if one is not
Healthy.

Where the target answers with nothing but the address that it sees, or with JSON
that has it under "ip" or "origin", that is told as EGRESS.`

// probeCommandFlags are the flags of probe.
type probeCommandFlags struct {
	probeFlags
	names   []string
	keyFile string
	timeout time.Duration
}

func (a *app) probeCommand() *cobra.Command {
	var f probeCommandFlags
	cmd := &cobra.Command{
		Use: "probe [URL|-]...", Short: "Fetch through proxies, and tell how they fare", Long: probeHelp,
		Example: `  egressctl probe http://192.0.2.7:3128
  egressctl ls --show-urls -o json | jq -r '.instances[].url' | egressctl probe -
  egressctl probe --name proxy-abcdefghijklmnop --probe https://ip.example.com/`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args)+len(f.names) == 0 {
				return usagef("give the URLs of proxies, - to read them from standard input, or --name")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.probe(cmd.Context(), &f, args) },
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.StringArrayVar(&f.names, "name", nil, "`instance` to probe, by name, ID or UID; may be given more than once")
	flags.DurationVar(&f.timeout, "timeout", 20*time.Second, "how long each probe may take")
	registerKeyFile(flags, &f.keyFile)
	return cmd
}

func (a *app) probe(ctx context.Context, f *probeCommandFlags, args []string) error {
	if f.timeout <= 0 {
		return usagef("--timeout must be positive")
	}
	prober, err := f.prober(f.timeout)
	if err != nil {
		return err
	}
	proxies, err := a.proxies(args)
	if err != nil {
		return err
	}
	if len(f.names) > 0 {
		named, err := a.named(ctx, f)
		if err != nil {
			return err
		}
		proxies = append(proxies, named...)
	}
	results := make([]health.Result, len(proxies))
	each(len(proxies), func(i int) { results[i] = prober.Probe(ctx, proxies[i]) })
	if err := ctx.Err(); err != nil {
		return err
	}
	return a.writeProbes(f.url, proxies, results)
}

// proxies are the endpoints of the URLs that are given, or stand in standard input.
func (a *app) proxies(args []string) (all []endpoint.Endpoint, err error) {
	for _, arg := range args {
		urls := []string{arg}
		if arg == "-" {
			if urls, err = fields(a.stdin); err != nil {
				return nil, err
			}
		}
		for _, text := range urls {
			url, err := endpoint.ParseURL(text)
			if err != nil {
				return nil, asUsage(err)
			}
			if password, _ := url.User().Password(); arg != "-" && password != "" {
				a.screen.say("the password of %s can be read in this machine's list of processes: give URLs on standard input, by -", url)
			}
			all = append(all, endpoint.Endpoint{ID: fmt.Sprint(len(all) + 1), URL: url})
		}
	}
	return all, nil
}

func fields(r io.Reader) (all []string, err error) {
	words := bufio.NewScanner(r)
	words.Split(bufio.ScanWords)
	for words.Scan() {
		all = append(all, words.Text())
	}
	if len(all) == 0 && words.Err() == nil {
		return nil, usagef("standard input has no URL")
	}
	return all, words.Err()
}

// named are the endpoints of instances.
func (a *app) named(ctx context.Context, f *probeCommandFlags) (all []endpoint.Endpoint, err error) {
	key, err := readKey(f.keyFile, existingKey)
	if err != nil {
		return nil, err
	}
	err = a.withSession(func(s *session) error {
		for _, name := range f.names {
			in, err := a.find(ctx, s, "get", name)
			if err != nil {
				return err
			}
			e, err := endpointOf(s.p, key, in)
			if err != nil {
				return advise(err, "see its state: %s", a.command("get", in.Name))
			}
			all = append(all, e)
		}
		return nil
	})
	return all, err
}

// probed is one of the result for machines.
type probed struct {
	// Name is that of the instance, where it is one.
	Name     string          `json:"name,omitempty"`
	Proxy    string          `json:"proxy"`
	Target   string          `json:"target"`
	Health   endpoint.Health `json:"health"`
	Status   int             `json:"status,omitempty"`
	EgressIP string          `json:"egressIP,omitempty"`
	Leaks    []string        `json:"leaks,omitempty"`
	// Milliseconds are by stage; those that were not reached are left out.
	Milliseconds map[string]float64 `json:"milliseconds"`
	Stage        string             `json:"stage,omitempty"`
	Error        string             `json:"error,omitempty"`
}

func describeProbe(target string, e endpoint.Endpoint, r health.Result) probed {
	out := probed{Proxy: e.URL.String(), Target: target, Health: endpoint.Healthy, Status: r.Status, Leaks: r.Leaks, Milliseconds: map[string]float64{}}
	if strings.HasPrefix(e.ID, "proxy-") {
		out.Name = e.ID
	}
	if r.EgressIP.IsValid() {
		out.EgressIP = r.EgressIP.String()
	}
	for _, stage := range stagesOf(r.Timings) {
		if stage.took > 0 {
			out.Milliseconds[stage.name] = float64(stage.took.Microseconds()) / 1000
		}
	}
	if r.Err != nil {
		out.Health, out.Error = endpoint.Unhealthy, r.Err.Error()
		if r.Stage() != 0 {
			out.Stage = r.Stage().String()
		}
	}
	return out
}

// stageTime is how long a stage took.
type stageTime struct {
	name, column string
	took         time.Duration
}

func stagesOf(t health.Timings) []stageTime {
	return []stageTime{
		{"total", "TOTAL", t.Total}, {"dial", "DIAL", t.Dial}, {"proxyTLS", "PROXY-TLS", t.ProxyTLS}, {"connect", "CONNECT", t.Connect},
		{"targetTLS", "TARGET-TLS", t.TargetTLS}, {"request", "REQUEST", t.Request}, {"body", "BODY", t.Body},
	}
}

func (a *app) writeProbes(target string, proxies []endpoint.Endpoint, results []health.Result) error {
	all := make([]probed, 0, len(results))
	t := table{header: []string{"PROXY", "HEALTH", "STATUS", "EGRESS"}}
	for _, stage := range stagesOf(health.Timings{}) {
		t.header = append(t.header, stage.column)
	}
	for i, r := range results {
		p := describeProbe(target, proxies[i], r)
		all = append(all, p)
		cells := []string{p.Proxy, string(p.Health), orDash(p.Status), p.EgressIP}
		for _, stage := range stagesOf(r.Timings) {
			cells = append(cells, shownTime(stage.took))
		}
		t.add(cells...)
		t.below("%s", p.Error)
		t.below("the target can tell that a proxy is used, by the headers %s", strings.Join(p.Leaks, ", "))
	}
	var err error
	if a.flags.output == outputJSON {
		err = a.writeJSON(map[string]any{"probes": all})
	} else {
		err = a.printTable(t)
	}
	return errors.Join(err, unhealthy(results))
}

func shownTime(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.Round(100 * time.Microsecond).String()
}

// unhealthy is the error of probes of which some failed, with the advice for the
// first.
func unhealthy(results []health.Result) error {
	bad := slices.DeleteFunc(slices.Clone(results), func(r health.Result) bool { return r.Err == nil })
	if len(bad) == 0 {
		return nil
	}
	return advise(fmt.Errorf("%d of %d proxies are not healthy", len(bad), len(results)), "%s", afterFailed(bad[0].Err))
}

// afterFailed is what to do about a proxy that is there already.
func afterFailed(err error) string {
	var failed *endpoint.Error
	errors.As(err, &failed)
	switch {
	case failed == nil || failed.Stage <= endpoint.StageProxyTLS:
		return "no proxy listens there, or this machine cannot reach it: see an instance's state by get, and how it booted by console"
	case failed.Status == http.StatusProxyAuthRequired:
		return "the proxy does not know the password: was it made with another --key-file?"
	case failed.Status == http.StatusForbidden:
		return "the proxy refuses: its --destinations, --connect-ports and --clients are chosen when it is made, by up"
	case failed.Stage == endpoint.StageTargetTLS:
		return "name the target's certificate authority by --probe-ca, or another target by --probe"
	}
	return "check that the proxy has a way out and a resolver, or name another target by --probe"
}
