package cloudinit_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/cloudinit"
)

// fullSquid uses every field.
func fullSquid() cloudinit.Squid {
	return cloudinit.Squid{
		Port:              8888,
		Listen:            netip.MustParseAddr("::1"),
		Clients:           prefixes("10.20.1.7/16", "2001:db8::/32", "10.20.30.0/24"),
		Users:             []cloudinit.SquidUser{{Name: "crawler", Password: "correct horse: battery \"staple\" 😀\xff"}, {Name: "Zoë O'Hara", Password: "x"}},
		SaltSeed:          "uid-1",
		ConnectPorts:      []cloudinit.PortRange{{First: 443}, {First: 8443, Last: 8444}},
		HTTPPorts:         []cloudinit.PortRange{{First: 80}},
		AllowDestinations: prefixes("10.77.0.0/24"),
		DenyDestinations:  prefixes("10.77.0.128/25", "203.0.113.0/24"),
		AccessLog:         true,
		LogBytes:          1 << 20,
		FileDescriptors:   4096,
		AuthorizedKeys:    []string{"ssh-ed25519 AAAA me@home: \"laptop\""},
		ExtraConf:         []string{"connect_timeout 15 seconds", "# grüße"},
	}
}

// simpleSquid is the least that is accepted.
func simpleSquid() cloudinit.Squid {
	return cloudinit.Squid{Clients: prefixes("192.0.2.0/24")}
}

// prefixes parses networks.
func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestSquidGolden(t *testing.T) {
	for name, s := range map[string]cloudinit.Squid{"squid-full": fullSquid(), "squid-simple": simpleSquid()} {
		conf, err := s.Conf()
		require.NoError(t, err)
		golden(t, name+".conf", conf)
		userData, err := s.UserData()
		require.NoError(t, err)
		golden(t, name+".user-data.yaml", userData)
		again, err := s.UserData()
		require.NoError(t, err)
		assert.Equal(t, string(userData), string(again))
	}
}

func TestSquidSaltFollowsTheSeed(t *testing.T) {
	render := func(seed string) string {
		s := fullSquid()
		s.SaltSeed = seed
		userData, err := s.UserData()
		require.NoError(t, err)
		return string(userData)
	}
	assert.Equal(t, render("a"), render("a"))
	assert.NotEqual(t, render("a"), render("b"))
}

func TestSquidTellsNoPassword(t *testing.T) {
	s := fullSquid()
	userData, err := s.UserData()
	require.NoError(t, err)
	encoded, err := json.Marshal(s)
	require.NoError(t, err)
	s.Users[0].Name, s.Users[1].Password = "a:b", "battery\nstaple"
	for _, printed := range []string{
		string(userData), string(encoded), fmt.Sprintf("%v %+v %#v", s, s, s), s.Validate().Error(),
	} {
		assert.NotContains(t, printed, "battery")
	}
}

func TestSquidFromJSON(t *testing.T) {
	var s cloudinit.Squid
	require.NoError(t, yaml.UnmarshalStrict([]byte(`
port: 8888
listen: "::1"
clients: [10.0.0.0/8]
users: [{name: u, password: p}]
connectPorts: ["443", "8000-9000"]
`), &s))
	assert.Equal(t, []cloudinit.PortRange{{First: 443, Last: 443}, {First: 8000, Last: 9000}}, s.ConnectPorts)
	assert.Equal(t, "p", string(s.Users[0].Password))
	assert.NoError(t, s.Validate())
	assert.ErrorContains(t, yaml.Unmarshal([]byte(`connectPorts: ["80-x"]`), &s), `"80-x": not a port`)
}

func TestSquidValidate(t *testing.T) {
	everything := cloudinit.Squid{
		Port:            -1,
		Listen:          netip.MustParseAddr("fe80::1%eth0"),
		Clients:         append(prefixes("::ffff:10.0.0.0/104"), netip.Prefix{}),
		ConnectPorts:    []cloudinit.PortRange{{}, {First: 9, Last: 8}},
		LogBytes:        1,
		FileDescriptors: 1 << 20,
		AuthorizedKeys:  []string{"a\nb"},
		ExtraConf:       []string{"", "acl egress_clients src all"},
		Users: []cloudinit.SquidUser{
			{}, {Name: "a:b", Password: "a\x00"}, {Name: "#a", Password: "x"}, {Name: "a\nb", Password: "x"},
			{Name: "u", Password: "x"}, {Name: "u", Password: cloudinit.Secret(strings.Repeat("x", 513))},
			{Name: strings.Repeat("n", 201), Password: "x"},
		},
	}
	var all []string
	for _, s := range []cloudinit.Squid{{}, {Clients: prefixes("0.0.0.0/0", "::/0")}, everything} {
		err := s.Validate()
		require.Error(t, err)
		all = append(all, err.Error()+"\n")
		_, confErr := s.Conf()
		_, userDataErr := s.UserData()
		assert.Equal(t, err, confErr)
		assert.Equal(t, err, userDataErr)
	}
	golden(t, "squid.errors.txt", []byte(strings.Join(all, "\n")))
}

func TestSquidAllowedNetworksAreCutOut(t *testing.T) {
	s := simpleSquid()
	s.AllowDestinations = prefixes("10.77.0.0/24", "127.0.0.0/8", "fc00::/7")
	conf, err := s.Conf()
	require.NoError(t, err)
	var denied []netip.Prefix
	for line := range strings.Lines(string(conf)) {
		if network, ok := strings.CutPrefix(strings.TrimSpace(line), "acl egress_inner dst "); ok {
			denied = append(denied, netip.MustParsePrefix(network))
		}
	}
	for address, want := range map[string]bool{
		"10.77.0.1": false, "10.77.0.255": false, "10.77.1.0": true, "10.76.255.255": true, "10.0.0.1": true, "10.255.255.255": true,
		"127.0.0.1": false, "fd00::1": false, "fe80::1": true, "169.254.169.254": true, "93.184.216.34": false, "64:ff9b::a00:1": true,
		"64:ff9b::a4d:1": false, "2606:4700::1": false,
	} {
		in := 0
		for _, n := range denied {
			if n.Contains(netip.MustParseAddr(address)) {
				in++
			}
		}
		if want {
			assert.Equal(t, 1, in, "%s must be denied, by one network", address)
		} else {
			assert.Zero(t, in, "%s must not be denied", address)
		}
	}
}

func TestSquidUserDataByCloudInitSchema(t *testing.T) {
	cloudInit := tool(t, "cloud-init", "cloud-init")
	for _, s := range []cloudinit.Squid{fullSquid(), simpleSquid()} {
		userData, err := s.UserData()
		require.NoError(t, err)
		path := tempFile(t, "user-data", userData)
		assert.Contains(t, run(t, cloudInit, "schema", "-c", path), "Valid")
	}
}

func TestSquidUserDataWritesTheFiles(t *testing.T) {
	userData, err := fullSquid().UserData()
	require.NoError(t, err)
	conf, err := fullSquid().Conf()
	require.NoError(t, err)
	var files map[string]map[string]string
	cloudInitPython(t, &files, `
import base64, json, os, sys
from cloudinit import util
from cloudinit.config import cc_write_files
written = {}
def write_file(path, content, omode="wb", mode=0o644, **kwargs):
    if isinstance(content, str):
        content = content.encode()
    written[path] = {"mode": oct(mode), "content": content.decode()}
util.write_file = cc_write_files.util.write_file = write_file
cc_write_files.util.chownbyname = lambda *args, **kwargs: None
config = util.load_yaml(open(sys.argv[1], "rb").read())
cc_write_files.write_files("test", config["write_files"], "root:root")
print(json.dumps(written))
`, tempFile(t, "user-data", userData))
	assert.Equal(t, string(conf), files["/etc/squid/squid.conf"]["content"])
	assert.Equal(t, "0o600", files[cloudinit.UsersPath]["mode"])
	assert.Regexp(t, `^crawler:\$6\$[./0-9A-Za-z]{16}\$[./0-9A-Za-z]{86}\nZoë O'Hara:\$6\$`, files[cloudinit.UsersPath]["content"])
	assert.Equal(t, cloudinit.SquidSetupScript(), files["/usr/local/sbin/egress-squid-setup"]["content"])
	assert.Equal(t, "0o755", files["/usr/local/sbin/egress-squid-setup"]["mode"])
	assert.Contains(t, files["/etc/logrotate.d/squid"]["content"], "size 1048576")
	assert.Contains(t, files["/etc/systemd/system/squid.service.d/egress.conf"]["content"], "LimitNOFILE=4096")
}

func TestSquidLogrotateParses(t *testing.T) {
	logrotate := tool(t, "logrotate", "logrotate")
	userData, err := fullSquid().UserData()
	require.NoError(t, err)
	var config struct {
		WriteFiles []struct{ Path, Content string } `json:"write_files"`
	}
	require.NoError(t, yaml.Unmarshal(userData, &config))
	for _, f := range config.WriteFiles {
		if f.Path != "/etc/logrotate.d/squid" {
			continue
		}
		out, err := exec.Command(logrotate, "--debug", tempFile(t, "squid", []byte(f.Content))).CombinedOutput()
		require.NoError(t, err, string(out))
		assert.NotContains(t, string(out), "error:")
	}
}

func TestSquidConfByParser(t *testing.T) {
	squid := tool(t, "squid", "squid")
	for _, s := range []cloudinit.Squid{fullSquid(), simpleSquid()} {
		conf, err := s.Conf()
		require.NoError(t, err)
		out := run(t, squid, "-k", "parse", "-f", tempFile(t, "squid.conf", conf))
		for line := range strings.Lines(out) {
			// RFC 7230 wants Via; hiding is what this proxy is for.
			if !strings.Contains(line, "HTTP requires the use of Via") {
				assert.NotRegexp(t, "WARNING|ERROR|FATAL|UPGRADE", line)
			}
		}
	}
}
