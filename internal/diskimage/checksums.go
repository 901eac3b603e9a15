package diskimage

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/egressfleet/egress/provider"
)

// maxChecksums is the most of a checksums file that is read, in bytes. Those of
// whole distributions have some ten thousand lines of 200.
const maxChecksums = 4 << 20

// Resolve fetches the checksums file at a URL and returns the source with the
// digest that the file has for it: by its file name, or by its path's end.
func (o Opener) Resolve(ctx context.Context, src Source, checksums string) (Source, error) {
	list := Source{URL: checksums}
	b, err := newBody(ctx, o, list)
	if err != nil {
		return src, err
	}
	defer b.Close()
	text, err := io.ReadAll(io.LimitReader(b, maxChecksums+1))
	switch {
	case err != nil:
		return src, err
	case len(text) > maxChecksums:
		return src, provider.Permanentf(CodeBadImage, "%s is no checksums file: it has more than %d bytes", Shown(checksums), maxChecksums)
	case b.first.html || looksLikeHTML(text):
		return src, provider.Permanentf(CodeBadImage, "%s is an HTML page and no checksums file", Shown(checksums))
	}
	found, err := findChecksum(text, baseName(src.URL))
	if err != nil {
		return src, provider.Permanentf(CodeBadImage, "%s: %w", Shown(checksums), err)
	}
	switch len(found) {
	case sha256Digits:
		src.SHA256 = found
	case sha512Digits:
		src.SHA512 = found
	}
	return src, nil
}

// The lengths of digests in hexadecimal.
const (
	sha256Digits = 64
	sha512Digits = 128
)

// findChecksum returns the digest of the named file. It is an error if there is
// none, or more than one.
func findChecksum(text []byte, name string) (string, error) {
	found := ""
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxChecksums+1)
	for lines.Scan() {
		digest, file, ok := parseChecksum(lines.Text())
		if !ok || path.Base(file) != name || digest == found {
			continue
		}
		if len(found) == len(digest) {
			return "", fmt.Errorf("it has two checksums for %s", name)
		}
		if len(digest) > len(found) { // the longer one of two kinds
			found = digest
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if found == "" {
		return "", errors.New("it has no sha256 or sha512 checksum for " + name)
	}
	return found, nil
}

// digits are those of a digest in the form of BSD, by the name of its kind.
var digits = map[string]int{"SHA256": sha256Digits, "SHA2-256": sha256Digits, "SHA512": sha512Digits, "SHA2-512": sha512Digits}

// parseChecksum reads one line, in the form of sha256sum or in that of BSD. Lines
// of other kinds, such as comments and signatures, are none.
func parseChecksum(line string) (digest, file string, ok bool) {
	line = strings.TrimSpace(line)
	kind, rest, _ := strings.Cut(line, " (")
	wanted, isBSD := digits[strings.ToUpper(kind)]
	if isBSD {
		if at := strings.LastIndex(rest, ") = "); at >= 0 {
			digest, file = rest[at+len(") = "):], rest[:at]
		}
	} else if digest, file, ok = strings.Cut(line, " "); ok {
		// A second blank or an asterisk tells the mode in which it was read.
		file = strings.TrimLeft(file, " *")
		wanted = len(digest)
	}
	digest = strings.ToLower(digest)
	if _, err := hex.DecodeString(digest); err != nil || len(digest) != wanted || (wanted != sha256Digits && wanted != sha512Digits) {
		return "", "", false
	}
	return digest, file, file != ""
}
