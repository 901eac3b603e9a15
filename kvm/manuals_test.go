package kvm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/egressfleet/egress/internal/mdtest"
	"github.com/egressfleet/egress/internal/sshtest"
)

var virshCommand = regexp.MustCompile(`(?:^|\s)virsh((?: +[^\s|&;<>#()]+)+)`)

// virshSession are a manual's commands of virsh, in its order, and what must be there
// for some of them.
func virshSession(t *testing.T, path, domain string) (session []string) {
	t.Helper()
	needs := map[*regexp.Regexp]string{
		regexp.MustCompile(`^vol-delete --pool (\S+) (\S+)$`): "vol-create-as $1 $2 1M",
		regexp.MustCompile(`^net-start (\S+)$`):               "net-destroy $1",
		regexp.MustCompile(`^console NAME$`):                  "create " + domain,
	}
	for _, line := range mdtest.Commands(t, path) {
		for _, m := range virshCommand.FindAllStringSubmatch(line, -1) {
			words := strings.Fields(m[1])
			if words[0] == "-c" {
				require.Greater(t, len(words), 2, "%s: %s", path, line)
				assert.Equal(t, "qemu:///system", words[1], "%s: %s", path, line)
				words = words[2:]
			} else if len(words) == 1 {
				words = []string{"help", words[0]} // its name alone
			}
			command := strings.Join(words, " ")
			if slices.Contains(session, command) {
				continue
			}
			for before, need := range needs {
				if before.MatchString(command) {
					session = append(session, before.ReplaceAllString(command, need))
				}
			}
			session = append(session, command)
		}
	}
	return session
}

// Every command of virsh in the manuals does what it should on libvirt's own test
// driver. Those of one manual are one session, for each process has a host of its own.
func TestVirshOfTheManualsWorks(t *testing.T) {
	virsh, err := exec.LookPath("virsh")
	if err != nil {
		t.Skip("needs virsh, of Debian's libvirt-clients")
	}
	domain := filepath.Join(t.TempDir(), "domain.xml")
	require.NoError(t, os.WriteFile(domain, []byte("<domain type='test'><name>NAME</name><memory>1</memory><os><type>hvm</type></os></domain>"), 0o600))
	seen := 0
	for _, path := range mdtest.Files(t, "..") {
		session := virshSession(t, path, domain)
		if len(session) == 0 {
			continue
		}
		seen += len(session)
		// It goes on after a command that fails, and exits by the last.
		cmd := exec.CommandContext(t.Context(), virsh, "-c", "test:///default", strings.Join(session, "; "))
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		var said strings.Builder
		cmd.Stderr = &said
		_ = cmd.Run()
		require.True(t, cmd.ProcessState.Exited(), "%s", path)
		// A console is looked up, and then wants a terminal.
		wrong := strings.ReplaceAll(said.String(), "error: Cannot run interactive console without a controlling TTY\n", "")
		assert.Empty(t, wrong, "%s: %q", path, session)
	}
	assert.Greater(t, seen, 15)
}

// What docs/kvm.md has typed on the client, in its order, leads into a host.
func TestTheClientOfTheManualLogsIn(t *testing.T) {
	for _, name := range []string{"bash", "ssh", "ssh-keygen", "ssh-keyscan"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	host := sshtest.New(t, sshtest.NewKey(t).PublicKey())
	host.Shell(func(command string) string { return "the host runs " + command })
	home := t.TempDir()
	run := func(script string) string {
		// The host of the manual is at another address.
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", `address=${HOST%:*} port=${HOST##*:}
			ssh-keyscan() { command ssh-keyscan -p "$port" "${@//kvm1.example.com/$address}"; }
			ssh() { command ssh -F none -p "$port" -o HostName="$address" -o HostKeyAlias="[$address]:$port" -o BatchMode=yes "$@"; }
			`+script)
		cmd.Dir, cmd.Env = home, append(os.Environ(), "HOME="+home, "HOST="+host.Address(), "SSH_AUTH_SOCK=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, out)
		return string(out)
	}
	block := func(has string) string { return mdtest.Find(t, "..", "docs/kvm.md", has).Text }
	assert.Contains(t, run(block("ssh-keygen -t")), "SHA256:", "the fingerprints to compare")
	public, err := os.ReadFile(filepath.Join(home, "egress", "id_ed25519.pub"))
	require.NoError(t, err)
	assert.Regexp(t, `^ssh-ed25519 \S+ egress\n$`, string(public), "what the manual has written on the host")
	key, _, _, _, err := ssh.ParseAuthorizedKey(public)
	require.NoError(t, err)
	host.Authorize(key)
	assert.Contains(t, run("cd egress\n"+block("ssh -i ")), "the host runs virsh -c qemu:///system list --all")
}
