package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/mdtest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

const testToken = "a-token-of-32-random-characters!"

// serving is serve at work.
type serving struct {
	*world
	stderr      *trigger
	api, status string
	client      *http.Client
	done        chan int
}

// serve starts it on free ports, and waits until it listens.
func (w *world) serve(args ...string) *serving {
	w.t.Helper()
	var stdout bytes.Buffer
	s := &serving{world: w, stderr: &trigger{signals: w.signals}, done: make(chan int, 1), client: &http.Client{Transport: &http.Transport{}}}
	a := newApp(strings.NewReader(""), &stdout, s.stderr)
	a.types, a.signals, a.inProcess = w.types, w.signals, func(provider.Provider) bool { return false }
	a.poll = 5 * time.Millisecond
	if w.change != nil {
		w.change(a)
	}
	all := append([]string{
		"--providers", w.path("providers.yaml"), "serve", "--listen", "127.0.0.1:0", "--status-listen", "127.0.0.1:0",
		"--key-file", w.path("key"), "--probe-ca", w.path("ca.pem"), "--probe-interval", "1s", "--drain", "5s",
		"--token-file", w.write("tokens", "# for tests\nscraper "+testToken+"\n"),
	}, args...)
	go func() { s.done <- a.run(context.Background(), all) }()
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Log(s.stderr.String())
		}
		s.client.CloseIdleConnections()
	})
	s.api = s.find(`lease API"? url=(\S+)|"serving the lease API","url":"([^"]+)"`)
	s.status = s.find(`readiness"? url=(\S+)|"serving the metrics and readiness","url":"([^"]+)"`)
	return s
}

// find waits for a text on standard error, and returns what its groups match.
func (s *serving) find(pattern string) string {
	s.t.Helper()
	var found string
	require.Eventually(s.t, func() bool {
		m := regexp.MustCompile(pattern).FindStringSubmatch(s.stderr.String())
		found = strings.Join(m, "")
		if len(m) > 1 {
			found = strings.Join(m[1:], "")
		}
		return m != nil
	}, 10*time.Second, 2*time.Millisecond, "%s", pattern)
	return found
}

// end interrupts it, and returns its exit code.
func (s *serving) end() int {
	s.t.Helper()
	s.signals <- syscall.SIGTERM
	return s.wait()
}

func (s *serving) wait() int {
	s.t.Helper()
	select {
	case code := <-s.done:
		return code
	case <-time.After(20 * time.Second):
		s.t.Fatal("serve does not end:\n" + s.stderr.String())
		return 0
	}
}

// get fetches from the second listener.
func (s *serving) get(path string) (int, string) {
	s.t.Helper()
	resp, err := s.client.Get(s.status + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return resp.StatusCode, string(text)
}

func (s *serving) ready() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		status, _ := s.get("/readyz")
		return status == http.StatusOK
	}, 10*time.Second, 5*time.Millisecond)
}

// answer is what a client in any language reads.
type answer struct {
	ID       string `json:"id"`
	Token    string `json:"token"`
	Endpoint struct {
		ID         string            `json:"id"`
		URL        string            `json:"url"`
		Attributes map[string]string `json:"attributes"`
	} `json:"endpoint"`
	Error struct {
		Code string `json:"code"`
	} `json:"error"`
}

// call sends a request to the API, as any program would.
func (s *serving) call(token, path, body string) (int, answer) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.api+path, strings.NewReader(body))
	require.NoError(s.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, answer{}
	}
	defer resp.Body.Close()
	var out answer
	if resp.StatusCode != http.StatusNoContent {
		require.NoError(s.t, json.NewDecoder(resp.Body).Decode(&out))
	}
	return resp.StatusCode, out
}

func (s *serving) lease() answer {
	s.t.Helper()
	status, l := s.call(testToken, "/v1/leases?wait=10s", `{"holder": "worker-1", "domain": "example.com"}`)
	require.Equal(s.t, http.StatusCreated, status)
	return l
}

func (s *serving) release(l answer) int {
	status, _ := s.call(testToken, "/v1/leases/"+l.ID+"/release", `{"token": "`+l.Token+`"}`)
	return status
}

// tagged are the instances of serve's tag.
func (w *world) tagged() []provider.Instance {
	w.t.Helper()
	all, err := w.provider().ListByTag(context.Background(), serveTag)
	require.NoError(w.t, err)
	return all
}

func TestServeLendsProxies(t *testing.T) {
	w := newWorld(t, local.HostConfig{BootDelay: 10 * time.Millisecond})
	s := w.serve("--size", "2")
	l := s.lease()
	assert.Equal(t, http.StatusOK, w.fetch(l.Endpoint.URL))
	s.ready()
	status, _ := s.call(testToken, "/v1/leases/"+l.ID+"/report", `{"token": "`+l.Token+`", "outcome": "ok", "domain": "example.com"}`)
	assert.Equal(t, http.StatusNoContent, status)
	assert.Equal(t, http.StatusNoContent, s.release(l))

	for _, token := range []string{"", "another-token-of-32-characters!!"} {
		status, refused := s.call(token, "/v1/leases", `{"holder": "worker-1"}`)
		assert.Equal(t, http.StatusUnauthorized, status)
		assert.Equal(t, "unauthorized", refused.Error.Code)
	}
	status, text := s.get("/healthz")
	assert.Equal(t, http.StatusOK, status, text)
	_, metrics := s.get("/metrics")
	for _, want := range []string{
		`egress_lease_events_total{event="acquired"} 1`, `egress_lease_outcomes_total{outcome="ok"} 1`, `egress_fleet_wanted{pool=""} 2`,
		`egress_provider_calls_total{class="ok",op="Create",provider="dev"}`, `egress_health_endpoints{health="Healthy"}`, "go_goroutines", "process_open_fds",
	} {
		assert.Contains(t, metrics, want)
	}
	assert.NotContains(t, s.stderr.String(), testToken)
	password := strings.SplitN(strings.TrimPrefix(l.Endpoint.URL, "http://crawler:"), "@", 2)[0]
	assert.NotContains(t, s.stderr.String(), password)

	assert.Equal(t, exitOK, s.end(), "SIGTERM is its usual end")
	assert.Len(t, w.tagged(), 2, "the proxies stay")
	assert.Contains(t, s.stderr.String(), "the proxies stay for the next start instances=2")
	assert.Contains(t, s.stderr.String(), "--tag egressctl-serve rm --all")
}

// A restart finds the proxies by tag, with their passwords.
func TestServeAdoptsWhatTheFormerLeft(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	s := w.serve("--size", "2")
	s.find(`healthy=2 wanted=2`)
	require.Equal(t, exitOK, s.end())
	before := w.tagged()
	require.Len(t, before, 2)

	s = w.serve("--size", "2")
	l := s.lease()
	assert.Contains(t, []string{before[0].Name, before[1].Name}, l.Endpoint.ID)
	assert.Equal(t, http.StatusOK, w.fetch(l.Endpoint.URL))
	assert.Equal(t, http.StatusNoContent, s.release(l))
	_, metrics := s.get("/metrics")
	assert.Contains(t, metrics, `egress_fleet_events_total{type="Adopted"} 2`)
	assert.NotContains(t, metrics, `type="Creating"`)
	assert.Equal(t, exitOK, s.end())
	assert.Equal(t, before, w.tagged())
	assert.Contains(t, w.run("ls", "--tag", serveTag, "--show-urls", "--key-file", w.path("key")).stdout, "http://crawler:")
}

func TestServeDrainsBeforeItEnds(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	s := w.serve("--drain", "1m")
	l := s.lease()
	s.ready()
	waiting := make(chan int, 1)
	go func() {
		status, _ := s.call(testToken, "/v1/leases?wait=30s", `{"holder": "worker-2", "requestId": "r-2"}`)
		waiting <- status
	}()
	require.Eventually(t, func() bool {
		_, metrics := s.get("/metrics")
		return strings.Contains(metrics, "egress_lease_waiting 1")
	}, 10*time.Second, 5*time.Millisecond)
	s.signals <- syscall.SIGTERM
	assert.Equal(t, http.StatusServiceUnavailable, <-waiting, "who waits is told at once")
	status, refused := s.call(testToken, "/v1/leases?wait=10s", `{"holder": "worker-3"}`)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Equal(t, "unavailable", refused.Error.Code)
	status, text := s.get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Equal(t, "ending\n", text)
	status, _ = s.call(testToken, "/v1/leases/"+l.ID+"/renew", `{"token": "`+l.Token+`"}`)
	assert.Equal(t, http.StatusOK, status, "who holds a lease may go on")
	assert.Equal(t, http.StatusOK, w.fetch(l.Endpoint.URL))
	assert.Equal(t, http.StatusNoContent, s.release(l))
	assert.Equal(t, exitOK, s.wait())
	assert.NotContains(t, s.stderr.String(), "cut off")
}

func TestServeDoesNotWaitForLeasesForEver(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	s := w.serve("--drain", "20ms")
	s.lease()
	assert.Equal(t, exitOK, s.end())
	assert.Contains(t, s.stderr.String(), "leases are cut off")
	assert.Contains(t, s.stderr.String(), "leases=1")
}

func TestTheSecondInterruptEndsServeAtOnce(t *testing.T) {
	w := newWorld(t, local.HostConfig{DeleteDelay: time.Hour})
	s := w.serve("--drain", "1h", "--teardown")
	s.lease()
	s.signals <- os.Interrupt
	s.find("no more leases are granted")
	s.signals <- os.Interrupt
	assert.Equal(t, exitInterrupted, s.wait())
	assert.Contains(t, s.stderr.String(), "delete what is left by: egressctl")
	assert.Len(t, w.tagged(), 1)
}

func TestServeTeardownDeletesTheProxies(t *testing.T) {
	w := newWorld(t, local.HostConfig{DeleteDelay: 20 * time.Millisecond})
	s := w.serve("--size", "3", "--teardown")
	s.find(`healthy=3 wanted=3`)
	assert.Equal(t, exitOK, s.end())
	assert.Empty(t, w.tagged())
}

func TestServePools(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	pools := w.write("pools.yaml", `
pools:
  - {name: cheap, size: 2, attributes: {class: cheap}}
  - {name: eu, size: 1, zone: local, maxAge: 24h, attributes: {region: eu}}
`)
	s := w.serve("--pools", pools, "--ready", "3")
	s.ready()
	status, l := s.call(testToken, "/v1/leases?wait=10s", `{"holder": "worker-1", "selector": "region=eu"}`)
	require.Equal(t, http.StatusCreated, status)
	assert.Equal(t, "eu", l.Endpoint.Attributes["pool"])
	status, none := s.call(testToken, "/v1/leases", `{"holder": "worker-1", "selector": "region=us"}`)
	assert.Equal(t, http.StatusNotFound, status)
	assert.Equal(t, "no_match", none.Error.Code)
	s.release(l)
	assert.Equal(t, exitOK, s.end())
	byPool := map[string]int{}
	for _, in := range w.tagged() {
		byPool[in.Metadata["egress-pool"]]++
		assert.Equal(t, fingerprint(w.key), in.Metadata[metaKey])
	}
	assert.Equal(t, map[string]int{"cheap": 2, "eu": 1}, byPool)
}

// Before anything is made, and by field.
func TestWhatIsWrongWithPoolsIsTold(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string]string{
		"": "pools: list at least one",
		"pools: [{name: eu, size: 1}]\n---\npools: [{name: us, size: 1}]": "the file must be one YAML document",
		"crawler " + long: "the file must have a list, pools: it: has the wrong kind, string",
		long + ": 1":      `the file must have a list, pools: json: unknown field "…"`,
		"pools: {eu: 3}":  "pools: has the wrong kind, object",
		"pools: [{name: eu}, {name: us, size: many}]":                         "pools[1]: size: has the wrong kind, string",
		"pools: [{name: eu, maxAge: soon}]":                                   `pools[0]: "soon" is no duration`,
		"pools: [{name: eu, size: 1, size: 2}]":                               `key "size" already set`,
		"pools: [{size: 1, attributes: {class: cheap}}]":                      "pools[0].name: ", // they were dropped
		"pools: [{name: eu}, {name: eu}]":                                     `pools[1].name: "eu": is used twice`,
		"pools: [{name: eu, size: -1, maxAge: -1s}]":                          "pools[0].size: -1: must not be negative\npools[0].maxAge: -1s: must not be negative",
		"pools: [{name: " + long + "}]":                                       `pools[0].name: "…": must be 2 to 63`,
		"pools: [{name: eu, size: 9223372036854775807}, {name: us, size: 1}]": "pools[1].size: makes more than can be counted",
	} {
		_, err := parsePools([]byte(text))
		require.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), long)
	}
	one, err := parsePools([]byte("pools: [{size: 3}]"))
	require.NoError(t, err, "one kind needs no name")
	assert.Equal(t, 3, one[0].Size)
}

// writeCertificate makes a certificate for loopback and the names given.
func (w *world) writeCertificate(serial int64, names ...string) *x509.CertPool {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(w.t, err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames: names, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	require.NoError(w.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(w.t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	w.write("tls.crt", string(text))
	w.write("tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return roots
}

func (s *serving) trust(roots *x509.CertPool) {
	s.client.CloseIdleConnections()
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
}

func TestServeOverTLS(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	roots := w.writeCertificate(1)
	s := w.serve("--tls-cert", w.path("tls.crt"), "--tls-key", w.path("tls.key"))
	assert.True(t, strings.HasPrefix(s.api, "https://"))
	s.trust(roots)
	l := s.lease()
	assert.Equal(t, http.StatusOK, w.fetch(l.Endpoint.URL))
	s.release(l)

	renewed := w.writeCertificate(2)
	at := time.Now().Add(time.Minute)
	require.NoError(t, os.Chtimes(w.path("tls.crt"), at, at))
	s.trust(renewed)
	s.release(s.lease())
	w.write("tls.key", "nonsense")
	s.client.CloseIdleConnections()
	s.release(s.lease()) // the former pair goes on
	assert.Equal(t, exitOK, s.end())
}

func TestServeLogsJSON(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	s := w.serve("--log-format", "json")
	s.release(s.lease())
	assert.Equal(t, exitOK, s.end())
	for line := range strings.Lines(s.stderr.String()) {
		var object map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &object), line)
		assert.NotEmpty(t, object["ts"])
	}
}

func TestServeTellsSystemd(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	path := filepath.Join(w.dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	s := w.serve()
	s.ready()
	s.find("healthy=1 wanted=1")
	assert.Equal(t, exitOK, s.end())
	var told []string
	buffer := make([]byte, 1024)
	for !strings.Contains(strings.Join(told, "\n"), "STOPPING=1") {
		require.NoError(t, l.SetReadDeadline(time.Now().Add(10*time.Second)))
		n, err := l.Read(buffer)
		require.NoError(t, err)
		told = append(told, string(buffer[:n]))
	}
	assert.Contains(t, told, "READY=1")
	assert.Contains(t, told, "STATUS=1 of 1 proxies are healthy, of 1 that there are")
}

func TestServeRefusesToStart(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	tokens := w.write("tokens", testToken)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for name, c := range map[string]struct {
		args []string
		env  string
		code int
		want []string
	}{
		"no token":              {want: []string{"no bearer token", "openssl rand -hex 32"}},
		"an empty file":         {args: []string{"--token-file", w.write("none", "# nothing\n")}, want: []string{"no bearer token"}},
		"no such file":          {args: []string{"--token-file", w.path("absent")}, want: []string{"--token-file", "no such file"}},
		"a short token":         {env: "hunter2", want: []string{"less than 16 characters"}},
		"two for a client":      {env: testToken + "\n" + testToken + "2", want: []string{"line 2", "second token"}},
		"three words":           {env: "a " + testToken + " c", want: []string{"line 1", "more than a name and a token"}},
		"a name of its own":     {env: "a/b " + testToken, want: []string{"a name must match"}},
		"anonymous with tokens": {args: []string{"--anonymous", "--token-file", tokens}, want: []string{"leave one out"}},
		"anonymous for all":     {args: []string{"--anonymous", "--listen", ":0"}, want: []string{"lends proxies to everyone"}},
		"beyond loopback":       {args: []string{"--token-file", tokens, "--listen", "0.0.0.0:0"}, want: []string{"answers hold passwords", "--plain-http"}},
		"half of TLS":           {args: []string{"--token-file", tokens, "--tls-cert", tokens}, want: []string{"or neither"}},
		"TLS of nothing":        {args: []string{"--token-file", tokens, "--tls-cert", tokens, "--tls-key", tokens}, want: []string{"--tls-cert, --tls-key"}},
		"no port":               {args: []string{"--token-file", tokens, "--listen", "127.0.0.1"}, want: []string{"write it like 127.0.0.1:8090"}},
		"a taken port":          {args: []string{"--token-file", tokens, "--listen", taken.Addr().String()}, code: exitOther, want: []string{"address already in use", "--listen"}},
		"pools and a size":      {args: []string{"--token-file", tokens, "--pools", tokens, "--size", "3"}, want: []string{"--size: leave it out with --pools"}},
		"pools of nothing":      {args: []string{"--token-file", tokens, "--pools", w.write("p1", "pools: []")}, want: []string{"list at least one"}},
		"a pool's typo":         {args: []string{"--token-file", tokens, "--pools", w.write("p2", "pools: [{name: eu, sise: 3}]")}, want: []string{`unknown field "sise"`}},
		"a pool without a name": {args: []string{"--token-file", tokens, "--pools", w.write("p3", "pools: [{size: 3}, {size: 2}]")}, want: []string{"pools[0].name"}},
		"a probe over http":     {args: []string{"--token-file", tokens, "--probe", "http://example.com/"}, want: []string{"--probe", "use https"}},
		"a log of its own":      {args: []string{"--token-file", tokens, "--log-format", "xml"}, want: []string{"must be text or json"}},
		"no URL of a Redis":     {args: []string{"--token-file", tokens, "--redis", "hunter2"}, want: []string{"--redis: write it like rediss://"}},
		"a password to see":     {args: []string{"--token-file", tokens, "--redis", "redis://:hunter2@127.0.0.1:1"}, want: []string{"list of processes", "EGRESS_REDIS"}},
		"a fleet of no name":    {args: []string{"--token-file", tokens, "--redis", "redis://127.0.0.1:1", "--redis-fleet", "a b"}, want: []string{"fleet"}},
		"a negative drain":      {args: []string{"--token-file", tokens, "--drain", "-1s"}, want: []string{"--drain must not be negative"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("EGRESS_TOKENS", c.env)
			got := w.run(append([]string{"serve", "--key-file", w.path("key"), "--status-listen", ""}, c.args...)...)
			if c.code == 0 {
				c.code = exitUsage
			}
			assert.Equal(t, c.code, got.code, got.stderr)
			for _, want := range c.want {
				assert.Contains(t, got.stderr, want)
			}
			assert.NotContains(t, got.stderr, testToken)
			assert.NotContains(t, got.stderr, "hunter2")
			assert.Empty(t, w.tagged())
		})
	}
}

// Without tokens, and by those of the environment.
func TestServeOtherWaysToBeLetIn(t *testing.T) {
	for name, c := range map[string]struct{ env, token string }{
		"anonymous": {}, "environment": {"one " + testToken + "\ntwo another-" + testToken, "another-" + testToken},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, local.HostConfig{})
			t.Setenv("EGRESS_TOKENS", c.env)
			args := []string{"--token-file", ""}
			if c.env == "" {
				args = append(args, "--anonymous")
			}
			s := w.serve(args...)
			status, l := s.call(c.token, "/v1/leases?wait=10s", `{"holder": "worker-1"}`)
			assert.Equal(t, http.StatusCreated, status)
			status, _ = s.call(c.token, "/v1/leases/"+l.ID+"/release", `{"token": "`+l.Token+`"}`)
			assert.Equal(t, http.StatusNoContent, status)
			assert.Equal(t, exitOK, s.end())
		})
	}
}

// The crawler in Python of docs/egressctl.md, as it stands there.
func TestServeForACrawlerInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	_, program, found := strings.Cut(readManual(t), "```python\n")
	require.True(t, found)
	program, _, _ = strings.Cut(program, "```")
	w := newWorld(t, local.HostConfig{})
	s := w.serve()
	s.ready()
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), python, "-c", strings.Replace(program, "http://127.0.0.1:8090", s.api, 1))
		cmd.Dir = w.dir
		w.write("tokens", "scraper "+testToken)
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+w.path("ca.pem"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run()
	require.NoError(t, err, out)
	assert.Equal(t, "5 bytes\n", out)
	w.answer(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusTooManyRequests) })
	out, err = run()
	assert.Error(t, err, out)
	_, metrics := s.get("/metrics")
	assert.Contains(t, metrics, `egress_lease_outcomes_total{outcome="ok"} 1`)
	assert.Contains(t, metrics, `egress_lease_outcomes_total{outcome="target_blocked"} 1`)
	assert.Contains(t, metrics, `egress_lease_events_total{event="released"} 2`)
	assert.Equal(t, exitOK, s.end())
}

// The calls by curl of docs/egressctl.md, as they stand there, with a token that is drawn
// as it says.
func TestServeForCurl(t *testing.T) {
	for _, name := range []string{"bash", "curl", "openssl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	draw, _, _ := strings.Cut(manualBlock(t, " > tokens"), "./egressctl serve")
	acquire, shown, _ := strings.Cut(manualBlock(t, "api() {"), "\n{")
	helpers, _, _ := strings.Cut(acquire, "\napi -d")
	dir := t.TempDir()
	run := func(script string) string {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "no_proxy=*")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, out)
		return string(out)
	}
	run(draw)
	s := newWorld(t, local.HostConfig{}).serve("--token-file", filepath.Join(dir, "tokens"))
	s.ready()

	var got answer
	out := run(strings.ReplaceAll(acquire, "http://127.0.0.1:8090", s.api))
	require.NoError(t, json.Unmarshal([]byte(out), &got), out)
	for _, m := range regexp.MustCompile(`"\w+":|"(?:1m0s|example\.com|scraper/worker-1)"`).FindAllString(shown, -1) {
		assert.Contains(t, out, m, "the manual shows it")
	}
	calls := strings.NewReplacer("http://127.0.0.1:8090", s.api, "1793…", got.Token, "GZ4…", got.ID).Replace(manualBlock(t, "/renew"))
	out = run(helpers + "\n" + calls)
	assert.NotContains(t, out, `"error"`)
	assert.Contains(t, out, `"endpoints":`, "stats")
	_, metrics := s.get("/metrics")
	assert.Contains(t, metrics, `egress_lease_outcomes_total{outcome="target_blocked"} 1`)
	for _, event := range []string{"acquired", "renewed", "released"} {
		assert.Contains(t, metrics, `egress_lease_events_total{event="`+event+`"} 1`)
	}
	assert.Equal(t, exitOK, s.end())
}

// manualBlock is the block of docs/egressctl.md that has the text.
func manualBlock(t *testing.T, has string) string {
	t.Helper()
	return mdtest.Find(t, "../..", "docs/egressctl.md", has).Text
}

func readManual(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/egressctl.md")
	require.NoError(t, err)
	return string(text)
}

func TestTheManualKnowsCommandsCodesAndOutcomes(t *testing.T) {
	manual := readManual(t)
	for _, cmd := range commandsOf(newApp(nil, nil, nil).rootCommand(), nil) {
		if name := strings.Join(cmd, " "); name != "images" && name != "version" {
			assert.Regexp(t, "(?m)^\\|[^|]*`"+name+"\\b", manual, name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^  (\d+)  `).FindAllStringSubmatch(rootHelp, -1) {
		assert.Contains(t, manual, "\n| "+m[1]+" | ")
	}
	for _, kind := range []lease.OutcomeKind{lease.OK, lease.ProxyFault, lease.TargetBlocked, lease.TargetError, lease.Inconclusive, lease.Canceled} {
		assert.Contains(t, manual, "`"+string(kind)+"`")
	}
	serve := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	new(serveFlags).register(serve)
	for _, m := range regexp.MustCompile("`--([a-z-]+)").FindAllStringSubmatch(manual[strings.Index(manual, "## A server"):], -1) {
		if m[1] != "tag" && m[1] != "provider" {
			assert.NotNil(t, serve.Lookup(m[1]), "serve has no --%s", m[1])
		}
	}
}
