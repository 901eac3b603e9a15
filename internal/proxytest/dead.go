package proxytest

import (
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
)

// Dead returns the URL of a proxy that refuses every connection. Its port stays
// bound until the test ends: one that was merely closed may be another's soon.
func Dead(t testing.TB) endpoint.URL {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	port := name.(*syscall.SockaddrInet4).Port
	url, err := endpoint.NewURL("http", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "", "")
	require.NoError(t, err)
	return url
}
