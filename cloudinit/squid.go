package cloudinit

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"

	"github.com/egressfleet/egress/internal/check"
)

// Squid describes a forward proxy. [Squid.UserData] renders the cloud-config
// that turns a machine into it, [Squid.Conf] its squid.conf alone.
//
// It is closed by default. The zero Squid is refused: name the client
// networks, or users with passwords, or both, in which case a client must
// come from such a network and also authenticate. A network of all addresses
// without users would be an open proxy, and is refused too.
//
// It leads outwards only. Destinations on loopback, link-local (with the
// metadata services of clouds), private, shared, multicast and reserved
// networks are refused, by the address a name resolves to. CONNECT goes to
// port 443, plain HTTP to 80, 443 and the ports above 1024.
//
// Targets cannot tell it is there: it sends no Via, X-Forwarded-For, Forwarded
// or kindred header, neither its own nor the client's, and adds no
// Cache-Control.
//
// It lives within bounds: nothing is cached on disk or in memory, logs rotate
// by size, open files are limited, and under systemd a failed Squid is started
// again.
//
// The script it comes with installs Squid unless it is there, by apt-get, dnf,
// yum, zypper or apk, and knows systemd and OpenRC. It is made for Squid 5 and
// 6 as in Debian 12, Debian 13 and Ubuntu 24.04. On a guest with SELinux a
// port other than 3128 must be allowed there by other means.
type Squid struct {
	// Port is the TCP port to listen on. Default 3128.
	Port int `json:"port,omitempty"`

	// Listen is the address to listen on. The zero Addr means all, of IPv4
	// and, where the guest has it, of IPv6.
	Listen netip.Addr `json:"listen,omitzero"`

	// Clients are the networks that may use the proxy. Empty means any, and
	// then Users must not be empty.
	Clients []netip.Prefix `json:"clients,omitempty"`

	// Users are the names and passwords for basic authentication. Empty
	// means that clients need none.
	Users []SquidUser `json:"users,omitempty"`

	// SaltSeed makes the salts of the password hashes: the UID of the
	// machine is a good one. The same seed gives the same bytes, another
	// seed gives hashes that cannot be compared. May be empty.
	SaltSeed string `json:"saltSeed,omitempty"`

	// ConnectPorts are the ports that CONNECT may reach. Default 443.
	ConnectPorts []PortRange `json:"connectPorts,omitempty"`

	// HTTPPorts are the ports that plain HTTP may reach. Default 80, 443 and
	// 1025-65535. The proxy's own port is never among them.
	HTTPPorts []PortRange `json:"httpPorts,omitempty"`

	// AllowDestinations are networks to open that are closed by default, a
	// private network with test targets for instance. Empty opens none.
	AllowDestinations []netip.Prefix `json:"allowDestinations,omitempty"`

	// DenyDestinations are further networks to close. They win over
	// AllowDestinations. Empty closes none.
	DenyDestinations []netip.Prefix `json:"denyDestinations,omitempty"`

	// AccessLog writes a line for each request, with the client, the user
	// and the target. Default false: only errors are logged.
	AccessLog bool `json:"accessLog,omitempty"`

	// LogBytes is the size at which a log is rotated, looked at every ten
	// minutes; two old ones are kept. Default 16 MiB, at least 4 KiB.
	LogBytes int64 `json:"logBytes,omitempty"`

	// FileDescriptors bounds the open files and sockets; a client in service
	// takes two. Default 16384, from 256 to 65536.
	FileDescriptors int `json:"fileDescriptors,omitempty"`

	// AuthorizedKeys are SSH keys for the image's default user, each a line
	// as in authorized_keys. Empty adds none.
	AuthorizedKeys []string `json:"authorizedKeys,omitempty"`

	// ExtraConf are further lines of squid.conf. They come last, so that
	// they can tune but not open: http_access there has no effect, and an
	// acl of this package, whose names start with egress_, is refused.
	// Empty adds none.
	ExtraConf []string `json:"extraConf,omitempty"`
}

// SquidUser is someone who may use the proxy. Both fields are required.
type SquidUser struct {
	// Name may hold any characters but colons and control characters, and
	// does not start with a space or a number sign. Upper and lower case
	// differ.
	Name string `json:"name"`

	// Password may hold any bytes but NUL, carriage return and line feed,
	// which Squid refuses. Only a sha512-crypt hash of it reaches the guest.
	Password Secret `json:"password"`
}

// Defaults of a Squid.
const (
	defaultPort            = 3128
	defaultLogBytes        = 16 << 20
	defaultFileDescriptors = 16384
)

// withDefaults fills in what was left out. The slices are shared and must not
// be written to.
func (s Squid) withDefaults() Squid {
	if s.Port == 0 {
		s.Port = defaultPort
	}
	if len(s.ConnectPorts) == 0 {
		s.ConnectPorts = []PortRange{{First: 443}}
	}
	if len(s.HTTPPorts) == 0 {
		s.HTTPPorts = []PortRange{{First: 80}, {First: 443}, {First: 1025, Last: 65535}}
	}
	if s.LogBytes == 0 {
		s.LogBytes = defaultLogBytes
	}
	if s.FileDescriptors == 0 {
		s.FileDescriptors = defaultFileDescriptors
	}
	return s
}

// Validate reports every problem of s at once.
func (s Squid) Validate() error {
	var p check.Problems
	if s.Port < 0 || s.Port > 65535 {
		p.Add("port", s.Port, "not a TCP port; use 1 to 65535, or leave it out for 3128")
	}
	if s.Listen.Zone() != "" || s.Listen.Is4In6() {
		p.Add("listen", s.Listen, "not a plain address; leave out the zone, and write IPv4 as IPv4")
	}
	s.checkAccess(&p)
	for i, u := range s.Users {
		u.check(&p, fmt.Sprintf("users[%d].", i))
	}
	s.checkUnique(&p)
	checkPorts(&p, "connectPorts", s.ConnectPorts)
	checkPorts(&p, "httpPorts", s.HTTPPorts)
	checkPrefixes(&p, "clients", s.Clients)
	checkPrefixes(&p, "allowDestinations", s.AllowDestinations)
	checkPrefixes(&p, "denyDestinations", s.DenyDestinations)
	s.checkBounds(&p)
	checkLines(&p, "authorizedKeys", s.AuthorizedKeys)
	checkLines(&p, "extraConf", s.ExtraConf)
	s.checkExtraConf(&p)
	return p.Err()
}

// checkExtraConf refuses to add to the ACLs that access depends on.
func (s Squid) checkExtraConf(p *check.Problems) {
	for i, line := range s.ExtraConf {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "acl" && strings.HasPrefix(f[1], "egress_") {
			p.Add(fmt.Sprintf("extraConf[%d]", i), "acl "+f[1], "would change who may use the proxy or what it may reach; set the fields for that, or name the acl otherwise")
		}
	}
}

// checkAccess refuses a proxy for nobody and a proxy for everybody.
func (s Squid) checkAccess(p *check.Problems) {
	if len(s.Users) > 0 {
		return
	}
	if len(s.Clients) == 0 {
		p.Add("clients", "", "neither client networks nor users are given, so the proxy would be open or useless; give one of them")
	}
	for i, c := range s.Clients {
		if c.IsValid() && c.Bits() == 0 {
			p.Add(fmt.Sprintf("clients[%d]", i), c, "all addresses without users would be an open proxy; name the networks, or add users")
		}
	}
}

// check notes what is wrong with a user, without telling the password.
func (u SquidUser) check(p *check.Problems, path string) {
	switch {
	case u.Name == "":
		p.Add(path+"name", u.Name, "empty; basic authentication needs a name")
	case strings.Contains(u.Name, ":"):
		p.Add(path+"name", u.Name, "holds a colon, which basic authentication takes for the end of the name; choose another")
	case !isLine(u.Name):
		p.Add(path+"name", u.Name, "holds control characters or is not UTF-8; choose another")
	case u.Name[0] == ' ' || u.Name[0] == '#':
		p.Add(path+"name", u.Name, "starts with a space or a number sign, where the password file would have a comment; choose another")
	case len(u.Name) > 200:
		p.Add(path+"name", u.Name, "longer than 200 bytes, which is the limit of the password file; choose another")
	}
	switch {
	case u.Password == "":
		p.Add(path+"password", "", "empty, which Squid takes for no password; give one")
	case strings.ContainsAny(string(u.Password), "\x00\r\n"):
		p.Add(path+"password", u.Password, "holds NUL, carriage return or line feed, which Squid refuses; choose another")
	case len(u.Password) > 512:
		p.Add(path+"password", u.Password, "longer than 512 bytes; choose another")
	}
}

// checkUnique refuses a name that is given twice.
func (s Squid) checkUnique(p *check.Problems) {
	seen := map[string]bool{}
	for i, u := range s.Users {
		if seen[u.Name] {
			p.Add(fmt.Sprintf("users[%d].name", i), u.Name, "given twice; names must be unique")
		}
		seen[u.Name] = true
	}
}

// checkBounds notes limits out of their range.
func (s Squid) checkBounds(p *check.Problems) {
	if s.LogBytes != 0 && s.LogBytes < 4096 {
		p.Add("logBytes", s.LogBytes, "too small; use at least 4096, or leave it out for 16 MiB")
	}
	if s.FileDescriptors != 0 && (s.FileDescriptors < 256 || s.FileDescriptors > 65536) {
		p.Add("fileDescriptors", s.FileDescriptors, "out of range; use 256 to 65536, or leave it out for 16384")
	}
}

// checkLines refuses what would not stay on a line of its own. A line may hold
// a secret and is not quoted.
func checkLines(p *check.Problems, field string, lines []string) {
	for i, line := range lines {
		if !isLine(strings.ReplaceAll(line, "\t", " ")) || strings.TrimSpace(line) == "" {
			p.Add(fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%d bytes", len(line)), "not one line of text; give each line as an element of its own")
		}
	}
}

// passwordFile renders the users as basic_ncsa_auth reads them.
func (s Squid) passwordFile() string {
	var b strings.Builder
	for _, u := range s.Users {
		fmt.Fprintf(&b, "%s:%s\n", u.Name, passwordHash(string(u.Password), s.salt(u.Name)))
	}
	return b.String()
}

// salt derives a user's salt from the seed, and not from the password, which
// a salt must not give away.
func (s Squid) salt(user string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "squid salt\n%d %s\n%s", len(s.SaltSeed), s.SaltSeed, user))
	salt := make([]byte, 16)
	for i := range salt {
		salt[i] = cryptAlphabet[sum[i]&0x3f]
	}
	return string(salt)
}
