// Package cloudtest is a project of Compute Engine for tests of the programs: the
// API on loopback, held to its discovery document, whose instances are forward
// proxies on loopback addresses of their own.
//
//	cloud := cloudtest.New(t, nil)
//	args := []string{"-providers", cloud.Providers, "-key-file", cloud.KeyFile, "-ca", cloud.CA}
//
// The programs find it as they find Google's: by a providers file, whose endpoint
// leads here, and by Application Default Credentials, whose tokens a server of the
// test gives out.
package cloudtest

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/internal/fakecompute"
)

// The zones of the project's one region.
const (
	ZoneB = "europe-west1-b"
	ZoneC = "europe-west1-c"
)

// Site is what proxies reach over TLS: no resolver of this machine is asked.
const Site = "https://example.com/"

const token = "token-of-the-test"

// Cloud is the project, and the files that lead to it.
type Cloud struct {
	// API is the server, for faults and questions.
	API *fakecompute.Server
	// Providers is the providers file. KeyFile holds the key of the proxies' passwords,
	// CA the root that verifies Site.
	Providers, KeyFile, CA string

	t    *testing.T
	key  []byte
	site string

	mu      sync.Mutex
	next    int
	proxies map[string]*connectproxy.Proxy // by the instance's name
}

// New starts it until the test ends. amend, if not nil, may change what it is like.
// Where loopback has but one address, the test is skipped.
func New(t *testing.T, amend func(*fakecompute.Config)) *Cloud {
	t.Helper()
	c := &Cloud{t: t, key: bytes.Repeat([]byte("k"), 32), proxies: map[string]*connectproxy.Proxy{}}
	c.needLoopback()
	discovery, err := fakecompute.LoadDiscovery()
	if err != nil {
		t.Logf("SKIPPED: requests are not held to the discovery document, which is not to be had: %v", err)
	}
	cfg := fakecompute.Config{
		Zones:          []string{ZoneB, ZoneC},
		OperationDelay: 20 * time.Millisecond, BootDelay: 50 * time.Millisecond, AddressDelay: 10 * time.Millisecond,
		DeletePending: 5 * time.Millisecond, DeleteDelay: 20 * time.Millisecond,
		Boot: c.boot, Discovery: discovery, Refused: func(problem string) { t.Errorf("the API refuses: %s", problem) },
	}
	if amend != nil {
		amend(&cfg)
	}
	c.API = fakecompute.New(cfg)
	c.API.SetQuota("CPUS", 2, 24)
	c.API.SetQuota("CPUS_ALL_REGIONS", 2, 32)
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.URL.Path) }))
	t.Cleanup(site.Close)
	api := httptest.NewServer(http.HandlerFunc(c.authorized))
	t.Cleanup(api.Close)
	c.site = site.Listener.Addr().String()
	c.writeFiles(api.URL, site.Certificate())
	c.giveCredentials()
	return c
}

// authorized answers those who have a token of ours.
func (c *Cloud) authorized(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+token {
		http.Error(w, `{"error":{"code":401,"message":"Invalid Credentials","errors":[{"reason":"authError"}]}}`, http.StatusUnauthorized)
		return
	}
	c.API.ServeHTTP(w, r)
}

func (c *Cloud) writeFiles(api string, ca *x509.Certificate) {
	dir := c.t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(c.t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	c.Providers = write("providers.yaml", fmt.Sprintf(`
providers:
  - name: cloud-1
    type: gcp
    gcp:
      project: test-project
      region: europe-west1
      machineType: e2-small
      image: projects/debian-cloud/global/images/family/debian-13
      networkTags: [egress-proxy]
      endpoint: %s
`, api))
	c.KeyFile = write("key", string(c.key))
	c.CA = write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})))
}

// giveCredentials sets Application Default Credentials of a service account, and
// starts the server that gives its tokens out.
func (c *Cloud) giveCredentials() {
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, token)
	}))
	c.t.Cleanup(tokens.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(c.t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(c.t, err)
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "test-project", "client_email": "egress@test-project.iam.gserviceaccount.com",
		"private_key_id": "1", "private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": tokens.URL,
	})
	require.NoError(c.t, err)
	path := filepath.Join(c.t.TempDir(), "account.json")
	require.NoError(c.t, os.WriteFile(path, account, 0o600))
	c.t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
}

// needLoopback skips the test where only 127.0.0.1 is this machine.
func (c *Cloud) needLoopback() {
	listener, err := net.Listen("tcp", "127.7.0.1:0")
	if err != nil {
		c.t.Skipf("needs all addresses of 127.0.0.0/8: %v", err)
	}
	_ = listener.Close()
}

// boot is a guest's: a proxy with the password of its UID, on the port of Squid at
// the next address where that is free. Without one the instance has no address.
func (c *Cloud) boot(body map[string]any) (address string) {
	password, err := passwordOf(c.key, body)
	if !assert.NoError(c.t, err) {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for tries := 0; tries < 250; tries++ {
		c.next++
		address = fmt.Sprintf("127.7.%d.%d", c.next/250, 1+c.next%250)
		proxy, err := connectproxy.Start(connectproxy.Config{
			Listen: net.JoinHostPort(address, "3128"), Username: "crawler", Password: password,
			Resolve: map[string]string{"example.com": c.site},
		})
		if err == nil {
			c.t.Cleanup(proxy.Close)
			name, _ := body["name"].(string)
			c.proxies[name] = proxy
			return address
		}
	}
	c.t.Errorf("port 3128 is free at none of 250 addresses up to %s", address)
	return ""
}

// passwordOf is the one that the proxy of an instance has.
func passwordOf(key []byte, body map[string]any) (string, error) {
	var record struct{ UID string }
	description, _ := body["description"].(string)
	if err := json.Unmarshal([]byte(description), &record); err != nil {
		return "", err
	}
	return fleet.DerivePassword(key, record.UID)
}

// Proxy is that of the instance with that name; nil while it has none.
func (c *Cloud) Proxy(name string) *connectproxy.Proxy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proxies[name]
}

// Stockout has every zone among these accept instances and drop them for want of
// room, and the others make them.
func (c *Cloud) Stockout(zones ...string) {
	full := map[string]bool{}
	for _, zone := range zones {
		full[zone] = true
	}
	c.API.SetBefore(func(call fakecompute.Call) (fault fakecompute.Fault) {
		if call.Method == "instances.insert" && full[call.Zone] {
			fault.Operation = []fakecompute.OperationError{{Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "The zone does not have enough resources available to fulfill the request."}}
		}
		return fault
	})
}
