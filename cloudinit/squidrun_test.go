package cloudinit_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/cloudinit"
)

// startSquid runs the real Squid on loopback with s, its paths moved into a
// temporary folder, and ends it with the test. It returns the proxy's URL.
func startSquid(t *testing.T, s cloudinit.Squid) *url.URL {
	t.Helper()
	squid := tool(t, "squid", "squid")
	if _, err := os.Stat(cloudinit.HelperPath); err != nil {
		t.Skip("SKIPPED: " + cloudinit.HelperPath + " is not here, and this test needs it: apt-get install --no-install-recommends squid")
	}
	s.Listen, s.Port = netip.MustParseAddr("127.0.0.1"), freePort(t)
	dir := squidDir(t, s)
	cmd := exec.Command(squid, "-N", "-f", filepath.Join(dir, "squid.conf"))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &output, &output, dir
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "cache.log"))
			t.Logf("squid: %s\n%s", output.String(), log)
		}
	})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	return &url.URL{Scheme: "http", Host: address}
}

// squidDir lays out configuration and password file for a Squid of the test,
// in a folder that Squid's own user may write to.
func squidDir(t *testing.T, s cloudinit.Squid) string {
	t.Helper()
	dir := t.TempDir()
	conf, err := s.Conf()
	require.NoError(t, err)
	text := strings.ReplaceAll(string(conf), cloudinit.UsersPath, filepath.Join(dir, "users"))
	text = strings.ReplaceAll(text, "/var/log/squid/", dir+"/")
	text += fmt.Sprintf("pid_filename %[1]s/squid.pid\ncache_log %[1]s/cache.log\ncoredump_dir %[1]s\npinger_enable off\n", dir)
	users := usersFile(t, s)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "squid.conf"), []byte(text), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users"), users, 0o400))
	if os.Geteuid() == 0 {
		owner, err := user.Lookup("proxy")
		require.NoError(t, err)
		uid, _ := strconv.Atoi(owner.Uid)
		gid, _ := strconv.Atoi(owner.Gid)
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) // Squid gives up root and must get here
		require.NoError(t, os.Chown(dir, uid, gid))
		require.NoError(t, os.Chown(filepath.Join(dir, "users"), uid, gid))
	}
	return dir
}

// usersFile takes the password file out of the user-data.
func usersFile(t *testing.T, s cloudinit.Squid) []byte {
	t.Helper()
	userData, err := s.UserData()
	require.NoError(t, err)
	m := regexp.MustCompile(`encoding: b64\n    content: "(.*)"`).FindSubmatch(userData)
	if m == nil {
		return nil
	}
	return decodeBase64(t, string(m[1]))
}

// freePort is a port of loopback that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// portOf is the port of a test server.
func portOf(t *testing.T, server *httptest.Server) uint16 {
	t.Helper()
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	require.NoError(t, err)
	return uint16(port)
}

// through is a client that goes through the proxy, as user when that is set.
func through(t *testing.T, proxy *url.URL, user *url.Userinfo, target *httptest.Server) *http.Client {
	p := *proxy
	p.User = user
	transport := &http.Transport{Proxy: http.ProxyURL(&p), DisableKeepAlives: true}
	if base, ok := target.Client().Transport.(*http.Transport); ok && base.TLSClientConfig != nil {
		transport.TLSClientConfig = base.TLSClientConfig.Clone()
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func TestSquidRuns(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = r.Header.Write(w) })
	plain, secure := httptest.NewServer(echo), httptest.NewTLSServer(echo)
	defer plain.Close()
	defer secure.Close()
	users := []cloudinit.SquidUser{
		{Name: "crawler", Password: "simple"},
		{Name: "Mixed Case", Password: ` p@ss:w/ö"'$\ %41#?&😀` + "\t"},
		{Name: "ünicode%20", Password: "$6$looks$like-a-hash"},
		{Name: "x", Password: cloudinit.Secret(strings.Repeat("long password ", 30))},
	}
	proxy := startSquid(t, cloudinit.Squid{
		Users: users, ConnectPorts: []cloudinit.PortRange{{First: portOf(t, secure)}}, AccessLog: true,
		AllowDestinations: prefixes("127.0.0.0/8"),
	})

	t.Run("credentials of any characters", func(t *testing.T) {
		for _, u := range users {
			status, _ := fetch(t, through(t, proxy, url.UserPassword(u.Name, string(u.Password)), secure), secure.URL, nil)
			assert.Equal(t, 200, status, u.Name)
		}
	})
	t.Run("nobody else", func(t *testing.T) {
		for _, who := range []*url.Userinfo{nil, url.UserPassword("crawler", "wrong"), url.UserPassword("mixed case", string(users[1].Password)), url.UserPassword("crawler", "")} {
			status, _ := fetch(t, through(t, proxy, who, plain), plain.URL, nil)
			assert.Equal(t, 407, status, "%v", who)
			assert.Equal(t, 407, connect(t, proxy, who, secure.Listener.Addr().String()), "%v", who)
		}
	})
	t.Run("no trace", func(t *testing.T) {
		sent := http.Header{"Via": {"1.1 me"}, "X-Forwarded-For": {"192.0.2.1"}, "Forwarded": {"for=192.0.2.1"}, "X-Real-Ip": {"192.0.2.1"}, "X-Custom": {"kept"}}
		status, body := fetch(t, through(t, proxy, url.UserPassword("crawler", "simple"), plain), plain.URL, sent)
		assert.Equal(t, 200, status)
		assert.Contains(t, body, "X-Custom: kept")
		assert.NotRegexp(t, `(?im)^(via|x-forwarded|forwarded|x-real|cache-control|proxy-|x-squid|x-cache)`, body)
		_, body = fetch(t, through(t, proxy, url.UserPassword("crawler", "simple"), plain), plain.URL, http.Header{"Cache-Control": {"no-cache"}})
		assert.Contains(t, body, "Cache-Control: no-cache")
	})
	t.Run("ports", func(t *testing.T) {
		who := url.UserPassword("crawler", "simple")
		assert.Equal(t, 403, connect(t, proxy, who, "127.0.0.1:25"))
		assert.Equal(t, 403, connect(t, proxy, who, plain.Listener.Addr().String()), "CONNECT goes to its own ports only")
		assert.Equal(t, 403, connect(t, proxy, who, proxy.Host), "never to itself")
		status, _ := fetch(t, through(t, proxy, who, plain), "http://127.0.0.1:25/", nil)
		assert.Equal(t, 403, status)
	})
	t.Run("inner networks", func(t *testing.T) {
		client := through(t, proxy, url.UserPassword("crawler", "simple"), plain)
		for _, host := range []string{"10.0.0.1", "169.254.169.254", "192.168.1.1", "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "[64:ff9b::a00:1]", "0.0.0.0", "100.64.0.1"} {
			status, _ := fetch(t, client, "http://"+host+"/", nil)
			assert.Equal(t, 403, status, host)
		}
	})
}

func TestSquidRunsClosedToLoopback(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	port := strconv.Itoa(int(portOf(t, server)))
	proxy := startSquid(t, cloudinit.Squid{Clients: prefixes("127.0.0.0/8")})
	for _, host := range []string{"127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0.0.0.0", "0"} {
		status, _ := fetch(t, through(t, proxy, nil, server), "http://"+host+":"+port+"/", nil)
		// 403 where Squid reads it as an address, 503 where it finds no such name.
		assert.Contains(t, []int{403, 503}, status, host)
	}
	assert.Equal(t, 403, connect(t, proxy, nil, "127.0.0.1:443"))
}

func TestSquidRunsForClientsOnly(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	both := cloudinit.Squid{
		Clients: prefixes("192.0.2.0/24"), Users: []cloudinit.SquidUser{{Name: "u", Password: "p"}},
		AllowDestinations: prefixes("127.0.0.0/8"),
	}
	proxy := startSquid(t, both)
	status, _ := fetch(t, through(t, proxy, url.UserPassword("u", "p"), server), server.URL, nil)
	assert.Equal(t, 403, status, "a good password from a wrong network is not enough")
}

// fetch gets a page and returns status and body. A refused CONNECT is returned
// as the status the proxy gave.
func fetch(t *testing.T, client *http.Client, target string, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, target, nil)
	require.NoError(t, err)
	for key, values := range header {
		req.Header[key] = values
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// connect asks the proxy for a tunnel and returns the status of its answer.
func connect(t *testing.T, proxy *url.URL, who *url.Userinfo, target string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var status int
	p := *proxy
	p.User = who
	transport := &http.Transport{
		Proxy: http.ProxyURL(&p),
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			status = resp.StatusCode
			return fmt.Errorf("only the status is wanted")
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+target+"/", nil)
	require.NoError(t, err)
	_, err = transport.RoundTrip(req)
	require.Error(t, err)
	return status
}
