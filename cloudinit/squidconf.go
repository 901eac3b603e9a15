package cloudinit

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Conf renders squid.conf, in ASCII and with the reasons as comments, unless
// ExtraConf brings other characters. Users are looked up in
// /etc/squid/egress.users, which [Squid.UserData] writes.
func (s Squid) Conf() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return []byte(s.withDefaults().conf()), nil
}

// Places in the guest. The helper's is that of Debian and Ubuntu; the setup
// script changes it where another is right.
const (
	confPath   = "/etc/squid/squid.conf"
	usersPath  = "/etc/squid/egress.users"
	helperPath = "/usr/lib/squid/basic_ncsa_auth"
	setupPath  = "/usr/local/sbin/egress-squid-setup"
)

// hiddenHeaders are the request headers that tell of a proxy. They are removed
// also where the client sent them.
var hiddenHeaders = []string{
	"Via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
	"X-Real-IP", "X-Client-IP", "Client-IP", "Proxy-Connection",
}

// conf renders a valid s with its defaults.
func (s Squid) conf() string {
	var c confWriter
	c.line("# A forward proxy that is closed by default. Written by cloud-init.")
	c.line("http_port %s", s.listen())
	c.line("visible_hostname proxy")
	c.line("httpd_suppress_version_string on")
	s.writeAuth(&c)
	s.writeAccess(&c)
	writePrivacy(&c)
	s.writeBounds(&c)
	if len(s.ExtraConf) > 0 {
		c.section("Lines added by the owner.")
		for _, line := range s.ExtraConf {
			c.line("%s", line)
		}
	}
	return c.String()
}

// listen is the argument of http_port.
func (s Squid) listen() string {
	if s.Listen.IsValid() {
		return netip.AddrPortFrom(s.Listen, uint16(s.Port)).String()
	}
	return strconv.Itoa(s.Port)
}

// writeAuth renders how users prove who they are.
func (s Squid) writeAuth(c *confWriter) {
	if len(s.Users) == 0 {
		return
	}
	c.section("Users. Helpers start on demand, so that Squid comes up before its users do.")
	c.line("auth_param basic program %s %s", helperPath, usersPath)
	c.line("auth_param basic children 5 startup=0 idle=1")
	c.line("auth_param basic realm proxy")
	c.line("auth_param basic casesensitive on")
	c.line("auth_param basic credentialsttl 2 hours")
}

// writeAccess renders who may reach what. The order matters: a client learns
// nothing about targets, and causes no lookup, before it is let in.
func (s Squid) writeAccess(c *confWriter) {
	c.section("Who may use it.")
	c.list("acl egress_clients src", normalize(s.Clients))
	if len(s.Users) > 0 {
		c.line("acl egress_users proxy_auth REQUIRED")
	}
	c.line("http_access deny manager")
	if len(s.Clients) > 0 {
		c.line("http_access deny !egress_clients")
	}
	if len(s.Users) > 0 {
		c.line("http_access deny !egress_users")
	}

	c.section("What it may reach: public addresses, on ports of the web, never itself.")
	c.line("acl egress_connect method CONNECT")
	c.line("acl egress_own_port port %d", s.Port)
	c.line("acl egress_connect_ports port %s", portList(s.ConnectPorts))
	c.line("acl egress_http_ports port %s", portList(s.HTTPPorts))
	c.list("acl egress_inner dst", s.deniedDestinations())
	c.line("http_access deny egress_own_port")
	c.line("http_access deny egress_connect !egress_connect_ports")
	c.line("http_access deny !egress_connect !egress_http_ports")
	if len(s.deniedDestinations()) > 0 {
		c.line("http_access deny egress_inner")
	}
	if len(s.Clients) > 0 {
		c.line("http_access allow egress_clients")
	} else {
		c.line("http_access allow egress_users")
	}
	c.line("http_access deny all")
}

// writePrivacy renders what keeps targets from seeing the proxy.
func writePrivacy(c *confWriter) {
	c.section("Targets see the client's request and no trace of the proxy. Cache-Control goes out\n# when the client sent it, because Squid would add one of its own.")
	c.line("via off")
	c.line("forwarded_for delete")
	for _, h := range hiddenHeaders {
		c.line("request_header_access %s deny all", h)
	}
	c.line("acl egress_cache_control req_header Cache-Control .")
	c.line("request_header_access Cache-Control allow egress_cache_control")
	c.line("request_header_access Cache-Control deny all")
}

// writeBounds renders what keeps disk, memory and sockets in bounds.
func (s Squid) writeBounds(c *confWriter) {
	c.section("Nothing is cached; logs are rotated by logrotate, by size.")
	c.line("cache deny all")
	c.line("cache_mem 0 MB")
	c.line("max_filedescriptors %d", s.FileDescriptors)
	c.line("shutdown_lifetime 1 second")
	c.line("logfile_rotate 0")
	c.line("cache_store_log none")
	if s.AccessLog {
		c.line("access_log stdio:/var/log/squid/access.log")
	} else {
		c.line("access_log none")
	}
}

// portList renders ranges as an ACL wants them.
func portList(ranges []PortRange) string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, " ")
}

// confWriter writes squid.conf.
type confWriter struct {
	strings.Builder
}

// line writes one line.
func (c *confWriter) line(format string, args ...any) {
	fmt.Fprintf(c, format+"\n", args...)
}

// section starts a group of lines with its reason.
func (c *confWriter) section(comment string) {
	c.line("\n# %s", comment)
}

// list writes an ACL with one network a line; of none it writes nothing.
func (c *confWriter) list(acl string, networks []netip.Prefix) {
	for _, n := range networks {
		c.line("%s %s", acl, n)
	}
}
