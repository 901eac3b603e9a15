package proxytest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
)

// Squid starts the real Squid on loopback and returns its URL. It knows the
// names of hosts alone, and lets everyone use any port. With a user name it
// demands the password. The test is skipped where Squid is not installed.
func Squid(t testing.TB, hosts map[string]string, username, password string) endpoint.URL {
	t.Helper()
	squid := program(t, "squid", "squid")
	dir, address := t.TempDir(), freeAddress(t)
	conf := fmt.Sprintf(`http_port %[1]s
hosts_file %[2]s/hosts
dns_nameservers 127.0.0.1
dns_timeout 1 second
dns_retransmit_interval 1 second
cache deny all
access_log none
cache_log %[2]s/cache.log
pid_filename none
pinger_enable off
shutdown_lifetime 0 seconds
`, address, dir)
	if username != "" {
		write(t, filepath.Join(dir, "users"), username+":"+hash(t, password)+"\n")
		conf += fmt.Sprintf("auth_param basic program /usr/lib/squid/basic_ncsa_auth %s/users\n"+
			"auth_param basic casesensitive on\nacl known proxy_auth REQUIRED\nhttp_access allow known\n", dir)
	} else {
		conf += "http_access allow all\n"
	}
	var names strings.Builder
	for name, ip := range hosts {
		fmt.Fprintln(&names, ip, name)
	}
	write(t, filepath.Join(dir, "hosts"), names.String())
	write(t, filepath.Join(dir, "squid.conf"), conf)
	giveTo(t, "proxy", dir)
	daemon(t, address, exec.Command(squid, "-N", "-f", filepath.Join(dir, "squid.conf")))
	url, err := endpoint.NewURL("http", address, username, password)
	require.NoError(t, err)
	return url
}

// Dante starts the real SOCKS server of that name on loopback. The test is
// skipped where it is not installed.
func Dante(t testing.TB) endpoint.URL {
	t.Helper()
	danted := program(t, "danted", "dante-server")
	address := freeAddress(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	conf := filepath.Join(t.TempDir(), "danted.conf")
	write(t, conf, fmt.Sprintf(`logoutput: stderr
internal: 127.0.0.1 port = %s
external: 127.0.0.1
clientmethod: none
socksmethod: none
client pass { from: 127.0.0.0/8 to: 0.0.0.0/0 }
socks pass { from: 127.0.0.0/8 to: 0.0.0.0/0 }
`, port))
	daemon(t, address, exec.Command(danted, "-f", conf))
	url, err := endpoint.NewURL("socks5", address, "", "")
	require.NoError(t, err)
	return url
}

// program finds a program, or skips the test and says which Debian package has it.
func program(t testing.TB, name, debian string) string {
	t.Helper()
	for _, candidate := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	t.Skipf("needs the real %s: apt-get install --no-install-recommends %s", name, debian)
	return ""
}

func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func write(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func hash(t testing.TB, password string) string {
	t.Helper()
	cmd := exec.Command(program(t, "openssl", "openssl"), "passwd", "-6", "-stdin")
	cmd.Stdin = strings.NewReader(password)
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// giveTo hands the folder to the user that a daemon started by root becomes.
func giveTo(t testing.TB, name, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	account, err := user.Lookup(name)
	require.NoError(t, err)
	uid, err := strconv.Atoi(account.Uid)
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, path := range append(files, dir) {
		require.NoError(t, os.Chown(path, uid, -1))
	}
	// The folders above are the test's own, and closed to others.
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
}

// daemon runs cmd until the test ends, and returns when it listens.
func daemon(t testing.TB, address string, cmd *exec.Cmd) {
	t.Helper()
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		// The group: daemons have children, which a kill of the first leaves.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait()
		kill.Stop()
		if t.Failed() {
			t.Logf("%s: %s", cmd.Path, output.String())
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 20*time.Second, 50*time.Millisecond, "%s does not listen: %s", cmd.Path, &output)
}
