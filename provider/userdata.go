package provider

import (
	"fmt"
	"io"
	"log/slog"
)

// UserData is the opaque document that reaches the guest byte for byte, in any
// form its cloud-init takes. It often holds passwords, so it prints, logs and
// marshals as its length alone.
type UserData []byte

// String returns the length, such as "[1204 bytes of user-data]".
func (u UserData) String() string { return fmt.Sprintf("[%d bytes of user-data]", len(u)) }

// Format prints [UserData.String] for every verb and flag.
func (u UserData) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.String()) }

// MarshalText returns [UserData.String], so that JSON and YAML hold the length.
func (u UserData) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// LogValue implements slog.LogValuer.
func (u UserData) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalLog implements logr.Marshaler.
func (u UserData) MarshalLog() any { return u.String() }
