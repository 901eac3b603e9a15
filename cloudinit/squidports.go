package cloudinit

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/egressfleet/egress/internal/check"
)

// PortRange is a TCP port, or a range of them with both ends. As text it reads
// "443" or "1025-65535".
type PortRange struct {
	// First is the lowest port. Required.
	First uint16

	// Last is the highest port. Zero means First alone.
	Last uint16
}

// String is the text form.
func (r PortRange) String() string {
	if r.Last == 0 || r.Last == r.First {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalText is the text form.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the text form.
func (r *PortRange) UnmarshalText(b []byte) error {
	first, last, isRange := strings.Cut(string(b), "-")
	if !isRange {
		last = first
	}
	f, errFirst := strconv.ParseUint(first, 10, 16)
	l, errLast := strconv.ParseUint(last, 10, 16)
	if err := cmp.Or(errFirst, errLast); err != nil {
		return fmt.Errorf("port range: %q: not a port; write 443 or 1025-65535", b)
	}
	*r = PortRange{First: uint16(f), Last: uint16(l)}
	return nil
}

// checkPorts notes ranges that hold no port.
func checkPorts(p *check.Problems, field string, ranges []PortRange) {
	for i, r := range ranges {
		if r.First == 0 || r.Last != 0 && r.Last < r.First {
			p.Add(fmt.Sprintf("%s[%d]", field, i), r, "no port lies in it; use 1 to 65535, the lower end first")
		}
	}
}
