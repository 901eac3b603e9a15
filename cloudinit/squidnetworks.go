package cloudinit

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressfleet/egress/internal/check"
)

// innerNetworks are the networks that a proxy for public targets has no
// business with: of the IANA registries of special-purpose addresses those
// that lead inwards or nowhere, and the address at which Azure serves
// metadata.
var innerNetworks = parsePrefixes(
	"0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12",
	"192.0.0.0/24 192.168.0.0/16 198.18.0.0/15 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32",
	"::/128 ::1/128 64:ff9b:1::/48 100::/64 2001::/32 2002::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8",
)

// parsePrefixes reads networks separated by spaces.
func parsePrefixes(lines ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range strings.Fields(strings.Join(lines, " ")) {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// checkPrefixes notes what is not a network.
func checkPrefixes(p *check.Problems, field string, list []netip.Prefix) {
	for i, n := range list {
		if !n.IsValid() {
			p.Add(fmt.Sprintf("%s[%d]", field, i), n, "not a network; write it as 192.0.2.0/24")
		} else if n.Addr().Is4In6() {
			p.Add(fmt.Sprintf("%s[%d]", field, i), n, "IPv4 in IPv6 form; write it as IPv4")
		}
	}
}

// deniedDestinations are the inner networks without those that s allows, and
// those that s denies. Allowed networks are cut out instead of being allowed
// by a rule of their own: a name may resolve to an allowed address and to a
// denied one at once, and must then be denied.
func (s Squid) deniedDestinations() []netip.Prefix {
	denied := innerNetworks
	for _, allowed := range s.AllowDestinations {
		var rest []netip.Prefix
		for _, n := range denied {
			rest = append(rest, subtract(n, allowed.Masked())...)
		}
		denied = rest
	}
	denied = slices.Concat(denied, s.DenyDestinations)
	return normalize(slices.Concat(denied, nat64(denied)))
}

// subtract returns what is left of a without b.
func subtract(a, b netip.Prefix) []netip.Prefix {
	switch {
	case !a.Overlaps(b):
		return []netip.Prefix{a}
	case b.Bits() <= a.Bits():
		return nil
	}
	low, high := halves(a)
	return append(subtract(low, b), subtract(high, b)...)
}

// halves splits a network in two.
func halves(n netip.Prefix) (low, high netip.Prefix) {
	bits := n.Bits()
	b := n.Masked().Addr().AsSlice()
	low = netip.PrefixFrom(n.Masked().Addr(), bits+1)
	b[bits/8] |= 0x80 >> (bits % 8)
	addr, _ := netip.AddrFromSlice(b)
	return low, netip.PrefixFrom(addr, bits+1)
}

// nat64 maps the IPv4 networks of list into the prefix through which a
// translator reaches IPv4 (RFC 6052).
func nat64(list []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range list {
		if !n.Addr().Is4() {
			continue
		}
		b := netip.MustParseAddr("64:ff9b::").As16()
		copy(b[12:], n.Addr().AsSlice())
		out = append(out, netip.PrefixFrom(netip.AddrFrom16(b), 96+n.Bits()))
	}
	return out
}

// normalize masks and sorts networks, IPv4 first, and drops those that lie in
// another: Squid warns of them.
func normalize(list []netip.Prefix) []netip.Prefix {
	var sorted, out []netip.Prefix
	for _, n := range list {
		sorted = append(sorted, n.Masked())
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	for _, n := range sorted {
		if len(out) == 0 || !out[len(out)-1].Overlaps(n) {
			out = append(out, n)
		}
	}
	return out
}
