package kvm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/provider"
)

// checkNetwork checks what the network card of the instances is attached to.
func (h Host) checkNetwork(problems *check.Problems) {
	given := 0
	for _, name := range []string{h.Bridge, h.Network, h.Macvtap} {
		if name != "" {
			given++
		}
	}
	switch {
	case given == 0:
		problems.Missing("bridge", "give the network bridge of the instances, such as br0, or in its place network or macvtap")
	case given > 1:
		problems.Missing("bridge", "give only one of bridge, network and macvtap")
	}
	for field, name := range map[string]string{"bridge": h.Bridge, "macvtap": h.Macvtap} {
		if name != "" && !interfacePattern.MatchString(name) {
			problems.Add(field, name, "must be the name of a network interface: at most 15 letters, digits, and the characters _ . -")
		}
	}
	if strings.ContainsFunc(h.Network, isNameBreaker) {
		problems.Add("network", h.Network, "must be the name of a network of libvirt, without slashes and control characters")
	}
	h.checkLink(problems)
	_, err := h.staticPool()
	problems.Within("", err)
}

// checkLink refuses what libvirt would refuse only when an instance starts.
func (h Host) checkLink(problems *check.Problems) {
	if h.OpenVSwitch && h.Bridge == "" {
		problems.Missing("openVSwitch", "is about a bridge: give one")
	}
	switch {
	case h.VLAN < 0 || h.VLAN > 4094:
		problems.Add("vlan", h.VLAN, "must lie between 1 and 4094, or be left out")
	case h.VLAN != 0 && h.Network != "":
		problems.Add("vlan", h.VLAN, "cannot be chosen for one card on a network of libvirt: put the tag into the network's own definition")
	case h.VLAN != 0 && h.Macvtap != "":
		problems.Add("vlan", h.VLAN, fmt.Sprintf("does not work with macvtap: make an interface for the tag on the host (ip link add link %[1]s name %[1]s.%[2]d type vlan id %[2]d) and give macvtap that", h.Macvtap, h.VLAN))
	}
	switch {
	case h.MTU != 0 && (h.MTU < 68 || h.MTU > 65535):
		problems.Add("mtu", h.MTU, "must lie between 68 and 65535, or be left out")
	case h.MTU != 0 && h.Macvtap != "":
		problems.Add("mtu", h.MTU, "does not work with macvtap, whose cards have that of the device: set it there")
	}
}

// addressRange is a range of addresses in one network.
type addressRange struct {
	first, last netip.Addr
	length      int // of the network's prefix, in bits
}

// parseRange reads "10.0.0.10-10.0.0.99/24", or one address as "10.0.0.10/24".
func parseRange(text string) (addressRange, error) {
	malformed := errors.New("must be a range in a network, as 10.0.0.10-10.0.0.99/24")
	addresses, length, ok := strings.Cut(text, "/")
	if !ok {
		return addressRange{}, malformed
	}
	first, last, ok := strings.Cut(addresses, "-")
	if !ok {
		last = first
	}
	network, err := netip.ParsePrefix(first + "/" + length)
	if err != nil {
		return addressRange{}, malformed
	}
	r := addressRange{first: network.Addr(), length: network.Bits()}
	if r.last, err = netip.ParseAddr(last); err != nil || r.last.Zone() != "" || r.first.Is4In6() {
		return addressRange{}, malformed
	}
	switch {
	case !network.Contains(r.last):
		return r, fmt.Errorf("ends outside of the network %s", network.Masked())
	case r.last.Less(r.first):
		return r, errors.New("ends before it begins")
	case !r.first.IsGlobalUnicast() || !r.last.IsGlobalUnicast():
		return r, errors.New("has addresses that no host can have")
	case r.first.Is4() && r.length < 31 && (r.first == network.Masked().Addr() || r.last == broadcast(network)):
		return r, fmt.Errorf("has the first or last address of the network %s, which are not for hosts", network.Masked())
	}
	return r, nil
}

func broadcast(network netip.Prefix) netip.Addr {
	b := network.Masked().Addr().As4()
	host := uint32(math.MaxUint32) >> network.Bits()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|host)
	return netip.AddrFrom4(b)
}

// mostAddresses bounds what is counted of a large range.
const mostAddresses = math.MaxInt32

// size is the number of addresses, at most mostAddresses.
func (r addressRange) size() uint64 {
	first, last := r.first.As16(), r.last.As16()
	high := binary.BigEndian.Uint64(last[:8]) - binary.BigEndian.Uint64(first[:8])
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
	if high != borrow {
		return mostAddresses
	}
	return min(low, mostAddresses-1) + 1
}

// at is the n-th address, from 0.
func (r addressRange) at(n uint64) netip.Prefix {
	b := r.first.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), n, 0)
	binary.BigEndian.PutUint64(b[8:], low)
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+carry)
	a := netip.AddrFrom16(b)
	if r.first.Is4() {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, r.length)
}

func (r addressRange) contains(p netip.Prefix) bool {
	return p.Bits() == r.length && p.Addr().BitLen() == r.first.BitLen() && !p.Addr().Less(r.first) && !r.last.Less(p.Addr())
}

func (r addressRange) overlaps(o addressRange) bool {
	return !r.last.Less(o.first) && !o.last.Less(r.first)
}

// staticPool is what a host's instances are addressed from. The zero value is
// none.
type staticPool struct {
	// families are the ranges of IPv4, then those of IPv6; none is empty.
	families              [][]addressRange
	gateways, nameservers []netip.Addr
}

// staticPool reads the fields; its error has their paths.
func (h Host) staticPool() (pool staticPool, err error) {
	var problems check.Problems
	byBits := map[int][]addressRange{}
	for i, text := range h.Addresses {
		r, err := parseRange(text)
		if err != nil {
			problems.Add(fmt.Sprintf("addresses[%d]", i), text, err.Error())
			continue
		}
		if slices.ContainsFunc(byBits[r.first.BitLen()], r.overlaps) {
			problems.Add(fmt.Sprintf("addresses[%d]", i), text, "overlaps with another range")
		}
		byBits[r.first.BitLen()] = append(byBits[r.first.BitLen()], r)
	}
	for _, family := range slices.Sorted(maps.Keys(byBits)) {
		pool.families = append(pool.families, byBits[family])
	}
	pool.gateways = parseAddrs(&problems, "gateways", h.Gateways)
	pool.nameservers = parseAddrs(&problems, "nameservers", h.Nameservers)
	if len(h.Addresses) == 0 && len(h.Gateways)+len(h.Nameservers) > 0 {
		problems.Missing("addresses", "give the range that gateways and nameservers are for; without it both come from DHCP")
	} else if problems.Err() == nil {
		pool.checkGateways(&problems, h)
	}
	return pool, problems.Err()
}

func parseAddrs(problems *check.Problems, field string, texts []string) (all []netip.Addr) {
	for i, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			problems.Add(fmt.Sprintf("%s[%d]", field, i), text, "must be an address, as 10.0.0.1")
			continue
		}
		all = append(all, a.Unmap())
	}
	return all
}

func (s staticPool) checkGateways(problems *check.Problems, h Host) {
	seen := map[int]bool{}
	for i, g := range s.gateways {
		path := fmt.Sprintf("gateways[%d]", i)
		if seen[g.BitLen()] {
			problems.Add(path, h.Gateways[i], "is a second one of its family")
		}
		seen[g.BitLen()] = true
		if !slices.ContainsFunc(slices.Concat(s.families...), func(r addressRange) bool { return netip.PrefixFrom(r.first, r.length).Contains(g) }) {
			problems.Add(path, h.Gateways[i], "lies in none of the networks of addresses")
		}
	}
}

func (s staticPool) none() bool { return len(s.families) == 0 }

// holds tells whether these are one address of each family.
func (s staticPool) holds(addresses []netip.Prefix) bool {
	if len(addresses) != len(s.families) {
		return false
	}
	for i, ranges := range s.families {
		if !slices.ContainsFunc(ranges, func(r addressRange) bool { return r.contains(addresses[i]) }) {
			return false
		}
	}
	return true
}

// limit is how many instances there can be.
func (s staticPool) limit() int {
	least := uint64(mostAddresses)
	for _, ranges := range s.families {
		least = min(least, s.size(ranges))
	}
	return int(least) //nolint:gosec // bounded.
}

// size leaves out what the network's own machines have.
func (s staticPool) size(ranges []addressRange) (n uint64) {
	for _, r := range ranges {
		n += r.size()
	}
	for _, g := range s.reserved() {
		if slices.ContainsFunc(ranges, func(r addressRange) bool { return r.contains(netip.PrefixFrom(g, r.length)) }) {
			n--
		}
	}
	return min(n, mostAddresses)
}

func (s staticPool) reserved() []netip.Addr {
	all := slices.Concat(s.gateways, s.nameservers)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// choose takes one address of each family that is not taken. Where to begin
// follows from the UID, so that two processes seldom choose the same, and a
// repeated choice is the same.
func (s staticPool) choose(uid string, taken map[netip.Addr]bool) ([]netip.Prefix, error) {
	var chosen []netip.Prefix
	for _, ranges := range s.families {
		p, ok := s.chooseFrom(ranges, uid, taken)
		if !ok {
			return nil, provider.Quotaf(codeAddressesExhausted, "all %d addresses of %s are taken by instances: delete some, or give more in hosts[].addresses", s.size(ranges), rangeTexts(ranges))
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
}

func (s staticPool) chooseFrom(ranges []addressRange, uid string, taken map[netip.Addr]bool) (netip.Prefix, bool) {
	var total uint64
	for _, r := range ranges {
		total += r.size()
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(uid))
	start := hash.Sum64() % total
	for i := range min(total, uint64(len(taken)+len(s.reserved())+1)) {
		p := nth(ranges, (start+i)%total)
		if !taken[p.Addr()] && !slices.Contains(s.reserved(), p.Addr()) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func nth(ranges []addressRange, n uint64) netip.Prefix {
	for _, r := range ranges {
		if n < r.size() {
			return r.at(n)
		}
		n -= r.size()
	}
	return netip.Prefix{}
}

func rangeTexts(ranges []addressRange) string {
	var all []string
	for _, r := range ranges {
		all = append(all, fmt.Sprintf("%s-%s/%d", r.first, r.last, r.length))
	}
	return strings.Join(all, ", ")
}

// config is the guest's network configuration, empty without static addresses.
func (s staticPool) config(mac string, mtu int, addresses []netip.Prefix) ([]byte, error) {
	if len(addresses) == 0 {
		return nil, nil
	}
	return cloudinit.Network{Interfaces: []cloudinit.Interface{{
		MAC: mac, MTU: mtu, Addresses: addresses, Gateways: s.gateways, Nameservers: s.nameservers,
	}}}.YAML()
}

// addressTries is how often another process may take the address that was
// chosen here.
const addressTries = 5

// defineAddressed defines the domain with addresses that no other has. Within
// this process one caller at a time chooses; a choice that another process made
// at the same time shows when the host is asked again, and whoever sees that
// chooses anew.
func (c *creation) defineAddressed(ctx context.Context) error {
	unlock, err := c.p.names.lock(ctx, c.host.Name+" addresses")
	if err != nil {
		return err
	}
	defer c.unlockAfterLeftovers(ctx, unlock)
	taken, err := c.takenAddresses(ctx)
	if err != nil {
		return err
	}
	for range addressTries {
		if !c.host.static.holds(c.record.Addresses) || c.clashes(taken) {
			if c.record.Addresses, err = c.host.static.choose(c.req.UID, taken); err != nil {
				return err
			}
		}
		if err := c.defineOnce(ctx); err != nil {
			return err
		}
		if taken, err = c.takenAddresses(ctx); err != nil || !c.clashes(taken) {
			return err
		}
	}
	return provider.Transientf(codeAddressConflict, "other processes took the addresses %v that were chosen here, %d times", c.record.Addresses, addressTries)
}

func (c *creation) clashes(taken map[netip.Addr]bool) bool {
	return slices.ContainsFunc(c.record.Addresses, func(p netip.Prefix) bool { return taken[p.Addr()] })
}

// unlockAfterLeftovers unlocks when what was abandoned has ended too.
func (c *creation) unlockAfterLeftovers(ctx context.Context, unlock func()) {
	left, ok := ctx.Value(leftoversKey{}).(*leftovers)
	if ctx.Err() == nil || !ok {
		unlock()
		return
	}
	c.host.running.Go(func() {
		left.Wait()
		unlock()
	})
}

// takenAddresses are those of all other instances on the host, whoever made them.
func (c *creation) takenAddresses(ctx context.Context) (map[netip.Addr]bool, error) {
	domains, err := c.client().listDomains(ctx, 0)
	if err != nil {
		return nil, err
	}
	c.host.seen.keepOnly(domains)
	taken := map[netip.Addr]bool{}
	var mu sync.Mutex
	var failed error
	var readers sync.WaitGroup
	for _, dom := range domains {
		if !provider.IsName(dom.Name) || dom.Name == c.name {
			continue
		}
		readers.Go(func() {
			r, err := c.readRecord(ctx, dom)
			mu.Lock()
			defer mu.Unlock()
			for _, a := range r.Addresses {
				taken[a.Addr()] = true
			}
			if !isForeign(err) {
				failed = cmp.Or(failed, err)
			}
		})
	}
	readers.Wait()
	return taken, failed
}

// checkNetwork sees that libvirt's network is there and active.
func (o *operation) checkNetwork(ctx context.Context) error {
	name := o.host.Network
	if name == "" {
		return nil
	}
	network, err := o.client().lookupNetwork(ctx, name)
	if err != nil {
		return err
	}
	active, err := o.client().networkActive(ctx, network)
	if err != nil || active {
		return err
	}
	return provider.Transientf(codeNetworkInactive, "the network %q of libvirt is not active: virsh net-start %s, and virsh net-autostart %s for the next boot of the host", name, name, name)
}
