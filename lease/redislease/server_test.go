package redislease_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// everything calls every method, so that every command of every script runs.
func everything(t *testing.T, s *redislease.Store) {
	t.Helper()
	nat := netipOf("198.51.100.1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reports := s.Reports(ctx)
	putWith(t, s, endpoint.Endpoint{ID: "a", Attributes: map[string]string{"region": "eu"}})
	putWith(t, s, endpoint.Endpoint{ID: "b", EgressIP: nat})
	selector := lease.Selector{{Key: "region", Operator: lease.Exists}}
	l := try(t, s, lease.Request{Domain: "x.example", Selector: selector, Session: "s"})
	for _, kind := range []lease.OutcomeKind{lease.OK, lease.TargetBlocked, lease.ProxyFault} {
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: kind}))
	}
	<-reports
	require.NoError(t, l.Renew(t.Context(), time.Minute))
	require.NoError(t, s.SetVerdict(t.Context(), "a", endpoint.Verdict{Health: endpoint.Healthy, EgressIP: nat}))
	refused(t, s, lease.Request{Domain: "x.example", Selector: selector, Session: "s"})
	refused(t, s, lease.Request{Domain: "x.example"})
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	_, err := s.Acquire(short, lease.Request{Holder: "waits", Domain: "x.example"})
	require.ErrorIs(t, err, lease.ErrNoneFree)
	held := try(t, s, lease.Request{})
	wait := waitInBackground(t, s, lease.Request{})
	awaitWaiting(t, s, 1)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, (<-wait).err)
	_, err = s.List(t.Context())
	require.NoError(t, err)
	_, err = s.Drain(t.Context(), "b")
	require.NoError(t, err)
	require.NoError(t, s.Revoke(t.Context(), "b"))
	require.NoError(t, s.Remove(t.Context(), "a"))
	require.NoError(t, s.Remove(t.Context(), "b"))
}

// aclOfDoc is the rule that the package's documentation gives.
func aclOfDoc(t *testing.T, fleet string) []any {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	rule := regexp.MustCompile(`(?s)ACL SETUSER crawlers .*?\n//\n`).FindString(string(text))
	require.NotEmpty(t, rule)
	rule = strings.NewReplacer("//", "", "{FLEET}", "{"+fleet+"}", "PASSWORD", "secret").Replace(rule)
	var words []any
	for word := range strings.FieldsSeq(rule) {
		words = append(words, word)
	}
	return words
}

// A user with the documented rights can do all, and nothing to other fleets.
func TestTheDocumentedRightsSuffice(t *testing.T) {
	server := redistest.Start(t)
	require.NoError(t, connect(t, server).Do(t.Context(), aclOfDoc(t, "test")...).Err())
	opt := options(server)
	opt.Username, opt.Password = "crawlers", "secret"
	client := redis.NewClient(opt)
	t.Cleanup(func() { _ = client.Close() })
	everything(t, open(t, server, redislease.Config{Client: client, Fresh: true}))
	_, err := open(t, server, redislease.Config{Client: client, Fleet: "other"}).TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.ErrorContains(t, err, "NOPERM")
	_, err = open(t, server, redislease.Config{Client: client, Fleet: "other"}).Acquire(t.Context(), lease.Request{Holder: "test"})
	require.ErrorContains(t, err, "NOPERM", "what only an administrator can change is not waited for")
}

// In a Cluster all keys of a fleet are in one slot; the server refuses scripts that
// touch another.
func TestACluster(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	admin := connect(t, server)
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		info, err := admin.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, 20*time.Second, 20*time.Millisecond)
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{server.Addr}, IsClusterMode: true})
	t.Cleanup(func() { _ = client.Close() })
	s := open(t, server, redislease.Config{Client: client, Fresh: true})
	everything(t, s)
	put(t, s, "c")
	try(t, s, lease.Request{Domain: "x.example"})
	slot := admin.ClusterKeySlot(t.Context(), "{test}").Val()
	keys, err := admin.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		assert.Equal(t, slot, admin.ClusterKeySlot(t.Context(), key).Val(), key)
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	pool := certify(t, dir)
	tlsPort := strconv.Itoa(freePort(t))
	server := redistest.Start(t, "--tls-port", tlsPort, "--tls-cert-file", filepath.Join(dir, "cert"), "--tls-key-file", filepath.Join(dir, "key"),
		"--tls-ca-cert-file", filepath.Join(dir, "cert"), "--tls-auth-clients", "no")
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{"127.0.0.1:" + tlsPort}, TLSConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	})
	t.Cleanup(func() { _ = client.Close() })
	everything(t, open(t, server, redislease.Config{Client: client, Fresh: true}))
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// certify writes a certificate for loopback and its key, and returns what trusts it.
func certify(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cert"), cert, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(cert))
	return pool
}

// A fail-over by Sentinel: the store goes to the new server by itself, and what the
// old one has granted is still held.
func TestSentinelFailOver(t *testing.T) {
	primary := redistest.Start(t)
	host, port, err := net.SplitHostPort(primary.Addr)
	require.NoError(t, err)
	replica := redistest.Start(t, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0")
	sentinel := redistest.StartSentinel(t, "main", primary.Addr)
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{sentinel}, MasterName: "main", MaxRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	s := open(t, primary, redislease.Config{Client: client, Fresh: true, PollInterval: 50 * time.Millisecond})
	put(t, s, "a", "b")
	l := try(t, s, lease.Request{TTL: time.Hour})
	awaitCopy(t, replica, l.Key().ID)
	awaitKnownReplica(t, sentinel)
	primary.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	next, err := s.Acquire(ctx, lease.Request{Holder: "test"})
	require.NoError(t, err)
	assert.NotEqual(t, l.Endpoint().ID, next.Endpoint().ID)
	assert.Greater(t, next.Key().Token, l.Key().Token)
	require.NoError(t, l.Renew(t.Context(), time.Minute))
}

func awaitCopy(t *testing.T, replica *redistest.Server, id string) {
	t.Helper()
	client := connect(t, replica)
	require.Eventually(t, func() bool {
		return client.Exists(t.Context(), "egress:{test}:l:"+id).Val() == 1
	}, 30*time.Second, 20*time.Millisecond)
}

func awaitKnownReplica(t *testing.T, sentinel string) {
	t.Helper()
	client := redis.NewSentinelClient(&redis.Options{Addr: sentinel})
	t.Cleanup(func() { _ = client.Close() })
	require.Eventually(t, func() bool {
		replicas, err := client.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave"
	}, 30*time.Second, 50*time.Millisecond)
}

// calls is how many commands the server has run, those within scripts included.
func calls(t *testing.T, client *redis.Client) int {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	total := 0
	for _, m := range regexp.MustCompile(`calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		total += n
	}
	return total
}

// What an acquire costs the server does not grow with the endpoints, nor with those
// that the domain bans. It is counted in commands, which no machine makes slower.
func TestAnAcquireDoesNotScanTheEndpoints(t *testing.T) {
	server := redistest.Start(t)
	admin := connect(t, server)
	cost := map[int]int{}
	for _, n := range []int{100, 10_000} {
		s := open(t, server, redislease.Config{Fleet: fmt.Sprint("of", n), Fresh: true})
		fill(t, s, n)
		req := lease.Request{Selector: lease.Selector{{Key: "region", Operator: lease.In, Values: []string{"eu"}}}, Domain: "shop.example"}
		for range n / 4 { // half of a region
			l := try(t, s, req)
			require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
			require.NoError(t, l.Release(t.Context()))
		}
		for range n/4 + 1 { // the banned become the least recently used
			require.NoError(t, try(t, s, req).Release(t.Context()))
		}
		before := calls(t, admin)
		l := try(t, s, req)
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
		require.NoError(t, l.Release(t.Context()))
		refused(t, s, lease.Request{Selector: lease.Selector{{Key: "region", Operator: lease.In, Values: []string{"mars"}}}})
		cost[n] = calls(t, admin) - before
	}
	assert.LessOrEqual(t, cost[10_000], cost[100]+20)
	t.Logf("%d commands among 100 endpoints, %d among 10,000", cost[100], cost[10_000])
}

// A selector by a name that each endpoint has of its own costs no more than others,
// and makes none of them dear.
func TestASelectorByNameMakesNothingDear(t *testing.T) {
	server := redistest.Start(t)
	admin := connect(t, server)
	s := filledByName(t, open(t, server, redislease.Config{Fresh: true}), 2000)
	byName := lease.Request{Selector: named("77")}
	region := lease.Request{Selector: lease.Selector{{Key: "region", Operator: lease.In, Values: []string{"eu"}}}}
	try(t, s, region) // once for each attribute, all are classed anew
	try(t, s, byName)
	for what, req := range map[string]lease.Request{
		"all": {}, "one region": region, "a domain": {Domain: "shop.example"}, "a name": {Selector: named("78")},
	} {
		before := calls(t, admin)
		require.NoError(t, try(t, s, req).Release(t.Context()))
		assert.Less(t, calls(t, admin)-before, 100, what)
	}
	before := calls(t, admin)
	why := refused(t, s, byName)
	assert.Less(t, calls(t, admin)-before, 100)
	assert.Equal(t, lease.Counts{Total: 2000, NotSelected: 1999, Leased: 1}, why.Counts)
	assert.Positive(t, why.RetryAfter)
}

func named(values ...string) lease.Selector {
	return lease.Selector{{Key: "name", Operator: lease.In, Values: values}}
}

// Selectors by such a name choose as any others do.
func TestASelectorByNameChoosesAsAnyOther(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	try(t, filledByName(t, s, 300), lease.Request{Selector: named("7")})
	require.ErrorIs(t, refused(t, s, lease.Request{Selector: named("none")}), lease.ErrNoMatch)
	assert.Equal(t, lease.Counts{Total: 300, NotSelected: 299, Leased: 1}, refused(t, s, lease.Request{Selector: named("7", "7")}).Counts)
	l := try(t, s, lease.Request{Selector: named("1", "2")})
	assert.Equal(t, "1", l.Endpoint().ID)
	require.NoError(t, l.Release(t.Context()))
	l = try(t, s, lease.Request{Selector: named("1", "2"), Domain: "x.example"})
	assert.Equal(t, "2", l.Endpoint().ID, "the least recently used")
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
	require.NoError(t, l.Release(t.Context()))
	assert.Equal(t, lease.Counts{Total: 300, NotSelected: 299, CoolingForDomain: 1},
		refused(t, s, lease.Request{Selector: named("2"), Domain: "x.example"}).Counts)
	both := append(named("3", "4"), lease.Requirement{Key: "region", Operator: lease.In, Values: []string{"us"}})
	assert.Equal(t, "3", try(t, s, lease.Request{Selector: both}).Endpoint().ID)
	others := lease.Selector{{Key: "name", Operator: lease.DoesNotExist}}
	require.ErrorIs(t, refused(t, s, lease.Request{Selector: others}), lease.ErrNoMatch)

	putWith(t, s, endpoint.Endpoint{ID: "5", Attributes: map[string]string{"name": "renamed"}})
	require.ErrorIs(t, refused(t, s, lease.Request{Selector: named("5")}), lease.ErrNoMatch)
	assert.Equal(t, "5", try(t, s, lease.Request{Selector: named("renamed")}).Endpoint().ID)
	require.NoError(t, s.Remove(t.Context(), "6"))
	require.ErrorIs(t, refused(t, s, lease.Request{Selector: named("6")}), lease.ErrNoMatch)
	wait := waitInBackground(t, s, lease.Request{Selector: named("new")})
	awaitWaiting(t, s, 1)
	putWith(t, s, endpoint.Endpoint{ID: "new", Attributes: map[string]string{"name": "new"}})
	require.NoError(t, (<-wait).err)
}

// An attribute that was classed by until its values became too many.
func TestAnAttributeWhoseValuesBecomeTooMany(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	filledByName(t, s, 10)
	try(t, s, lease.Request{Selector: named("7")})
	filledByName(t, s, 300)
	assert.Equal(t, "8", try(t, s, lease.Request{Selector: named("8")}).Endpoint().ID)
	assert.Equal(t, "299", try(t, s, lease.Request{Selector: named("299")}).Endpoint().ID)
	classes, err := connect(t, server).HLen(t.Context(), "egress:{test}:classes").Result()
	require.NoError(t, err)
	assert.EqualValues(t, 1, classes)
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, lease.Counts{Total: 300, Leased: 3, Free: 297}, stats.Endpoints)
}

// A selector whose attribute was given up for newer ones finds what has it since.
func TestASelectorThatWasForgottenIsAskedAnew(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a", "b")
	of := func(i int) lease.Request {
		return lease.Request{Selector: lease.Selector{{Key: fmt.Sprint("key", i), Operator: lease.Exists}}}
	}
	for i := range 20 {
		require.ErrorIs(t, refused(t, s, of(i)), lease.ErrNoMatch)
	}
	putWith(t, s, endpoint.Endpoint{ID: "c", Attributes: map[string]string{"key0": "x"}})
	assert.Equal(t, "c", try(t, s, of(0)).Endpoint().ID)
}

// filledByName gives each endpoint a name of its own.
func filledByName(t *testing.T, s *redislease.Store, n int) *redislease.Store {
	t.Helper()
	regions := []string{"eu", "us"}
	for i := range n {
		putWith(t, s, endpoint.Endpoint{ID: strconv.Itoa(i), Attributes: map[string]string{"region": regions[i%2], "name": strconv.Itoa(i)}})
	}
	return s
}

// What comes free below the place from which a domain looks is found all the same.
func TestWhatComesFreeBehindTheMarkIsFound(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	h := newHands(s)
	fill(t, s, 200)
	req := lease.Request{Domain: "shop.example", TTL: time.Hour}
	var held []*lease.Lease
	for range 100 {
		held = append(held, try(t, s, req))
	}
	for range 99 {
		l := try(t, s, req)
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
		require.NoError(t, l.Release(t.Context()))
	}
	last := try(t, s, req) // passes by all that are banned
	refused(t, s, req)
	require.NoError(t, held[40].Release(t.Context()))
	assert.Equal(t, held[40].Endpoint().ID, try(t, s, req).Endpoint().ID, "released")
	refused(t, s, req)
	require.NoError(t, held[50].ReleaseUnused(t.Context()))
	assert.Equal(t, held[50].Endpoint().ID, try(t, s, req).Endpoint().ID, "released unused")
	refused(t, s, req)
	address := endpoint.Verdict{Health: endpoint.Healthy, EgressIP: netipOf("198.51.100.9")}
	require.NoError(t, s.SetVerdict(t.Context(), last.Endpoint().ID, address))
	require.NoError(t, last.Release(t.Context()))
	assert.Equal(t, last.Endpoint().ID, try(t, s, req).Endpoint().ID, "of another address")
	refused(t, s, req)
	h.turn(6 * time.Minute)
	try(t, s, req) // bans have ended
}

func fill(t *testing.T, s *redislease.Store, n int) {
	t.Helper()
	regions := []string{"eu", "us"}
	for i := range n {
		putWith(t, s, endpoint.Endpoint{ID: strconv.Itoa(i), Attributes: map[string]string{"region": regions[i%2]}})
	}
}
