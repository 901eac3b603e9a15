package gcp_test

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/providertest"
)

// The tests of this file run against a real project, which costs money: some dozens
// of the smallest instances for minutes. The variables GCP_TEST_* describe it:
//
//	GCP_TEST_PROJECT       its ID
//	GCP_TEST_ZONE          where the instances are made
//	GCP_TEST_MACHINE_TYPE  default "e2-micro"
//	GCP_TEST_IMAGE         default the newest Debian 13
//	GCP_TEST_SUBNETWORK    default that of the network "default"
//	GCP_TEST_SPOT          any value makes spot instances
//	GCP_TEST_LOG_LEVEL     1 is one line for each call, 5 adds payloads
//
// Credentials are Application Default Credentials; docs/gcp.md lists the least
// permissions. Every instance is deleted by Google after an hour, whatever becomes
// of the test.
const realHint = "needs a project of Google Cloud, and costs money: set GCP_TEST_PROJECT and GCP_TEST_ZONE (docs/gcp.md)"

func realConfig(t *testing.T) gcp.Config {
	t.Helper()
	project, zone := os.Getenv("GCP_TEST_PROJECT"), os.Getenv("GCP_TEST_ZONE")
	if project == "" || zone == "" {
		t.Skip(realHint)
	}
	or := func(name, def string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return def
	}
	return gcp.Config{
		Project: project, Zones: []string{zone},
		MachineType: or("GCP_TEST_MACHINE_TYPE", "e2-micro"), Image: or("GCP_TEST_IMAGE", debian),
		Subnetwork: os.Getenv("GCP_TEST_SUBNETWORK"), Spot: os.Getenv("GCP_TEST_SPOT") != "",
		MaxRunDuration: provider.Duration(time.Hour), Labels: map[string]string{"purpose": "egress-test"},
		Logger: realLogger(t),
	}
}

func realLogger(t *testing.T) logr.Logger {
	t.Helper()
	level, err := strconv.Atoi(os.Getenv("GCP_TEST_LOG_LEVEL"))
	if err != nil {
		return logr.Discard()
	}
	return funcr.New(func(prefix, args string) { t.Log(prefix, args) }, funcr.Options{Verbosity: level})
}

// TestRealConformance is the suite on Google's own.
func TestRealConformance(t *testing.T) {
	cfg := realConfig(t)
	providertest.Run(t, providertest.Harness{
		New: func() (provider.Provider, error) { return gcp.New(cfg) },
		Request: func(uid, tag string) provider.CreateRequest {
			return provider.CreateRequest{UID: uid, Tag: tag, UserData: provider.UserData("#cloud-config\nfinal_message: " + uid + "\n")}
		},
		Unconfigured: "zones/northpole-north1-a/instances/" + provider.Name("x"),
		Timeout:      10 * time.Minute, Interval: 5 * time.Second, Settle: 20 * time.Second, Concurrency: 3,
	})
}

// TestRealLife makes one instance, reads its console, and deletes it.
func TestRealLife(t *testing.T) {
	cfg := realConfig(t)
	p, err := gcp.New(cfg)
	require.NoError(t, err)
	defer p.Close()
	findings, err := p.Diagnose(t.Context())
	require.NoError(t, err)
	for _, f := range findings {
		t.Logf("%s %s: %s: %s %s", f.Scope, f.Check, f.Status, f.Evidence, f.Remedy)
		assert.NotEqual(t, provider.FindingFailure, f.Status, "%s %s", f.Scope, f.Check)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	uid := "real-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	id, err := p.Create(ctx, provider.CreateRequest{UID: uid, Tag: "egress-test", UserData: provider.UserData("#cloud-config\nfinal_message: " + uid + "\n")})
	require.NoError(t, err)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		assert.NoError(t, provider.WaitGone(ctx, p, id, provider.WaitOptions{}))
	}()
	in, err := provider.WaitRunning(ctx, p, id, provider.WaitOptions{})
	if err != nil {
		cause, _ := p.Explain(ctx, id)
		t.Fatalf("%v; %v", err, cause)
	}
	t.Log("it runs at", in.Address())
	require.Eventually(t, func() bool {
		text, err := p.ReadConsole(ctx, id, provider.DefaultConsoleBytes)
		return err == nil && len(text) > 0
	}, 5*time.Minute, 5*time.Second, "the console has what the guest wrote")
}
