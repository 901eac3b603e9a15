package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/connectproxy"
)

const (
	liveProxies  = 500
	deadProxies  = 500
	concurrency  = 50
	probeTimeout = 20 * time.Second
	probeRounds  = 3
	verdictRuns  = 20
)

var probeTargets = []target{
	{"probe-blackbox", ">=", 1.5, func() (float64, string, error) { return withFarm(besideBlackbox) }},
	{"probe-wrong-verdicts", "<=", 0, func() (float64, string, error) { return withFarm(wrongVerdicts) }},
}

// farm is what the child process serves: proxies that live, closed ports, and a
// target behind the live ones.
type farm struct {
	Live, Dead []string
	Target     string
	CA         string
}

// serveFarm is the child process. It prints its farm and serves until its standard
// input ends.
func serveFarm() {
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	f := farm{
		Target: "https://example.com/",
		CA:     string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: site.Certificate().Raw})),
	}
	for range liveProxies {
		p, err := connectproxy.Start(connectproxy.Config{Resolve: map[string]string{"example.com": site.Listener.Addr().String()}})
		must(err)
		f.Live = append(f.Live, p.Addr().String())
	}
	for range deadProxies {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		f.Dead = append(f.Dead, l.Addr().String())
		must(l.Close())
	}
	must(json.NewEncoder(os.Stdout).Encode(f))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// withFarm runs measure against a farm in a process of its own, so that what it
// costs is nobody's.
func withFarm(measure func(farm) (float64, string, error)) (float64, string, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, "", err
	}
	cmd := exec.Command(self, "-farm")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, "", err
	}
	if err := cmd.Start(); err != nil {
		return 0, "", err
	}
	defer func() { _ = stdin.Close(); _ = cmd.Wait() }()
	var f farm
	if err := json.NewDecoder(stdout).Decode(&f); err != nil {
		return 0, "", err
	}
	return measure(f)
}

// eachProxy calls probe for every proxy, so many at a time, and returns how many
// verdicts were wrong and how long it took.
func eachProxy(f farm, probe func(i int, address string) bool) (wrong int64, took time.Duration) {
	var wrongs atomic.Int64
	places := make(chan struct{}, concurrency)
	var probes sync.WaitGroup
	began := time.Now()
	for i := range f.Live {
		for dead, address := range []string{f.Live[i], f.Dead[i]} {
			places <- struct{}{}
			probes.Go(func() {
				defer func() { <-places }()
				if probe(2*i+dead, address) != (dead == 0) {
					wrongs.Add(1)
				}
			})
		}
	}
	probes.Wait()
	return wrongs.Load(), time.Since(began)
}

func ourProbe(f farm) (func(int, string) bool, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(f.CA))
	prober, err := health.NewProber(health.ProbeConfig{
		URL: f.Target, Timeout: probeTimeout, Transport: endpoint.TransportConfig{TargetRoots: roots},
	})
	return func(_ int, address string) bool {
		url, err := endpoint.NewURL("http", address, "", "")
		must(err)
		return prober.Probe(context.Background(), endpoint.Endpoint{ID: address, URL: url}).Err == nil
	}, err
}

func wrongVerdicts(f farm) (float64, string, error) {
	probe, err := ourProbe(f)
	if err != nil {
		return 0, "", err
	}
	var wrong int64
	for range verdictRuns {
		n, _ := eachProxy(f, probe)
		wrong += n
	}
	return float64(wrong), fmt.Sprintf("%d of %d verdicts in %d runs were wrong", wrong, verdictRuns*(liveProxies+deadProxies), verdictRuns), nil
}

func besideBlackbox(f farm) (float64, string, error) {
	ours, err := ourProbe(f)
	if err != nil {
		return 0, "", err
	}
	theirs, end, err := startBlackbox(f)
	if err != nil {
		return 0, "", err
	}
	defer end()
	total := float64(len(f.Live) + len(f.Dead))
	var a, b []float64
	var wrong int64
	for range probeRounds {
		n, took := eachProxy(f, ours)
		a, wrong = append(a, total/took.Seconds()), wrong+n
		_, took = eachProxy(f, theirs)
		b = append(b, total/took.Seconds())
	}
	return median(a) / median(b), fmt.Sprintf("ours %s, blackbox_exporter %s probes/s (median, least to most of %d rounds, %d at a time), %d wrong verdicts of ours",
		spread(a), spread(b), probeRounds, concurrency, wrong), nil
}

// startBlackbox runs blackbox_exporter with a module for each proxy, which is its
// way to check many.
func startBlackbox(f farm) (probe func(int, string) bool, end func(), err error) {
	path, err := exec.LookPath("prometheus-blackbox-exporter")
	if err != nil {
		return nil, nil, skipped("blackbox_exporter is not installed: apt-get install prometheus-blackbox-exporter")
	}
	dir, err := os.MkdirTemp("", "egress-bench")
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	address := listener.Addr().String()
	must(listener.Close())
	must(os.WriteFile(filepath.Join(dir, "ca.pem"), []byte(f.CA), 0o600))
	must(os.WriteFile(filepath.Join(dir, "blackbox.yml"), blackboxConfig(f, dir), 0o600))
	var output bytes.Buffer
	cmd := exec.Command(path, "--config.file="+filepath.Join(dir, "blackbox.yml"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = os.RemoveAll(dir) }
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: concurrency}}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := client.Get("http://" + address + "/-/healthy"); err == nil {
			_ = resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			end()
			return nil, nil, errors.New("blackbox_exporter does not answer: " + output.String())
		}
	}
	return func(i int, _ string) bool {
		resp, err := client.Get(fmt.Sprintf("http://%s/probe?module=p%d&target=%s", address, i, url.QueryEscape(f.Target)))
		must(err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must(err)
		return strings.Contains(string(text), "\nprobe_success 1")
	}, end, nil
}

func blackboxConfig(f farm, dir string) []byte {
	var b bytes.Buffer
	b.WriteString("modules:\n")
	for i := range f.Live {
		for dead, address := range []string{f.Live[i], f.Dead[i]} {
			fmt.Fprintf(&b, "  p%d: {prober: http, timeout: %v, http: {proxy_url: 'http://%s', skip_resolve_phase_with_proxy: true, preferred_ip_protocol: ip4, valid_status_codes: [200], tls_config: {ca_file: '%s/ca.pem'}}}\n",
				2*i+dead, probeTimeout, address, dir)
		}
	}
	return b.Bytes()
}
