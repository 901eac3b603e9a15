package fleet

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
)

// DerivePassword returns the password of the proxy with that UID: 32 letters,
// digits, '-' and '_', from the HMAC-SHA-256 of the UID under the key (192 bits
// of it). Whoever has the key can derive all of them, so it needs no store of
// passwords, and a restart none to read. The key must have at least 16 bytes of
// randomness, and must not be a password of a person.
func DerivePassword(key []byte, uid string) (string, error) {
	if len(key) < 16 {
		return "", errors.New("fleet: the key for proxy passwords has less than 16 bytes: draw one with crypto/rand")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("egress proxy password\x00" + uid))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:24]), nil
}
