package cloudinit

import (
	"fmt"
	"io"
)

// Secret is a string that does not print: fmt, JSON and logr show
// a placeholder. Convert it to string to get at it. It reads from JSON as a
// string.
type Secret string

// redacted stands for a secret wherever one would be printed.
const redacted = "[secret]"

// String is the placeholder, or empty when there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format prints the placeholder for every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText gives the placeholder to JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalLog gives the placeholder to logr.
func (s Secret) MarshalLog() any { return s.String() }
