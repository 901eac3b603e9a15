package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/examples/internal/cloudtest"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

// onCloud runs the program, as it is, on a project of Compute Engine. Its UIDs begin
// with prefix.
func onCloud(t *testing.T, cloud *cloudtest.Cloud, prefix string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	a := newApp(strings.NewReader(""), &stdout, &stderr)
	var uids atomic.Int32
	a.newUID = func() string { return fmt.Sprintf("%s-%d", prefix, uids.Add(1)) }
	a.poll = 10 * time.Millisecond
	code := a.run(t.Context(), append([]string{"--providers", cloud.Providers}, args...))
	return outcome{code, stdout.String(), stderr.String()}
}

// upOnCloud is up with the project's files.
func upOnCloud(t *testing.T, cloud *cloudtest.Cloud, prefix string, args ...string) outcome {
	t.Helper()
	return onCloud(t, cloud, prefix, append([]string{"up", "--key-file", cloud.KeyFile, "--probe-ca", cloud.CA}, args...)...)
}

// TestTheWholeLifeOnComputeEngine goes from an examination to the last removal, with
// nothing in it replaced but the API's address and the guests.
func TestTheWholeLifeOnComputeEngine(t *testing.T) {
	cloud := cloudtest.New(t, nil)
	run := func(args ...string) string {
		t.Helper()
		got := onCloud(t, cloud, "", args...)
		require.Equal(t, exitOK, got.code, got.stderr)
		return got.stdout
	}
	examined := run("doctor")
	assert.Regexp(t, `cloud-1 +test-project +credentials +ok`, examined)
	assert.Regexp(t, `cloud-1 +test-project +quota CPUS_ALL_REGIONS +ok +2 of 32 in use`, examined)
	assert.NotContains(t, examined, "failure")

	made := upOnCloud(t, cloud, "uid", "--count", "2")
	require.Equal(t, exitOK, made.code, made.stderr)
	assert.Len(t, strings.Fields(made.stdout), 2, "a URL for each, after a fetch through it")
	assert.Equal(t, 2, strings.Count(made.stderr, "healthy: 200"), made.stderr)
	name, stopped := provider.Name("uid-1"), provider.Name("uid-2")

	listed := run("ls", "--show-urls", "--key-file", cloud.KeyFile)
	for _, url := range strings.Fields(made.stdout) {
		assert.Contains(t, listed, url)
	}
	got := run("get", name)
	assert.Regexp(t, `id +zones/europe-west1-[bc]/instances/`+name, got)
	assert.Regexp(t, `state +Running`, got)
	assert.Regexp(t, `external +127\.7\.0\.`, got)

	for _, zone := range []string{cloudtest.ZoneB, cloudtest.ZoneC} {
		cloud.API.SetConsole(zone, name, "squid is up\n")
	}
	assert.Contains(t, run("console", name), "squid is up")

	assert.NotContains(t, run("sweep"), "proxy-", "nothing is left over")
	for _, zone := range []string{cloudtest.ZoneB, cloudtest.ZoneC} {
		cloud.API.SetStatus(zone, stopped, "TERMINATED")
	}
	assert.Contains(t, run("sweep", "--yes", "--older-than", "0s"), stopped)
	require.Eventually(t, func() bool { return len(cloud.API.Names()) == 1 }, 10*time.Second, 10*time.Millisecond)

	run("rm", name)
	assert.Empty(t, cloud.API.Names())
}

// What was accepted and dropped is told with Google's reason, and the exit code of
// its class.
func TestUpExplainsAStockoutOnComputeEngine(t *testing.T) {
	cloud := cloudtest.New(t, nil)
	cloud.Stockout(cloudtest.ZoneB, cloudtest.ZoneC)
	got := upOnCloud(t, cloud, "uid")
	assert.Equal(t, exitQuota, got.code, got.stderr)
	assert.Contains(t, got.stderr, "refused after it had been accepted")
	assert.Contains(t, got.stderr, "ZONE_RESOURCE_POOL_EXHAUSTED")
	assert.NotContains(t, got.stderr, "somebody removed it")
	assert.Len(t, cloud.API.Calls("instances.insert"), 2, "one for each zone")
	assert.Empty(t, cloud.API.Names())
}

func TestUpGoesElsewhereAfterAStockoutOnComputeEngine(t *testing.T) {
	for _, full := range []string{cloudtest.ZoneB, cloudtest.ZoneC} {
		cloud := cloudtest.New(t, nil)
		cloud.Stockout(full)
		got := upOnCloud(t, cloud, "uid", "--count", "4")
		require.Equal(t, exitOK, got.code, got.stderr)
		assert.Len(t, strings.Fields(got.stdout), 4)
		assert.Contains(t, got.stderr, "no room on "+full+": ")
		require.Len(t, cloud.API.Names(), 4)
		for _, name := range cloud.API.Names() {
			assert.False(t, strings.HasPrefix(name, full), name)
		}
	}
}

func TestVerboseShowsTheCallsOfComputeEngine(t *testing.T) {
	cloud := cloudtest.New(t, nil)
	got := onCloud(t, cloud, "", "-v", "ls")
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.Contains(t, got.stderr, "gcp: compute call provider=cloud-1 method=instances.aggregatedList")
	got = onCloud(t, cloud, "", "-vvvvv", "ls")
	assert.Contains(t, got.stderr, "compute response")
	assert.NotContains(t, got.stderr, "token-of-the-test")
}

// An instance that the API has accepted and does not show yet was taken for one that
// somebody had removed.
func TestUpWaitsForWhatIsStillBeingMadeOnComputeEngine(t *testing.T) {
	cloud := cloudtest.New(t, func(f *fakecompute.Config) { f.Unseen, f.OperationDelay = 500*time.Millisecond, time.Minute })
	got := upOnCloud(t, cloud, "uid")
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.Len(t, cloud.API.Calls("instances.insert"), 1)
}
