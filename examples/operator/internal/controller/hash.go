package controller

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
)

// hashVersion is that of the form that is hashed. Raise it with every change of
// the form: machines whose hash has another version are stamped anew and not
// replaced, so that an upgrade of the operator replaces nothing.
const hashVersion = "1"

// hashed is what makes a machine another one: what the user has set, and no
// defaults, which may change with the operator.
type hashed struct {
	Placement v1alpha1.Placement `json:"placement,omitzero"`
	Port      int32              `json:"port,omitempty"`
	UserData  []byte             `json:"userData,omitempty"`
	Username  string             `json:"username,omitempty"`
	Password  string             `json:"password,omitempty"`
}

// hash is a version, a colon, and a digest that tells nothing of the passwords in
// it: it is keyed. The version tells the key too, so that another key restamps.
func hash(key []byte, h hashed) string {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // a struct of strings
	}
	return hashVersion + "." + digest(key, []byte("key"))[:8] + ":" + digest(key, text)[:32]
}

func digest(key, text []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

// hash64 tells URLs apart, by a number that JSON keeps.
func hash64(key []byte, url endpoint.URL) uint64 {
	n, err := strconv.ParseUint(digest(key, []byte(url.Reveal()))[:13], 16, 64)
	if err != nil {
		panic(err) // hexadecimal digits
	}
	return n
}

// sameVersion tells whether two hashes can be compared.
func sameVersion(a, b string) bool {
	va, _, _ := strings.Cut(a, ":")
	vb, _, _ := strings.Cut(b, ":")
	return va == vb
}
