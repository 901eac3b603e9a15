package main

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/lease"
)

// The lab's own address, and a name that its resolver gives to every guest.
const (
	labAddress = "10.77.0.1"
	labSite    = "site.lab.test"
)

// labProviders is a providers file for the hypervisor that KVM_TEST_* describe.
func labProviders(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "providers.yaml")
	env := os.Getenv
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `
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
		env("KVM_TEST_HOST"), env("KVM_TEST_USER"), env("KVM_TEST_POOL"), env("KVM_TEST_BRIDGE")), 0o600))
	return path
}

// startLabSite serves pages over TLS on the bridge, and returns the file with
// the root that verifies it.
func startLabSite(t *testing.T, dir string) (ca string) {
	t.Helper()
	certificate, _, err := demoCertificate(labSite)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort(labAddress, "443"))
	require.NoError(t, err)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s from %s\n", r.URL.Path, r.RemoteAddr)
		}),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	ca = filepath.Join(dir, "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
	require.NoError(t, os.WriteFile(ca, text, 0o600))
	return ca
}

// TestLabCrawl crawls through a VM on a real hypervisor: image, cloud-init,
// guest agent, Squid, probe, leases, and deletion.
func TestLabCrawl(t *testing.T) {
	if os.Getenv("KVM_TEST_IMAGE_URL") == "" || os.Getenv("KVM_TEST_BRIDGE") == "" {
		t.Skip("needs the lab: make lab-test")
	}
	dir := t.TempDir()
	providers, ca := labProviders(t, dir), startLabSite(t, dir)
	var urls strings.Builder
	for page := range 20 {
		fmt.Fprintf(&urls, "https://%s/page/%d\n", labSite, page)
	}
	var stdout, stderr output
	code := run([]string{
		"-v", "-providers", providers, "-tag", fmt.Sprintf("lab-crawl-%d", os.Getpid()), "-size", "1",
		"-probe", "https://" + labSite + "/health", "-ca", ca, "-destinations", labAddress + "/24",
	}, strings.NewReader(urls.String()), &stdout, &stderr)
	t.Log(stderr.String())
	require.Equal(t, exitOK, code)
	results := parseResults(t, stdout.String())
	require.Len(t, results, 20)
	for _, r := range results {
		assert.Equal(t, lease.OK, r.Outcome, r)
		assert.True(t, strings.HasPrefix(r.Proxy, "proxy-"), r.Proxy)
	}

	registry, p, err := setup.Open(providers, "lab", setup.Types(setup.Hooks{}))
	require.NoError(t, err)
	defer registry.Close()
	left, err := p.ListByTag(t.Context(), fmt.Sprintf("lab-crawl-%d", os.Getpid()))
	require.NoError(t, err)
	assert.Empty(t, left, "the crawler cleans up")
}
