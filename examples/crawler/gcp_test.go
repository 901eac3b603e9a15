package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/examples/internal/cloudtest"
	"github.com/egressfleet/egress/lease"
)

// TestACrawlOnComputeEngine keeps a fleet where one of two zones drops what it
// accepts: its proxies are in the other one, and go when the crawl is over.
func TestACrawlOnComputeEngine(t *testing.T) {
	cloud := cloudtest.New(t, nil)
	cloud.Stockout(cloudtest.ZoneB)
	var urls strings.Builder
	for page := range 8 {
		fmt.Fprintf(&urls, "%s%d\n", cloudtest.Site, page)
	}
	var stdout, stderr output
	code := run([]string{
		"-v", "-providers", cloud.Providers, "-key-file", cloud.KeyFile, "-size", "2", "-probe", cloudtest.Site, "-ca", cloud.CA,
	}, strings.NewReader(urls.String()), &stdout, &stderr)
	require.Equal(t, exitOK, code, stderr.String())
	results := parseResults(t, stdout.String())
	require.Len(t, results, 8)
	for _, r := range results {
		assert.Equal(t, lease.OK, r.Outcome, r)
		assert.True(t, strings.HasPrefix(r.Proxy, "proxy-"), r.Proxy)
	}
	assert.Contains(t, stderr.String(), "zones/"+cloudtest.ZoneC+"/instances/")
	assert.Empty(t, cloud.API.Names(), "the crawler cleans up")
}
