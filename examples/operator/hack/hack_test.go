// Package hack_test runs the scripts of this folder, and the targets of the Makefile that
// use them, with a stand-in for kubectl.
package hack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kubectl notes its arguments, and answers as a cluster does that has what the test
// says.
const kubectl = `#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in
*"get crd"*) [ -z "${DOWN:-}" ] || { echo "connection refused" >&2; exit 1; }; printf '%s' "${CRD:-}" ;;
*"get proxies"*) [ -z "${DENIED:-}" ] || { echo "forbidden" >&2; exit 1; }; printf '%s' "${PROXIES:-}" ;;
*"get secret"*) [ -n "${SECRET:-}" ] ;;
*"create secret"*)
  for a in "$@"; do [[ $a != --from-file=* ]] || { f=${a#--from-file=}; echo "${f%%=*}: $(cat "${f#*=}")"; } done
  ;;
*apply*) cat > "$APPLIED" ;;
esac
`

type cluster struct {
	t   *testing.T
	dir string
	env []string
}

func newCluster(t *testing.T, env ...string) *cluster {
	c := &cluster{t: t, dir: t.TempDir()}
	c.write("kubectl", kubectl, 0o755)
	c.env = append(os.Environ(), "KUBECTL="+c.path("kubectl"), "CALLS="+c.path("calls"), "APPLIED="+c.path("applied"), "HOME="+c.dir)
	c.env = append(c.env, env...)
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) write(name, text string, mode os.FileMode) string {
	require.NoError(c.t, os.WriteFile(c.path(name), []byte(text), mode))
	return c.path(name)
}

func (c *cluster) read(name string) string {
	text, _ := os.ReadFile(c.path(name))
	return string(text)
}

// make runs a target of the operator's Makefile.
func (c *cluster) make(args ...string) (string, error) {
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-C", ".."}, args...)...)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

const (
	private = "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----\n"
	public  = "ssh-ed25519 AAAAC3Nz me@example.com\n"
)

func TestKVMSSHSecret(t *testing.T) {
	c := newCluster(t)
	c.write("id", private, 0o600)
	hosts := c.write("known_hosts", "kvm1 ssh-ed25519 AAAA\n", 0o600)
	out, err := c.make("kvm-ssh-secret", "KVM_SSH_KEY=~/id", "KVM_KNOWN_HOSTS="+hosts, "KVM_SSH_NAMESPACE=crawl")
	require.NoError(t, err, out)
	assert.Contains(t, c.read("applied"), "ssh-privatekey: "+private[:20])
	assert.Contains(t, c.read("applied"), "known_hosts: kvm1 ")
	assert.Contains(t, c.read("calls"), "-n crawl create secret generic kvm-ssh")
	assert.Contains(t, c.read("calls"), "--dry-run=client", "it is made or updated")

	_, err = c.make("kvm-ssh-secret", "KVM_SSH_KEY="+c.path("id"), "KVM_KNOWN_HOSTS="+hosts)
	require.NoError(t, err)
	assert.Contains(t, c.read("calls"), "-n egress-system create secret")
}

func TestKVMSSHSecretRefuses(t *testing.T) {
	for name, row := range map[string]struct{ key, text, hosts, says string }{
		"nothing":                           {says: "set KVM_SSH_KEY"},
		"a public key by its name":          {key: "id.pub", text: public, hosts: "x", says: "public key by its name"},
		"a private key that is named so":    {key: "id.pub", text: private, hosts: "x", says: "public key by its name"},
		"a public key under another name":   {key: "id", text: public, hosts: "x", says: "is not a private key"},
		"a file that is not there":          {key: "absent", hosts: "x", says: "cannot be read"},
		"hosts that nobody is known of":     {key: "id", text: private, says: "is empty"},
		"a folder in the place of the key ": {key: ".", hosts: "x", says: "is not a private key"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			args := []string{"kvm-ssh-secret"}
			if row.key != "" {
				args = append(args, "KVM_SSH_KEY="+c.path(row.key), "KVM_KNOWN_HOSTS="+c.write("hosts", row.hosts, 0o600))
			}
			if row.text != "" {
				c.write(row.key, row.text, 0o600)
			}
			out, err := c.make(args...)
			require.Error(t, err)
			assert.Contains(t, out, row.says)
			assert.Empty(t, c.read("calls"), "the cluster is not asked")
		})
	}
}

func TestOperatorSecretIsMadeOnce(t *testing.T) {
	c := newCluster(t)
	out, err := c.make("operator-secret")
	require.NoError(t, err, out)
	assert.Regexp(t, `(?m)/proxy-key: [0-9a-f]{64}$`, out)
	assert.Regexp(t, `(?m)/discovery-token: [0-9a-f]{64}$`, out)

	c = newCluster(t, "SECRET=yes")
	out, err = c.make("operator-secret")
	require.NoError(t, err, out)
	assert.NotContains(t, c.read("calls"), "create", "another key would replace every proxy")
}

// The operator stays while there are Proxies, and while nobody can tell.
func TestUndeploy(t *testing.T) {
	const crd = "CRD=customresourcedefinition.apiextensions.k8s.io/proxies.crawl.example.com"
	for name, row := range map[string]struct {
		env     []string
		deletes bool
	}{
		"without Proxies":                    {[]string{crd}, true},
		"without the CRD":                    {nil, true},
		"with a Proxy":                       {[]string{crd, "PROXIES=proxy/one"}, false},
		"while the API server does not tell": {[]string{crd, "DENIED=1"}, false},
		"while it does not answer":           {[]string{"DOWN=1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, row.env...)
			out, err := c.make("undeploy")
			assert.Equal(t, row.deletes, err == nil, out)
			if row.deletes {
				assert.Contains(t, c.read("calls"), "delete --ignore-not-found -k config/default")
			} else {
				assert.NotContains(t, c.read("calls"), "delete")
			}
		})
	}
}

// Nothing is deployed before the installation has a name and a page.
func TestDeployAsksForSettings(t *testing.T) {
	c := newCluster(t)
	out, err := c.make("deploy")
	require.Error(t, err)
	assert.Contains(t, out, "EGRESS_TAG")
	assert.Empty(t, c.read("calls"))
}
