package cloudinit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/cloudinit"
)

// guest is a directory that stands for a guest: the only programs its scripts
// find are the stubs put there and a few tools.
type guest struct {
	t       *testing.T
	bin     string
	root    string
	journal string
}

// newGuest makes a guest with the given stubs, each "name" or "name: body".
// A stub writes its name and arguments into the journal.
func newGuest(t *testing.T, stubs ...string) *guest {
	t.Helper()
	dir := t.TempDir()
	g := &guest{t: t, bin: filepath.Join(dir, "bin"), root: filepath.Join(dir, "root"), journal: filepath.Join(dir, "journal")}
	require.NoError(t, os.MkdirAll(filepath.Join(g.root, "etc/squid"), 0o755))
	require.NoError(t, os.MkdirAll(g.bin, 0o755))
	for _, name := range []string{"sed", "id", "chmod", "chown", "cat"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(g.bin, name)))
	}
	for _, s := range append([]string{"sleep"}, stubs...) {
		g.stub(s)
	}
	return g
}

// stub adds a program.
func (g *guest) stub(s string) {
	name, body, _ := strings.Cut(s, ": ")
	script := "#!/bin/sh\necho \"" + name + " $*\" >> " + g.journal + "\n" + body + "\n"
	require.NoError(g.t, os.WriteFile(filepath.Join(g.bin, name), []byte(script), 0o755))
}

// shells are the interpreters to try: the guest's sh is dash or busybox.
func shells() [][]string {
	found := [][]string{{"/bin/sh"}}
	for _, s := range [][]string{{"dash"}, {"busybox", "sh"}, {"bash", "--posix"}} {
		if path, err := exec.LookPath(s[0]); err == nil {
			found = append(found, append([]string{path}, s[1:]...))
		}
	}
	return found
}

// run runs a script, its absolute paths moved under the guest's root, and
// returns output, journal and whether it succeeded.
func (g *guest) run(shell []string, script string) (output, journal string, ok bool) {
	g.t.Helper()
	for _, dir := range []string{"/etc/squid", "/usr/lib/squid", "/usr/lib64/squid", "/usr/libexec/squid"} {
		script = strings.ReplaceAll(script, dir, g.root+dir)
	}
	_ = os.Remove(g.journal)
	cmd := exec.Command(shell[0], append(shell[1:], "-c", script)...)
	cmd.Env = []string{"PATH=" + g.bin}
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(g.journal)
	return string(out), string(log), err == nil
}

const aptInstall = "-q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold "

func TestGuestAgentScript(t *testing.T) {
	const enabled = "systemctl is-enabled -q qemu-guest-agent\nsystemctl start qemu-guest-agent\n"
	cases := []struct {
		name    string
		stubs   []string
		ok      bool
		journal string
		says    string
	}{
		{"apt-get", []string{"apt-get", "systemctl"}, true,
			"apt-get " + aptInstall + "update\napt-get " + aptInstall + "install --no-install-recommends qemu-guest-agent\n" + enabled, "the agent runs"},
		{"apt-get before the others", []string{"apt-get", "dnf", "yum", "zypper", "apk", "systemctl"}, true,
			"apt-get " + aptInstall + "update\napt-get " + aptInstall + "install --no-install-recommends qemu-guest-agent\n" + enabled, ""},
		{"dnf", []string{"dnf", "yum", "systemctl"}, true, "dnf install -y qemu-guest-agent\n" + enabled, ""},
		{"yum", []string{"yum", "systemctl"}, true, "yum install -y qemu-guest-agent\n" + enabled, ""},
		{"zypper", []string{"zypper", "systemctl"}, true, "zypper --non-interactive install qemu-guest-agent\n" + enabled, ""},
		{"apk and OpenRC", []string{"apk", "rc-update", "rc-service"}, true,
			"apk add --no-cache qemu-guest-agent\nrc-update add qemu-guest-agent default\nrc-service qemu-guest-agent start\n", ""},
		{"none", []string{"systemctl"}, false, "", "install qemu-guest-agent in the image"},
		{"present", []string{"qemu-ga", "apt-get", "systemctl"}, true, enabled, "installed already"}, // so is a static unit, as that of Debian 12, to is-enabled
		{"not enabled", []string{"qemu-ga", "systemctl: [ $1 != is-enabled ]"}, true,
			"systemctl is-enabled -q qemu-guest-agent\nsystemctl enable qemu-guest-agent\nsystemctl start qemu-guest-agent\n", "the agent runs"},
		{"cannot be enabled", []string{"qemu-ga", "systemctl: [ $1 = start ]"}, true,
			"systemctl is-enabled -q qemu-guest-agent\nsystemctl enable qemu-guest-agent\nsystemctl start qemu-guest-agent\n", "was not enabled"},
		{"does not start", []string{"qemu-ga", "systemctl: [ $1 != start ]"}, false, enabled, "journalctl -u qemu-guest-agent"},
		{"no service manager", []string{"qemu-ga"}, false, "", "neither systemd nor OpenRC"},
		{"OpenRC has it already", []string{"qemu-ga", "rc-update: exit 1", "rc-service"}, true,
			"rc-update add qemu-guest-agent default\nrc-service qemu-guest-agent start\n", ""},
		{"mirror is down", []string{"dnf: exit 1", "systemctl"}, false,
			"dnf install -y qemu-guest-agent\nsleep 5\ndnf install -y qemu-guest-agent\nsleep 15\ndnf install -y qemu-guest-agent\n", "could not be installed"},
		{"old lists will do", []string{"apt-get: case \"$*\" in *update) exit 1;; esac", "systemctl"}, true,
			strings.Repeat("apt-get "+aptInstall+"update\nsleep N\n", 3) + "apt-get " + aptInstall + "install --no-install-recommends qemu-guest-agent\n" + enabled, "going on with the old ones"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, shell := range shells() {
				g := newGuest(t, c.stubs...)
				output, journal, ok := g.run(shell, string(cloudinit.GuestAgentScript()))
				assert.Equal(t, c.ok, ok, "%v: %s", shell, output)
				assert.Equal(t, plainSleeps(c.name, c.journal), plainSleeps(c.name, journal), "%v", shell)
				assert.Contains(t, output, c.says, "%v", shell)
			}
		})
	}
}

// plainSleeps makes one case's journal comparable: how long it sleeps between
// attempts is another case's business.
func plainSleeps(name, journal string) string {
	if name != "old lists will do" {
		return journal
	}
	var kept []string
	for line := range strings.Lines(journal) {
		if !strings.HasPrefix(line, "sleep ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func TestGuestAgentScriptMayRunAgain(t *testing.T) {
	g := newGuest(t, "systemctl")
	g.stub("apt-get: case \"$*\" in *\"install \"*) echo '#!/bin/sh' > " + g.bin + "/qemu-ga; chmod +x " + g.bin + "/qemu-ga;; esac")
	_, first, ok := g.run([]string{"/bin/sh"}, string(cloudinit.GuestAgentScript()))
	require.True(t, ok)
	assert.Contains(t, first, "apt-get")
	_, second, ok := g.run([]string{"/bin/sh"}, string(cloudinit.GuestAgentScript()))
	require.True(t, ok)
	assert.NotContains(t, second, "apt-get")
	assert.Contains(t, second, "systemctl start qemu-guest-agent")
}

// squidGuest has the files that cloud-init wrote, and the helper in a folder.
func squidGuest(t *testing.T, helperDir string, stubs ...string) *guest {
	g := newGuest(t, stubs...)
	for path, content := range map[string]string{
		"etc/squid/squid.conf":         "auth_param basic program " + cloudinit.HelperPath + " " + cloudinit.UsersPath + "\n",
		"etc/squid/egress.users":       "u:hash\n",
		helperDir + "/basic_ncsa_auth": "#!/bin/sh\n",
	} {
		path = filepath.Join(g.root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o755))
	}
	return g
}

const squidStub = "squid: [ \"$1\" = -v ] && echo \"configure options: '--with-default-user=nobody' '--x'\"; exit 0"

func TestSquidSetupScript(t *testing.T) {
	for _, shell := range shells() {
		g := squidGuest(t, "usr/lib64/squid", squidStub, "chown", "systemctl")
		output, journal, ok := g.run(shell, cloudinit.SquidSetupScript())
		require.True(t, ok, output)
		users, conf := g.root+cloudinit.UsersPath, g.root+cloudinit.ConfPath
		assert.Equal(t, "squid -v\nchown nobody "+users+"\nsquid -k parse -f "+conf+"\nsystemctl is-enabled -q squid\nsystemctl daemon-reload\nsystemctl is-enabled -q squid\nsystemctl restart squid\nsystemctl restart logrotate.timer\n", journal)

		info, err := os.Stat(users)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o400), info.Mode().Perm(), "hashes are for Squid's user only")
		content, err := os.ReadFile(conf)
		require.NoError(t, err)
		assert.Equal(t, "auth_param basic program "+g.root+"/usr/lib64/squid/basic_ncsa_auth "+cloudinit.UsersPath+"\n", string(content))
	}
}

func TestSquidSetupScriptInstalls(t *testing.T) {
	g := squidGuest(t, "usr/lib/squid", "chown", "apk", "rc-update", "rc-service")
	g.stub("apk: echo '#!/bin/sh' > " + g.bin + "/squid; chmod +x " + g.bin + "/squid")
	output, journal, ok := g.run([]string{"/bin/sh"}, cloudinit.SquidSetupScript())
	require.True(t, ok, output)
	assert.Contains(t, journal, "apk add --no-cache squid\n")
	assert.Contains(t, journal, "rc-update add squid default\nrc-service squid restart\n")
}

func TestSquidSetupScriptFailures(t *testing.T) {
	cases := []struct{ name, helperDir, squid, says string }{
		{"configuration refused", "usr/lib/squid", "squid: exit 1", "squid does not accept"},
		{"no helper", "elsewhere", squidStub, "basic_ncsa_auth is not here"},
	}
	for _, c := range cases {
		g := squidGuest(t, c.helperDir, c.squid, "chown", "systemctl")
		output, journal, ok := g.run([]string{"/bin/sh"}, cloudinit.SquidSetupScript())
		assert.False(t, ok, c.name)
		assert.Contains(t, output, c.says, c.name)
		assert.NotContains(t, journal, "systemctl restart", c.name)
	}
}

func TestScriptsParse(t *testing.T) {
	for name, script := range map[string]string{"agent": string(cloudinit.GuestAgentScript()), "squid": cloudinit.SquidSetupScript()} {
		path := tempFile(t, name, []byte(script))
		for _, shell := range shells() {
			run(t, shell[0], append(shell[1:], "-n", path)...)
		}
		golden(t, name+".sh", []byte(script))
	}
}

func TestScriptsByShellcheck(t *testing.T) {
	shellcheck := tool(t, "shellcheck", "shellcheck")
	for _, script := range []string{string(cloudinit.GuestAgentScript()), cloudinit.SquidSetupScript()} {
		// "a && b || fail" is meant: both must hold. log_as and helpers are shared.
		run(t, shellcheck, "-s", "sh", "-e", "SC2015", tempFile(t, "script.sh", []byte(script)))
	}
}
