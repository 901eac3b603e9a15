package cloudinit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/egressfleet/egress/internal/check"
)

// MetaData is what the seed says of the instance itself.
type MetaData struct {
	// InstanceID tells cloud-init whether this is a new instance: what runs
	// once per instance runs again when it changes, and not after a reboot.
	// Letters, digits and . _ - only. Empty means "i-" and 16 hexadecimal
	// digits of a hash of everything else in the seed.
	InstanceID string `json:"instanceID,omitempty"`

	// LocalHostname is the guest's host name, with or without a domain.
	// Empty leaves the choice to the guest.
	LocalHostname string `json:"localHostname,omitempty"`

	// PublicKeys are SSH keys for the default user of the image, each a line
	// as in authorized_keys. Empty means none.
	PublicKeys []string `json:"publicKeys,omitempty"`

	// Extra are further keys, all strings, which jinja templates in
	// user-data find under ds.meta_data. The keys that the other fields
	// stand for are refused. Empty means none.
	Extra map[string]string `json:"extra,omitempty"`
}

// reservedKeys are the keys of meta-data that the fields of MetaData write.
var reservedKeys = []string{"instance-id", "local-hostname", "public-keys"}

// Validate reports every problem of m at once.
func (m MetaData) Validate() error {
	var p check.Problems
	m.check(&p, "")
	return p.Err()
}

// check notes what is wrong with m, its fields named behind prefix.
func (m MetaData) check(p *check.Problems, prefix string) {
	if m.InstanceID != "" && !isName(m.InstanceID, "._-") {
		p.Add(prefix+"instanceID", m.InstanceID, "use letters, digits, dots, underscores and hyphens, starting with a letter or digit")
	}
	if m.LocalHostname != "" && !isHostname(m.LocalHostname) {
		p.Add(prefix+"localHostname", m.LocalHostname, "not a host name; use labels of letters, digits and hyphens, 63 characters each and 253 in all")
	}
	for i, key := range m.PublicKeys {
		if !isLine(key) || strings.TrimSpace(key) == "" {
			p.Add(fmt.Sprintf("%spublicKeys[%d]", prefix, i), fmt.Sprintf("%d bytes", len(key)), "not one line of text; give a line as in authorized_keys")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.Extra)) {
		m.checkExtra(p, prefix+"extra", key)
	}
}

// checkExtra notes what is wrong with one extra key. The value is not quoted:
// it may be a secret.
func (m MetaData) checkExtra(p *check.Problems, field, key string) {
	switch {
	case slices.Contains(reservedKeys, key):
		p.Add(field, key, "is written by a field of its own; set that")
	case !isName(key, "._-"):
		p.Add(field, key, "not a key; use letters, digits, dots, underscores and hyphens")
	case !utf8.ValidString(m.Extra[key]):
		p.Add(field+"."+key, fmt.Sprintf("%d bytes", len(m.Extra[key])), "not UTF-8; encode it, as base64 for instance")
	}
}

// YAML renders the meta-data document. An empty InstanceID is left out.
func (m MetaData) YAML() ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return m.yaml(), nil
}

// yaml renders a valid m.
func (m MetaData) yaml() []byte {
	var b strings.Builder
	if m.InstanceID != "" {
		fmt.Fprintf(&b, "instance-id: %s\n", quote(m.InstanceID))
	}
	if m.LocalHostname != "" {
		fmt.Fprintf(&b, "local-hostname: %s\n", quote(m.LocalHostname))
	}
	if len(m.PublicKeys) > 0 {
		fmt.Fprintf(&b, "public-keys: %s\n", quoteList(texts(m.PublicKeys)))
	}
	for _, key := range slices.Sorted(maps.Keys(m.Extra)) {
		fmt.Fprintf(&b, "%s: %s\n", quote(key), quote(m.Extra[key]))
	}
	return []byte(b.String())
}

// isName reports whether s starts with an ASCII letter or digit and goes on
// with those and the characters in also.
func isName(s, also string) bool {
	for i, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune(also, r)) {
			return false
		}
	}
	return s != ""
}

// isHostname reports whether s is a host name of RFC 1123.
func isHostname(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if !isName(label, "-") || strings.HasSuffix(label, "-") || len(label) > 63 {
			return false
		}
	}
	return len(s) <= 253
}
