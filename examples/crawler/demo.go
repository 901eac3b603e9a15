package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/provider/local"
)

// The hosts of the demo's site. No resolver knows them: the proxies map them.
var demoHosts = []string{"news.test", "shop.test", "slow.test", "picky.test"}

const (
	pagesPerHost = 16
	pickyLimit   = 5 // pages that picky.test gives to one proxy before it bans it
)

// demo is a site on loopback, proxies in this process, and a death half-way.
type demo struct {
	host *local.Host
	p    *local.Provider
	site *http.Server
	kill sync.Once

	mu   sync.Mutex
	seen map[string]int // pages that picky.test gave, by proxy
}

// openDemo starts the site and returns it as a source.
func openDemo(o options) (source, error) {
	d := &demo{seen: map[string]int{}}
	certificate, roots, err := demoCertificate(demoHosts...)
	if err != nil {
		return source{}, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return source{}, err
	}
	d.site = &http.Server{
		Handler: d, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
	}
	go func() { _ = d.site.ServeTLS(listener, "", "") }()
	machine, err := o.machine()
	if err == nil {
		err = d.startProxies(machine, listener.Addr().String())
	}
	if err != nil {
		return source{}, errors.Join(err, d.close())
	}
	return source{
		provider: d.p, machine: machine, probes: []string{"https://news.test/health", "https://shop.test/health"}, urls: strings.NewReader(demoURLs()),
		transport: endpoint.TransportConfig{TargetRoots: roots},
		ca:        pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		onResult:  d.onResult, close: []func() error{d.close},
	}, nil
}

func (d *demo) startProxies(machine setup.Machine, site string) error {
	resolve := map[string]string{}
	for _, host := range demoHosts {
		resolve[host] = site
	}
	var err error
	if d.host, err = local.NewHost(local.HostConfig{BootDelay: 200 * time.Millisecond, Resolve: resolve}); err != nil {
		return err
	}
	d.p, err = local.New(local.Config{
		Host: d.host, Name: "demo",
		Credentials: func(uid string) (string, string) {
			password, _ := fleet.DerivePassword(machine.Key, uid) // the key is long enough
			return "crawler", password
		},
	})
	return err
}

func demoURLs() string {
	var b strings.Builder
	for page := range pagesPerHost {
		for _, host := range demoHosts {
			fmt.Fprintf(&b, "https://%s/page/%d\n", host, page)
		}
	}
	return b.String()
}

// onResult kills a proxy when half of the URLs are done.
func (d *demo) onResult(done int, say func(string, ...any)) {
	if 2*done < pagesPerHost*len(demoHosts) {
		return
	}
	d.kill.Do(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for id := range d.seen {
			say("demo: killing %s", id)
			_ = d.host.Inject(id, local.Crash)
			return
		}
	})
}

// ServeHTTP is the site: every host in one.
func (d *demo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(50 * time.Millisecond)
	host, _, _ := strings.Cut(r.Host, ":")
	switch host {
	case "slow.test":
		time.Sleep(500 * time.Millisecond)
	case "picky.test":
		if d.banned(r) {
			w.Header().Set("Retry-After", "60")
			http.Error(w, "too many requests from your address", http.StatusTooManyRequests)
			return
		}
	}
	if _, err := r.Cookie("basket"); host == "shop.test" && err != nil {
		http.SetCookie(w, &http.Cookie{Name: "basket", Value: "empty", Path: "/"})
		fmt.Fprintln(w, "welcome")
	}
	fmt.Fprintf(w, "<html><title>%s%s</title>%s</html>\n", host, r.URL.Path, strings.Repeat("lorem ipsum ", len(r.URL.Path)))
}

// banned counts a request of a proxy. On loopback all proxies have one address,
// so their host tells them apart.
func (d *demo) banned(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return true
	}
	id, _ := d.host.Origin(remote)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen[id]++
	return d.seen[id] > pickyLimit
}

func (d *demo) close() error {
	if d.host != nil {
		d.host.Close()
	}
	return d.site.Close()
}

// demoCertificate makes a certificate for the hosts, and the roots that trust it.
func demoCertificate(hosts ...string) (tls.Certificate, *x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "egress demo"}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots, nil
}
