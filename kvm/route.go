package kvm

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/egressfleet/egress/internal/check"
)

// defaultSockets are the paths of libvirt's socket on a host, in the order in
// which they are tried: that of the one daemon, then that of QEMU's own.
var defaultSockets = []string{"/var/run/libvirt/libvirt-sock", "/var/run/libvirt/virtqemud-sock"}

// hop is one SSH server on the way to a host. Hosts whose jumps are equal share
// one connection to it.
type hop struct {
	// address is host:port.
	address, user string
	// keyFile may be empty where an agent has the keys. An empty knownHosts
	// accepts any key of the server.
	keyFile, knownHosts string
}

// target is the host's own sshd.
func (c Config) target(h Host) hop {
	t := hop{address: h.sshAddress(), user: h.User, keyFile: or(h.SSHKeyFile, c.SSHKeyFile), knownHosts: or(h.KnownHostsFile, c.KnownHostsFile)}
	if c.InsecureIgnoreHostKey || h.noVerify {
		t.knownHosts = ""
	}
	return t
}

// jump is the server that the connection to the host goes through.
func (c Config) jump(h Host) (hop, bool) {
	if h.Jump == "" {
		return hop{}, false
	}
	j := c.target(h)
	if user, address, ok := strings.Cut(h.Jump, "@"); ok {
		j.user, j.address = user, withPort(address)
	} else {
		j.address = withPort(h.Jump)
	}
	j.knownHosts = or(h.KnownHostsFile, c.KnownHostsFile)
	if c.InsecureIgnoreHostKey {
		j.knownHosts = ""
	}
	return j, true
}

// withPort adds SSH's port where there is none.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	if ip, err := netip.ParseAddr(bare); err == nil && (ip.Is4() || bare != address) || !strings.Contains(address, ":") {
		return net.JoinHostPort(bare, "22")
	}
	return address
}

// uriFields are the parameters of an address that is a URI, and the fields of a
// host that they are.
var uriFields = map[string]func(*Host) *string{
	"socket":      func(h *Host) *string { return &h.Socket },
	"keyfile":     func(h *Host) *string { return &h.SSHKeyFile },
	"known_hosts": func(h *Host) *string { return &h.KnownHostsFile },
}

// expanded takes an address that is a URI of libvirt apart, so that the host's
// fields say the same. A plain address is left alone.
func (h Host) expanded() (Host, error) {
	if !strings.Contains(h.Address, "://") {
		return h, nil
	}
	u, err := url.Parse(h.Address)
	if err != nil {
		return h, errors.New("is not a URI of libvirt") // which may hold a secret
	}
	var problems check.Problems
	say := func(format string, args ...any) { problems.Within("", fmt.Errorf(format, args...)) }
	h.Address = ""
	switch u.Scheme {
	case "qemu", "qemu+unix":
		if u.Host != "" {
			say("%s:// is this machine's own libvirt and takes no host: write qemu+ssh://%s/system for another", u.Scheme, u.Host)
		}
		h.Address = addressLocal
	case "qemu+ssh":
		if _, ok := u.User.Password(); ok {
			say("a password is not used: log in by a key")
		}
		h.Address = withPort(u.Host)
		problems.Within("", merge(&h.User, u.User.Username(), "the user"))
	default:
		say("the scheme %q is not known: use qemu+ssh, qemu+unix or qemu", u.Scheme)
	}
	if u.Path != "/system" {
		say("the path %q is not that of the system's libvirt, which is /system", u.Path)
	}
	problems.Within("", h.expandQuery(u))
	return h, problems.Err()
}

// expandQuery takes the parameters of a URI, the last of each.
func (h *Host) expandQuery(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errors.New("its parameters cannot be read")
	}
	var problems check.Problems
	ssh := u.Scheme == "qemu+ssh"
	for _, name := range slices.Sorted(maps.Keys(query)) {
		value := query[name][len(query[name])-1]
		field := uriFields[name]
		switch {
		case ssh && name == "no_verify":
			h.noVerify = value != "" && value != "0"
		case field == nil || !ssh && name != "socket":
			problems.Within("", fmt.Errorf("the parameter %q is not known here: there is socket, and with qemu+ssh also keyfile, known_hosts and no_verify", name))
		default:
			problems.Within("", merge(field(h), value, "the parameter "+name))
		}
	}
	return problems.Err()
}

// merge keeps a URI from saying something else than the field beside it.
func merge(field *string, value, what string) error {
	if *field != "" && value != "" && *field != value {
		return fmt.Errorf("%s says %q and the host's own field %q: leave one out", what, value, *field)
	}
	*field = or(value, *field)
	return nil
}
