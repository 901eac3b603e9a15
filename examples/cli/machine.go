package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/provider"
)

// What an instance's metadata says of its proxy, so that another run can tell
// its URL: the port, what was made of it, and a fingerprint of the key that its
// password was derived from.
const (
	metaPort  = "port"
	metaKind  = "proxy"
	metaKey   = "key"
	kindSquid = "squid"
	kindOwn   = "cloud-init"
)

const defaultPort = 3128

// machineFlags say what up makes.
type machineFlags struct {
	placement    provider.Placement
	port         int
	cloudInit    string
	keyFile      string
	clients      setup.Prefixes
	destinations setup.Prefixes
	connectPorts portRanges
	sshKeys      []string
}

// squidFlags mean nothing beside a user-data of one's own.
var squidFlags = []string{"clients", "destinations", "connect-ports", "ssh-key", "key-file"}

func (m *machineFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&m.placement.Zone, "zone", "", "`host` or zone; the one with the most room if left out")
	flags.StringVar(&m.placement.MachineType, "machine-type", "", "machine `type`; may be left out if there is one")
	flags.StringVar(&m.placement.Image, "image", "", "`image`, by its key or URL; may be left out if there is one")
	flags.IntVar(&m.port, "port", defaultPort, "TCP `port` of the proxy")
	flags.Var(&m.clients, "clients", "`networks` that may use the proxy; any with the password, if empty")
	flags.Var(&m.destinations, "destinations", "private `networks` that the proxy may lead to; none if empty")
	flags.Var(&m.connectPorts, "connect-ports", "`ports` that CONNECT may reach, such as 443,8000-8999 (default 443)")
	flags.StringArrayVar(&m.sshKeys, "ssh-key", nil, "`file` with public keys that may log in to the machine as the image's user; may be given more than once")
	flags.StringVar(&m.cloudInit, "cloud-init", "", "`file` with user-data of your own in place of Squid's, - for standard input; it must start a proxy on --port that asks for no password")
	registerKeyFile(flags, &m.keyFile)
}

func registerKeyFile(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "key-file", "", "`file` with the key that passwords are derived from; made by the first up (default "+shownKeyFile()+")")
}

func shownKeyFile() string {
	if path, err := defaultKeyFile(); err == nil {
		return path
	}
	return "none: the environment names no home"
}

func defaultKeyFile() (string, error) {
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "egress", "proxy-key"), err
}

// machine checks the flags and reads the files that they name.
func (m *machineFlags) machine(flags *pflag.FlagSet, stdin io.Reader) (setup.Machine, error) {
	out := setup.Machine{Placement: m.placement, Squid: cloudinit.Squid{
		Port: m.port, Clients: m.clients, AllowDestinations: m.destinations, ConnectPorts: m.connectPorts,
	}}
	if m.port < 1 || m.port > 65535 {
		return out, usagef("--port: %d: must lie between 1 and 65535", m.port)
	}
	if m.cloudInit != "" {
		for _, name := range squidFlags {
			if flags.Changed(name) {
				return out, usagef("--%s: is for Squid; leave it out with --cloud-init", name)
			}
		}
		var err error
		out.UserData, err = readUserData(m.cloudInit, stdin)
		return out, err
	}
	var err error
	if out.Squid.AuthorizedKeys, err = readPublicKeys(m.sshKeys); err != nil {
		return out, err
	}
	if out.Key, err = readKey(m.keyFile, setup.Key); err != nil {
		return out, err
	}
	if _, err = out.Request("check"); err != nil {
		return out, asUsage(errors.Unwrap(err))
	}
	return out, nil
}

func readUserData(path string, stdin io.Reader) (data []byte, err error) {
	if path == "-" {
		data, err = io.ReadAll(stdin)
	} else {
		data, err = os.ReadFile(path)
	}
	switch {
	case err != nil:
		return nil, usagef("--cloud-init: %w", err)
	case len(data) == 0:
		return nil, usagef("--cloud-init: %s is empty", path)
	}
	return data, nil
}

// readPublicKeys reads the lines of authorized_keys from the files. A private
// key must not get into a guest, and is not shown.
func readPublicKeys(paths []string) (lines []string, err error) {
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, usagef("--ssh-key: %w", err)
		}
		if strings.Contains(string(text), "PRIVATE KEY") {
			return nil, usagef("--ssh-key: %s is a private key: give its public part, %s.pub", path, path)
		}
		found := len(lines)
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if len(lines) == found {
			return nil, usagef("--ssh-key: %s holds no key", path)
		}
	}
	return lines, nil
}

// readKey reads the key by read, from the default file if path is empty.
func readKey(path string, read func(string) ([]byte, error)) ([]byte, error) {
	if path == "" {
		var err error
		if path, err = defaultKeyFile(); err != nil {
			return nil, usagef("--key-file: give one: %w", err)
		}
	}
	key, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("--key-file: %s is not there: the first up makes it; name the one that the instances were made with", path)
	}
	if err != nil {
		return nil, usagef("--key-file: %w", err)
	}
	return key, nil
}

// existingKey reads a key and makes none.
func existingKey(path string) ([]byte, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	return setup.Key(path)
}

// request is that of one instance of the machine.
func request(m setup.Machine, uid, tag string) (provider.CreateRequest, error) {
	req, err := m.Request(uid)
	req.Tag = tag
	req.Metadata = map[string]string{metaPort: strconv.Itoa(m.Squid.Port), metaKind: kindOwn}
	if m.UserData == nil {
		req.Metadata[metaKind], req.Metadata[metaKey] = kindSquid, fingerprint(m.Key)
	}
	return req, err
}

// fingerprint tells keys apart, and nothing of them.
func fingerprint(key []byte) string {
	sum := sha256.Sum256(append([]byte("egressctl key\x00"), key...))
	return hex.EncodeToString(sum[:4])
}

// endpointOf is the proxy of an instance that some run has made. key is what its
// password was derived from.
func endpointOf(p provider.Provider, key []byte, in provider.Instance) (endpoint.Endpoint, error) {
	m := setup.Machine{Key: key}
	m.Squid.Port = portOf(in)
	switch {
	case in.Metadata[metaKind] == kindOwn:
		m.UserData = []byte{}
	case in.Metadata[metaKey] != fingerprint(key):
		return endpoint.Endpoint{}, fmt.Errorf("%s: its password was derived from another key: name it by --key-file", in.ID)
	}
	return setup.EndpointOf(p, m)(in.UID, in)
}

// portOf is the port that up wrote down, or zero.
func portOf(in provider.Instance) int {
	port, _ := strconv.Atoi(in.Metadata[metaPort])
	return port
}

// portRanges is a flag with a list of ports.
type portRanges []cloudinit.PortRange

// String implements pflag.Value.
func (p *portRanges) String() string {
	texts := make([]string, 0, len(*p))
	for _, r := range *p {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ",")
}

// Type implements pflag.Value.
func (p *portRanges) Type() string { return "ports" }

// Set implements pflag.Value.
func (p *portRanges) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		var r cloudinit.PortRange
		if err := r.UnmarshalText([]byte(strings.TrimSpace(part))); err != nil {
			return err
		}
		*p = append(*p, r)
	}
	return nil
}
