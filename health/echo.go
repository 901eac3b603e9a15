package health

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Echo is what a target says that it saw.
type Echo struct {
	// IP is the address that the request came from.
	IP netip.Addr
	// Header is the request's header, where the target tells it.
	Header http.Header
}

// EchoFunc reads an [Echo] from the body of a target's response.
type EchoFunc func(body []byte) (Echo, error)

// EchoText reads a body that is an IP address and nothing else.
func EchoText(body []byte) (Echo, error) {
	ip, err := parseIP(string(body))
	return Echo{IP: ip}, err
}

// EchoJSON reads a JSON object with the address under "origin" or "ip", and the
// request's header under "headers", if it is there: what httpbin and most
// what-is-my-IP services answer. The values of headers may be strings or lists.
func EchoJSON(body []byte) (Echo, error) {
	var answer struct {
		Origin  string                     `json:"origin"`
		IP      string                     `json:"ip"`
		Headers map[string]json.RawMessage `json:"headers"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return Echo{}, errors.New("it is not a JSON object")
	}
	text := answer.Origin
	if text == "" {
		text = answer.IP
	}
	ip, err := parseIP(text)
	if err != nil {
		return Echo{}, err
	}
	echo := Echo{IP: ip, Header: http.Header{}}
	for name, raw := range answer.Headers {
		echo.Header[http.CanonicalHeaderKey(name)] = headerValues(raw)
	}
	return echo, nil
}

func headerValues(raw json.RawMessage) []string {
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var one string
	_ = json.Unmarshal(raw, &one)
	return []string{one}
}

// parseIP takes the last of a list, as httpbin gives it behind proxies: it is
// the one that connected.
func parseIP(text string) (netip.Addr, error) {
	if i := strings.LastIndexByte(text, ','); i >= 0 {
		text = text[i+1:]
	}
	ip, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil {
		return netip.Addr{}, errors.New("it holds no IP address")
	}
	return ip.Unmap(), nil
}

// leakHeaders tell a proxy, or the client behind it. A probe sends none.
var leakHeaders = []string{
	"Client-Ip", "Forwarded", "Forwarded-For", "Proxy-Authorization", "Proxy-Connection",
	"True-Client-Ip", "Via", "X-Client-Ip", "X-Forwarded", "X-Forwarded-For",
	"X-Forwarded-Host", "X-Forwarded-Proto", "X-Proxy-Id", "X-Real-Ip",
}

func (e Echo) leaks() []string {
	var found []string
	for name := range e.Header {
		if slices.Contains(leakHeaders, name) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}
