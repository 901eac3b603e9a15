package leasehttp

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"
)

// clientName is what a client may be called: a slash ends the name in those of
// holders, sessions and requests.
var clientName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// client is one who may use the API. The zero value is everyone, where the handler
// asks for no token.
type client struct {
	name string
	sum  [sha256.Size]byte // of the token
}

func newClient(name, token string) client { return client{name, sha256.Sum256([]byte(token))} }

// own is a name in the client's own space of names.
func (c client) own(name string) string {
	if c.name == "" {
		return name
	}
	return c.name + "/" + name
}

// owns tells whether that is the name of a holder of the client's.
func (c client) owns(holder string) bool {
	return c.name == "" || strings.HasPrefix(holder, c.name+"/")
}

// sealLength is that of a seal in bytes: what nobody guesses.
const sealLength = 16

// seal makes of a lease's ID one that only this client can use.
func (c client) seal(id string) string {
	if c.name == "" {
		return id
	}
	mac := hmac.New(sha256.New, c.sum[:])
	mac.Write([]byte(id))
	return id + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:sealLength])
}

// open is the reverse of seal. An ID that is not the client's comes out empty, as
// that of no lease: the answer is the same as for one that never was.
func (c client) open(sealed string) (id string) {
	if c.name == "" {
		return sealed
	}
	id = sealed[:max(strings.LastIndexByte(sealed, '.'), 0)]
	if !hmac.Equal([]byte(c.seal(id)), []byte(sealed)) {
		return ""
	}
	return id
}

// client finds the client of a request's token. Every token is compared, in
// constant time, so that the time tells nothing.
func (h *Handler) client(r *http.Request) (found client, ok bool) {
	if h.cfg.Anonymous {
		return client{}, true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(token))
	for _, c := range h.clients {
		if subtle.ConstantTimeCompare(c.sum[:], sum[:]) == 1 {
			found, ok = c, true
		}
	}
	return found, ok && strings.EqualFold(scheme, "Bearer")
}
