package diskimage

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// The codes of this package's errors.
const (
	// CodeDownloadFailed marks an image that cannot be fetched.
	CodeDownloadFailed = "DownloadFailed"
	// CodeBadImage marks what is not an image, or not of the wanted kind.
	CodeBadImage = "BadImage"
	// CodeDigestMismatch marks an image that is not what its digest says.
	CodeDigestMismatch = "DigestMismatch"
)

// The formats of disk images.
const (
	FormatQCOW2 = "qcow2"
	FormatRaw   = "raw"
)

// Source says where an image is and what it must be.
type Source struct {
	// URL is an http, https or file URL, or an absolute path.
	URL string
	// SHA256 and SHA512 are of the file as it is published, packed or not, in
	// lower-case hexadecimal. Each may be empty.
	SHA256, SHA512 string
	// Format is what it must be; empty takes either, where the beginning of a raw
	// one shows that it is a disk.
	Format string
}

// ValidURL tells whether a URL can be a source. It does not repeat the URL,
// which may carry credentials.
func ValidURL(raw string) error {
	if filepath.IsAbs(raw) {
		return nil
	}
	u, err := url.Parse(raw)
	if err != nil {
		return errUnknownURL
	}
	switch u.Scheme {
	case "http", "https":
		if u.Host != "" {
			return nil
		}
	case "file":
		if (u.Host == "" || u.Host == "localhost") && filepath.IsAbs(u.Path) {
			return nil
		}
	}
	return errUnknownURL
}

var errUnknownURL = errors.New("must be an http, https or file URL, or an absolute path")

// IsRemote tells whether a URL is fetched over the network.
func IsRemote(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// Shown is a URL for logs and errors, without what may be a secret.
func Shown(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "the image's url"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// baseName is the name of the file that a URL names.
func baseName(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return path.Base(raw)
	}
	return path.Base(u.Path)
}

// filePath returns the path of a source that is a file of this machine.
func filePath(raw string) (string, bool) {
	if filepath.IsAbs(raw) {
		return raw, true
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	return u.Path, true
}

// Opener opens sources. Its fields must be set.
type Opener struct {
	// Client fetches what is remote.
	Client *http.Client
	// Stall is how long a server may send nothing.
	Stall time.Duration
}

// hasDigest tells whether the content is known beforehand.
func (s Source) hasDigest() bool { return s.SHA256+s.SHA512 != "" }

// withoutURL takes the URL, which may carry credentials, out of an error.
func withoutURL(err error) error {
	var withURL *url.Error
	if errors.As(err, &withURL) {
		return withURL.Err
	}
	return err
}

func looksLikeHTMLType(contentType string) bool { return strings.HasPrefix(contentType, "text/html") }
