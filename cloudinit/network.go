package cloudinit

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/egressfleet/egress/internal/check"
)

// Network is a network configuration of version 2, the form that netplan and
// cloud-init share. The zero Network configures nothing, and its document is
// empty.
type Network struct {
	// Interfaces are the network cards, each matched by its MAC address.
	Interfaces []Interface `json:"interfaces,omitempty"`
}

// Interface is one network card. With neither DHCP nor an address it gets
// DHCP for IPv4.
type Interface struct {
	// MAC is the address of the card, as 52:54:00:12:34:56. Required.
	MAC string `json:"mac"`

	// Name is what the guest calls the card. Empty keeps the kernel's name.
	// At most 15 letters, digits, and . _ -
	Name string `json:"name,omitempty"`

	// DHCP4 asks for an IPv4 address. Default false, unless DHCP6 is false
	// and Addresses is empty.
	DHCP4 bool `json:"dhcp4,omitempty"`

	// DHCP6 asks for an IPv6 address by DHCPv6. Default false; addresses by
	// router advertisement need nothing here.
	DHCP6 bool `json:"dhcp6,omitempty"`

	// Addresses are static addresses with the length of their network.
	Addresses []netip.Prefix `json:"addresses,omitempty"`

	// Gateways are the routers of the default routes, at most one for IPv4
	// and one for IPv6.
	Gateways []netip.Addr `json:"gateways,omitempty"`

	// Routes are further routes.
	Routes []Route `json:"routes,omitempty"`

	// Nameservers are the DNS servers. Empty means those of DHCP, if any.
	Nameservers []netip.Addr `json:"nameservers,omitempty"`

	// Search are the domains appended to short names.
	Search []string `json:"search,omitempty"`

	// MTU is the largest packet in bytes, 68 to 65535. Zero means the
	// card's default.
	MTU int `json:"mtu,omitempty"`
}

// Route sends traffic for a network through a router.
type Route struct {
	// To is the network. Required.
	To netip.Prefix `json:"to"`

	// Via is the router, of the same family as To. Required.
	Via netip.Addr `json:"via"`

	// Metric orders routes to the same network, the lowest first. Zero
	// means the guest's default; negative values are refused.
	Metric int `json:"metric,omitempty"`

	// OnLink says that Via is reached directly although no address of the
	// card lies in its network. Default false.
	OnLink bool `json:"onLink,omitempty"`
}

// Validate reports every problem of n at once.
func (n Network) Validate() error {
	var p check.Problems
	macs := map[string]bool{}
	for i, nic := range n.Interfaces {
		path := fmt.Sprintf("interfaces[%d].", i)
		nic.check(&p, path)
		if mac := strings.ToLower(nic.MAC); macs[mac] {
			p.Add(path+"mac", nic.MAC, "used twice; describe each card once")
		} else {
			macs[mac] = true
		}
	}
	return p.Err()
}

// check notes what is wrong with one card.
func (n Interface) check(p *check.Problems, path string) {
	if hw, err := net.ParseMAC(n.MAC); err != nil || len(hw) != 6 {
		p.Add(path+"mac", n.MAC, "not a MAC address; write it as 52:54:00:12:34:56")
	}
	if n.Name != "" && (!isName(n.Name, "._-") || len(n.Name) > 15) {
		p.Add(path+"name", n.Name, "not an interface name; use at most 15 letters, digits, dots, underscores and hyphens")
	}
	if n.MTU != 0 && (n.MTU < 68 || n.MTU > 65535) {
		p.Add(path+"mtu", n.MTU, "out of range; use 68 to 65535, or leave it out")
	}
	for i, domain := range n.Search {
		if !isHostname(domain) {
			p.Add(fmt.Sprintf("%ssearch[%d]", path, i), domain, "not a domain name")
		}
	}
	n.checkAddresses(p, path)
	for i, r := range n.Routes {
		r.check(p, fmt.Sprintf("%sroutes[%d].", path, i))
	}
}

// checkAddresses notes what is wrong with addresses, gateways and name servers.
func (n Interface) checkAddresses(p *check.Problems, path string) {
	for i, a := range n.Addresses {
		if !a.IsValid() {
			p.Add(fmt.Sprintf("%saddresses[%d]", path, i), a, "not an address; write it as 192.0.2.10/24")
		}
	}
	families := map[bool]bool{}
	for i, g := range n.Gateways {
		at := fmt.Sprintf("%sgateways[%d]", path, i)
		if !g.IsValid() {
			p.Add(at, g, "not an address; write it as 192.0.2.1")
		} else if families[g.Is4()] {
			p.Add(at, g, "a second default route of its family; give it as a route with a metric")
		}
		families[g.Is4()] = true
	}
	for i, s := range n.Nameservers {
		if !s.IsValid() {
			p.Add(fmt.Sprintf("%snameservers[%d]", path, i), s, "not an address; write it as 192.0.2.53")
		}
	}
}

// check notes what is wrong with a route.
func (r Route) check(p *check.Problems, path string) {
	if !r.To.IsValid() {
		p.Add(path+"to", r.To, "not a network; write it as 198.51.100.0/24")
	}
	if !r.Via.IsValid() {
		p.Add(path+"via", r.Via, "not an address; write it as 192.0.2.1")
	}
	if r.To.IsValid() && r.Via.IsValid() && r.To.Addr().Is4() != r.Via.Is4() {
		p.Add(path+"via", r.Via, "not of the family of "+r.To.String()+"; use a router of the same")
	}
	if r.Metric < 0 {
		p.Add(path+"metric", r.Metric, "negative; use a positive number, or leave it out")
	}
}

// YAML renders the document, empty when there are no interfaces.
func (n Network) YAML() ([]byte, error) {
	if err := n.Validate(); err != nil || len(n.Interfaces) == 0 {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("version: 2\nethernets:\n")
	for i, nic := range n.Interfaces {
		nic.write(&b, i)
	}
	return []byte(b.String()), nil
}

// write renders the card with the given number.
func (n Interface) write(b *strings.Builder, number int) {
	id := n.Name
	if id == "" {
		id = "nic" + strconv.Itoa(number)
	}
	fmt.Fprintf(b, "  %s:\n", quote(id))
	fmt.Fprintf(b, "    match:\n      macaddress: %s\n", quote(strings.ToLower(n.MAC)))
	if n.Name != "" {
		fmt.Fprintf(b, "    set-name: %s\n", quote(n.Name))
	}
	dhcp4 := n.DHCP4 || !n.DHCP6 && len(n.Addresses) == 0
	fmt.Fprintf(b, "    dhcp4: %t\n    dhcp6: %t\n", dhcp4, n.DHCP6)
	if n.MTU != 0 {
		fmt.Fprintf(b, "    mtu: %d\n", n.MTU)
	}
	if len(n.Addresses) > 0 {
		fmt.Fprintf(b, "    addresses: %s\n", quoteList(n.Addresses))
	}
	n.writeRoutes(b)
	n.writeResolver(b)
}

// writeRoutes renders default and further routes. Defaults are written as
// networks of length zero, which every renderer of cloud-init understands.
func (n Interface) writeRoutes(b *strings.Builder) {
	var routes []Route
	for _, g := range n.Gateways {
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if g.Is4() {
			all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		routes = append(routes, Route{To: all, Via: g})
	}
	routes = append(routes, n.Routes...)
	if len(routes) > 0 {
		b.WriteString("    routes:\n")
	}
	for _, r := range routes {
		r.write(b)
	}
}

// write renders one route.
func (r Route) write(b *strings.Builder) {
	fmt.Fprintf(b, "      - to: %s\n        via: %s\n", quote(r.To.Masked().String()), quote(r.Via.String()))
	if r.Metric > 0 {
		fmt.Fprintf(b, "        metric: %d\n", r.Metric)
	}
	if r.OnLink {
		b.WriteString("        on-link: true\n")
	}
}

// writeResolver renders name servers and search domains.
func (n Interface) writeResolver(b *strings.Builder) {
	if len(n.Nameservers)+len(n.Search) == 0 {
		return
	}
	b.WriteString("    nameservers:\n")
	if len(n.Nameservers) > 0 {
		fmt.Fprintf(b, "      addresses: %s\n", quoteList(n.Nameservers))
	}
	if len(n.Search) > 0 {
		fmt.Fprintf(b, "      search: %s\n", quoteList(texts(n.Search)))
	}
}
