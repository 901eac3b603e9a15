// Package labtest has what tests through a guest of the lab need: how its hypervisor is
// reached, and a site on its bridge.
package labtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// Address is the lab's own, on its bridge.
	Address = "10.77.0.1"
	// Network is the bridge's.
	Network = Address + "/24"
	// URL is that of the [Site]. Only guests can resolve its name.
	URL = "https://" + name + "/"

	name = "site.lab.test"
)

// Require skips the test outside of the lab.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv("KVM_TEST_IMAGE_URL") == "" || os.Getenv("KVM_TEST_BRIDGE") == "" {
		t.Skip("needs the lab: make lab-test")
	}
}

// Providers is a providers file with one, "lab", on the hypervisor that KVM_TEST_*
// describe, whose SSH key is in that file.
func Providers(keyFile string) []byte {
	env := os.Getenv
	return fmt.Appendf(nil, `
providers:
  - name: lab
    type: kvm
    kvm:
      sshKeyFile: %q
      knownHostsFile: %q
      images: {lab: {url: %q, sha256: %q}}
      machineTypes: {small: {vcpus: 2, memoryMiB: 768}}
      hosts: [{name: lab, address: %q, user: %q, pool: %q, bridge: %q}]
`, keyFile, env("KVM_TEST_KNOWN_HOSTS"), env("KVM_TEST_IMAGE_URL"), env("KVM_TEST_IMAGE_SHA256"),
		env("KVM_TEST_HOST"), env("KVM_TEST_USER"), env("KVM_TEST_POOL"), env("KVM_TEST_BRIDGE"))
}

// KeyFile is where the key to the hypervisor is.
func KeyFile() string { return os.Getenv("KVM_TEST_SSH_KEY") }

// Site serves pages at [URL] until the test ends, and returns the certificate that
// verifies it. Each page is the address that it was fetched from.
func Site(t testing.TB) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort(Address, "443"))
	require.NoError(t, err)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			fmt.Fprint(w, host)
		}),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return certificate
}

// PEM is a certificate as files have it.
func PEM(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}
