package endpoint

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// redaction stands for the userinfo wherever a URL is printed. Parsing refuses
// it, so that a printed URL is never mistaken for one with credentials.
const redaction = "***"

// maxSOCKSLength is the most that user name and password may have each,
// RFC 1929, section 2.
const maxSOCKSLength = 255

// URL is the address of a forward proxy, with its credentials. It is immutable.
//
// Printing, logging and marshalling replace the credentials by "***", in every
// format; only [URL.Reveal] and [URL.User] give them away. Two URLs are
// compared with [URL.Equal].
type URL struct {
	scheme string
	host   string // host:port, an IPv6 address in brackets
	user   *sealed
}

// sealed holds the credentials behind a second pointer: a printer that reads
// unexported fields by reflection follows one, and then shows an address.
type sealed struct{ *userinfo }

type userinfo struct{ name, password string }

// ParseURL reads scheme://[user:password@]host:port. The schemes are http,
// https, and socks5 or its synonym socks5h: names are always resolved by the
// proxy. The port must be given. An IPv6 address stands in brackets.
//
// In the userinfo, percent-encoding is decoded; '@' and ':' may stand in the
// password as they are, but '%', '/', '?' and '#' must be encoded. [NewURL]
// takes credentials as they are. Errors never quote raw, which may hold a
// secret.
func ParseURL(raw string) (URL, error) {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return URL{}, errors.New("proxy URL: it has no scheme: write it like http://192.0.2.7:3128")
	}
	user, hostport, err := splitUserinfo(rest)
	if err != nil {
		return URL{}, fmt.Errorf("proxy URL: %w", err)
	}
	return newURL(scheme, strings.TrimSuffix(hostport, "/"), user)
}

// NewURL builds a URL from its parts, the credentials as they are. Without a
// user name and password the proxy is used without authentication. For http
// and https the user name cannot hold a colon (RFC 7617, section 2).
func NewURL(scheme, hostport, username, password string) (URL, error) {
	if username == "" && password == "" {
		return newURL(scheme, hostport, nil)
	}
	return newURL(scheme, hostport, &userinfo{username, password})
}

func newURL(scheme, hostport string, user *userinfo) (URL, error) {
	scheme = strings.ToLower(scheme)
	switch scheme {
	case "http", "https", "socks5", "socks5h":
	default:
		return URL{}, fmt.Errorf("proxy URL: %sis not supported: use http, https or socks5", shown(scheme))
	}
	host, err := checkHostPort(hostport)
	if err != nil {
		return URL{}, fmt.Errorf("proxy URL: %w", err)
	}
	if err := user.validate(scheme); err != nil {
		return URL{}, fmt.Errorf("proxy URL: %w", err)
	}
	u := URL{scheme: scheme, host: host}
	if user != nil {
		u.user = &sealed{user}
	}
	return u, nil
}

// splitUserinfo takes the text behind the scheme apart at its last '@'.
func splitUserinfo(rest string) (*userinfo, string, error) {
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return nil, rest, nil
	}
	raw, hostport := rest[:at], rest[at+1:]
	if raw == redaction {
		return nil, "", errors.New("its credentials were replaced by *** when it was printed: use the original")
	}
	if strings.ContainsAny(raw, "/?#") {
		return nil, "", errors.New("write '/' as %2F, '?' as %3F and '#' as %23 in user name and password")
	}
	name, password, _ := strings.Cut(raw, ":")
	var user userinfo
	var nameErr, passwordErr error
	user.name, nameErr = url.PathUnescape(name)
	user.password, passwordErr = url.PathUnescape(password)
	if nameErr != nil || passwordErr != nil {
		return nil, "", errors.New("write '%' as %25 in user name and password")
	}
	return &user, hostport, nil
}

func checkHostPort(hostport string) (string, error) {
	if strings.ContainsAny(hostport, "/?#") {
		return "", errors.New("it must end after the port, without a path, query or fragment")
	}
	if strings.Count(hostport, ":") > 1 && !strings.HasPrefix(hostport, "[") {
		return "", errors.New("put an IPv6 address in brackets, like http://[2001:db8::7]:3128")
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return "", errors.New("give host and port, like http://192.0.2.7:3128")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port must be a number from 1 to 65535")
	}
	host = strings.Replace(host, "%25", "%", 1) // a zone, RFC 6874
	if !validHost(host) {
		return "", errors.New("the host must be an ASCII name (punycode where it is not) or an IP address")
	}
	return net.JoinHostPort(host, port), nil
}

func validHost(host string) bool {
	if strings.Contains(host, ":") {
		addr, err := netip.ParseAddr(host)
		return err == nil && addr.Is6() && !strings.ContainsFunc(addr.Zone(), isNoZone)
	}
	return host != "" && !strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"%<>\^{}|[]@`, r) || r == '`'
	})
}

// isNoZone tells of what a zone cannot have as it is, RFC 6874: another reader would
// take it for something else.
func isNoZone(r rune) bool {
	return r >= 0x7f || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._~", r)
}

func (u *userinfo) validate(scheme string) error {
	if u == nil {
		return nil
	}
	if strings.ContainsFunc(u.name+u.password, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("user name and password must not hold control characters")
	}
	if strings.HasPrefix(scheme, "socks5") {
		if u.name == "" || len(u.name) > maxSOCKSLength || len(u.password) > maxSOCKSLength {
			return errors.New("SOCKS5 takes a user name of 1 to 255 bytes and a password of at most 255")
		}
		return nil
	}
	if strings.Contains(u.name, ":") {
		return errors.New("a user name with a colon cannot be sent with HTTP basic authentication")
	}
	return nil
}

// otherSchemes may be shown in an error. Any other text may be a part of a secret,
// where the URL was put together wrongly.
var otherSchemes = []string{"socks4", "socks4a", "socks", "ftp", "ws", "wss", "tcp", "quic", "ss", "vmess", "trojan"}

// shown quotes a known scheme.
func shown(scheme string) string {
	if slices.Contains(otherSchemes, scheme) {
		return fmt.Sprintf("scheme %q ", scheme)
	}
	return "its scheme "
}

// IsZero tells whether u is the zero URL, which is no proxy at all.
func (u URL) IsZero() bool { return u.scheme == "" }

// Scheme is "http", "https", "socks5" or "socks5h".
func (u URL) Scheme() string { return u.scheme }

// Host is host:port, an IPv6 address in brackets.
func (u URL) Host() string { return u.host }

// User returns the credentials, or nil. It gives the secret away.
func (u URL) User() *url.Userinfo {
	if u.user == nil {
		return nil
	}
	return url.UserPassword(u.user.name, u.user.password)
}

// Reveal returns the whole URL with its credentials, percent-encoded, as other
// programs take it. It gives the secret away: never log it.
func (u URL) Reveal() string {
	if u.IsZero() {
		return ""
	}
	return u.netURL().String()
}

// Equal tells whether both URLs have the same address and credentials.
func (u URL) Equal(other URL) bool {
	sameUser := u.user == other.user || u.user != nil && other.user != nil && *u.user.userinfo == *other.user.userinfo
	return u.scheme == other.scheme && u.host == other.host && sameUser
}

func (u URL) netURL() *url.URL {
	return &url.URL{Scheme: u.scheme, Host: u.host, User: u.User()}
}

// String returns the URL with its credentials replaced by "***".
func (u URL) String() string {
	if u.IsZero() {
		return ""
	}
	userinfo := ""
	if u.user != nil {
		userinfo = redaction + "@"
	}
	return u.scheme + "://" + userinfo + u.host
}

// Format prints [URL.String] for every verb and flag.
func (u URL) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.String()) }

// MarshalText returns [URL.String]: what is marshalled has lost its credentials
// and does not parse again, if it had any.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads what [ParseURL] reads.
func (u *URL) UnmarshalText(text []byte) error {
	parsed, err := ParseURL(string(text))
	if err != nil {
		return err
	}
	*u = parsed
	return nil
}

// LogValue implements slog.LogValuer.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }
