package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/internal/labtest"
	"github.com/egressfleet/egress/lease"
)

// TestLabCrawl crawls through a VM on a real hypervisor: image, cloud-init,
// guest agent, Squid, probe, leases, and deletion.
func TestLabCrawl(t *testing.T) {
	labtest.Require(t)
	dir := t.TempDir()
	providers, ca := filepath.Join(dir, "providers.yaml"), filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(providers, labtest.Providers(labtest.KeyFile()), 0o600))
	require.NoError(t, os.WriteFile(ca, labtest.PEM(labtest.Site(t)), 0o600))
	var urls strings.Builder
	for page := range 20 {
		fmt.Fprintf(&urls, "%spage/%d\n", labtest.URL, page)
	}
	var stdout, stderr output
	code := run([]string{
		"-v", "-providers", providers, "-tag", fmt.Sprintf("lab-crawl-%d", os.Getpid()), "-size", "1",
		"-probe", labtest.URL + "health", "-ca", ca, "-destinations", labtest.Network,
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
