package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/internal/labtest"
)

// newLab is a world on the hypervisor that KVM_TEST_* describe, with a site on the
// bridge.
func newLab(t *testing.T) *world {
	t.Helper()
	labtest.Require(t)
	w := &world{t: t, dir: t.TempDir(), key: bytes.Repeat([]byte("k"), 32), signals: make(chan os.Signal, 4)}
	w.change = func(a *app) { a.types, a.poll, a.settle = setup.Types, 2*time.Second, time.Minute }
	w.write("key", string(w.key))
	w.write("providers.yaml", string(labtest.Providers(labtest.KeyFile())))
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
	w.write("ca.pem", string(labtest.PEM(labtest.Site(t))))

	tag := fmt.Sprintf("lab-serve-%d", os.Getpid())
	flags := []string{"--tag", tag, "--probe", labtest.URL, "--destinations", labtest.Network, "--probe-interval", "3s"}
	s := w.serve(flags...)
	t.Cleanup(func() { w.run("rm", "--tag", tag, "--all") })
	l := s.leaseWithin(6 * time.Minute)
	assert.Equal(t, http.StatusOK, w.fetchPage(l.Endpoint.URL, labtest.URL))
	s.release(l)
	got := w.run("probe", "--tag", tag, "--name", l.Endpoint.ID, "--key-file", w.path("key"), "--probe", labtest.URL, "--probe-ca", w.path("ca.pem"))
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
	assert.Equal(t, http.StatusOK, w.fetchPage(again.Endpoint.URL, labtest.URL))
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
