package provider

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/egressfleet/egress/internal/check"
)

// The limits of a request. They fit the narrowest backend we know: labels of
// Compute Engine have at most 63 characters.
const (
	maxUIDLength      = 128
	maxMetadata       = 16
	maxMetadataLength = 256
)

var (
	tagPattern     = regexp.MustCompile(`^[a-z][a-z0-9-]{0,61}[a-z0-9]$`)
	namePattern    = regexp.MustCompile(`^proxy-[a-z2-7]{16}$`)
	idPartPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	uidPattern     = regexp.MustCompile(`^[!-~]+$`)
	nameEncoding   = base32.StdEncoding.WithPadding(base32.NoPadding)
	errMalformedID = errors.New("not an ID of this provider")
)

// Name returns the name of the instance with that UID: "proxy-" and the first
// 16 characters (80 bits) of the base32 form of the UID's SHA-256, in lower
// case. It is a valid host name and resource name everywhere.
func Name(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return "proxy-" + strings.ToLower(nameEncoding.EncodeToString(sum[:10]))
}

// IsName tells whether s has the form that [Name] gives.
func IsName(s string) bool { return namePattern.MatchString(s) }

// ValidTag reports an error unless tag matches ^[a-z][a-z0-9-]{0,61}[a-z0-9]$,
// which every backend accepts as a label.
func ValidTag(tag string) error {
	if tagPattern.MatchString(tag) {
		return nil
	}
	return fmt.Errorf("%q: must be 2 to 63 lower-case letters, digits and dashes, "+
		"begin with a letter and not end with a dash", tag)
}

// ValidIDPart reports an error unless s matches ^[A-Za-z0-9][A-Za-z0-9_.-]*$,
// the rule for configured names that become a part of an ID, such as a host's.
func ValidIDPart(s string) error {
	if idPartPattern.MatchString(s) {
		return nil
	}
	return fmt.Errorf("%q: becomes a part of provider IDs, so it must begin with a letter or digit "+
		"and hold only letters, digits, and the characters _ . -", s)
}

// Validate reports all that is wrong with the request, joined. Each problem
// names its field; user-data is never shown. Providers call it first and
// return what it says as ErrPermanent.
func (r CreateRequest) Validate() error {
	var problems check.Problems
	if len(r.UID) > maxUIDLength || !uidPattern.MatchString(r.UID) {
		problems.Add("uid", r.UID, "must be 1 to 128 printable ASCII characters without spaces")
	}
	problems.Within("tag", ValidTag(r.Tag))
	if len(r.Metadata) > maxMetadata {
		problems.Add("metadata", len(r.Metadata), "has more than 16 entries; it is for a handful of short strings")
	}
	for key, value := range r.Metadata {
		path := fmt.Sprintf("metadata[%q]", key)
		problems.Within(path, ValidTag(key))
		if len(value) > maxMetadataLength || !utf8.ValidString(value) {
			problems.Missing(path, "the value must be UTF-8 of at most 256 bytes")
		}
	}
	return problems.Err()
}

// IDFormat is the form of a provider's IDs, "Scopes/scope/Kinds/name":
//
//	provider.IDFormat{Scopes: "zones", Kinds: "instances"}.Format("europe-west1-b", name)
//	// zones/europe-west1-b/instances/proxy-…
type IDFormat struct {
	Scopes string // plural noun of the place: "hosts", "zones"
	Kinds  string // plural noun of the thing: "domains", "instances"
}

// Format returns the ID of the named instance in that scope.
func (f IDFormat) Format(scope, name string) string {
	return f.Scopes + "/" + scope + "/" + f.Kinds + "/" + name
}

// Parse takes an ID apart. An error is ErrPermanent with [CodeMalformedID] and
// shows the form that is wanted.
func (f IDFormat) Parse(id string) (scope, name string, err error) {
	parts := strings.Split(id, "/")
	if len(parts) != 4 || parts[0] != f.Scopes || parts[2] != f.Kinds ||
		!idPartPattern.MatchString(parts[1]) || !IsName(parts[3]) {
		return "", "", &Error{
			Class: ErrPermanent, ID: id, Code: CodeMalformedID,
			Err: fmt.Errorf("%w: want %s/%s/%s/%s", errMalformedID,
				f.Scopes, "NAME", f.Kinds, "proxy-XXXXXXXXXXXXXXXX"),
		}
	}
	return parts[1], parts[3], nil
}
