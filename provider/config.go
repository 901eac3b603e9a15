package provider

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is a time.Duration that a configuration file writes as "15s" or
// "1h30m".
type Duration time.Duration

// String returns the form of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// Or returns d, or the default where d is zero.
func (d Duration) Or(def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return time.Duration(d)
}

// MarshalText returns [Duration.String].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration: write it like 15s, 2m or 1h30m", text)
	}
	*d = Duration(v)
	return nil
}

// Toggle is a yes or no that can also be left to the default. A configuration
// file writes true, false or nothing.
type Toggle int8

// The values of a Toggle.
const (
	Default Toggle = iota
	On
	Off
)

// Or returns the toggle's value, or the default.
func (t Toggle) Or(def bool) bool {
	if t == Default {
		return def
	}
	return t == On
}

// MarshalJSON writes true, false, or null for the default.
func (t Toggle) MarshalJSON() ([]byte, error) {
	if t == Default {
		return []byte("null"), nil
	}
	return json.Marshal(t == On)
}

// UnmarshalJSON reads true, false and null.
func (t *Toggle) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case "true":
		*t = On
	case "false":
		*t = Off
	case "null":
		*t = Default
	default:
		return fmt.Errorf("%s is neither true nor false", data)
	}
	return nil
}
