package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/examples/internal/setup"
)

// The lab's own address, and a name that its resolver gives to every guest.
const (
	labAddress = "10.77.0.1"
	labSite    = "site.lab.test"
)

// newLab is a world on the hypervisor that KVM_TEST_* describe, with a site on the
// bridge.
func newLab(t *testing.T) *world {
	t.Helper()
	env := os.Getenv
	if env("KVM_TEST_IMAGE_URL") == "" || env("KVM_TEST_BRIDGE") == "" {
		t.Skip("needs the lab: make lab-test")
	}
	w := &world{t: t, dir: t.TempDir(), key: bytes.Repeat([]byte("k"), 32), signals: make(chan os.Signal, 4)}
	w.change = func(a *app) { a.types, a.poll, a.settle = setup.Types, 2*time.Second, time.Minute }
	w.write("key", string(w.key))
	w.write("providers.yaml", fmt.Sprintf(`
providers:
  - name: lab
    type: kvm
    kvm:
      sshKeyFile: %q
      knownHostsFile: %q
      images: {lab: {url: %q, sha256: %q}}
      machineTypes: {small: {vcpus: 2, memoryMiB: 768}}
      hosts: [{name: lab, address: %q, user: %q, pool: %q, bridge: %q}]
`, env("KVM_TEST_SSH_KEY"), env("KVM_TEST_KNOWN_HOSTS"), env("KVM_TEST_IMAGE_URL"), env("KVM_TEST_IMAGE_SHA256"),
		env("KVM_TEST_HOST"), env("KVM_TEST_USER"), env("KVM_TEST_POOL"), env("KVM_TEST_BRIDGE")))
	return w
}

// TestLabTools looks at a real host, and boots nothing.
func TestLabTools(t *testing.T) {
	w := newLab(t)
	got := w.run("doctor")
	t.Log(got.stdout)
	assert.Equal(t, exitOK, got.code, got.stderr)
	assert.Regexp(t, `lab +lab +pool +ok`, got.stdout)
	got = w.run("images", "pull")
	require.Equal(t, exitOK, got.code, got.stderr)
	got = w.run("images", "ls")
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.Regexp(t, `lab +lab +lab +qcow2 .* yes +yes `, got.stdout)
	got = w.run("images", "prune", "--dry-run", "--older-than", "0s")
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "kept: the configuration uses it")
	got = w.run("sweep", "--tag", fmt.Sprintf("lab-tools-%d", os.Getpid()))
	assert.Equal(t, exitOK, got.code, got.stderr)
}

// TestLabServe lends a VM on a real hypervisor: image, cloud-init, guest agent,
// Squid, probe, lease, an end that leaves it, a start that adopts it, and deletion.
func TestLabServe(t *testing.T) {
	w := newLab(t)
	if os.Getenv("EGRESS_LAB_FULL") == "" {
		t.Skip("runs as make lab-test FULL=1: it boots a guest")
	}
	w.writeCertificate(1, labSite)
	ca, err := os.ReadFile(w.path("tls.crt"))
	require.NoError(t, err)
	w.write("ca.pem", string(ca))
	listener, err := net.Listen("tcp", net.JoinHostPort(labAddress, "443"))
	require.NoError(t, err)
	site := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(rw, host)
	})}
	go func() { _ = site.ServeTLS(listener, w.path("tls.crt"), w.path("tls.key")) }()
	t.Cleanup(func() { _ = site.Close() })

	tag := fmt.Sprintf("lab-serve-%d", os.Getpid())
	page := "https://" + labSite + "/"
	flags := []string{"--tag", tag, "--probe", page, "--destinations", labAddress + "/24", "--probe-interval", "3s"}
	s := w.serve(flags...)
	t.Cleanup(func() { w.run("rm", "--tag", tag, "--all") })
	l := s.leaseWithin(6 * time.Minute)
	assert.Equal(t, http.StatusOK, w.fetchPage(l.Endpoint.URL, page))
	s.release(l)
	got := w.run("probe", "--tag", tag, "--name", l.Endpoint.ID, "--key-file", w.path("key"), "--probe", page, "--probe-ca", w.path("ca.pem"))
	t.Log(got.stdout)
	assert.Equal(t, exitOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "10.77.0.", "the site tells the egress address")
	got = w.run("console", "--tag", tag, "--lines", "5", l.Endpoint.ID)
	t.Log(got.stdout)
	assert.Equal(t, exitOK, got.code, got.stderr)
	assert.NotEmpty(t, got.stdout)
	require.Equal(t, exitOK, s.end())

	s = w.serve(append(flags, "--teardown")...)
	again := s.leaseWithin(2 * time.Minute)
	assert.Equal(t, l.Endpoint.ID, again.Endpoint.ID, "it is adopted")
	assert.Equal(t, http.StatusOK, w.fetchPage(again.Endpoint.URL, page))
	s.release(again)
	s.signals <- os.Interrupt
	select {
	case code := <-s.done:
		assert.Equal(t, exitOK, code)
	case <-time.After(3 * time.Minute):
		t.Fatal("serve does not end")
	}
	t.Log(s.stderr.String())
	assert.JSONEq(t, `{"instances": [], "missing": []}`, w.run("ls", "--tag", tag, "-o", "json").stdout)
}

// leaseWithin leases the first proxy that becomes healthy.
func (s *serving) leaseWithin(d time.Duration) answer {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < d; {
		status, l := s.call(testToken, "/v1/leases?wait=30s", `{"holder": "worker-1", "requestId": "first"}`)
		if status == http.StatusCreated {
			return l
		}
	}
	s.t.Fatal("no proxy became healthy:\n" + s.stderr.String())
	return answer{}
}
