package cloudinit

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/egressfleet/egress/internal/check"
)

// Content types of a [Part]. With ContentTypeDetect cloud-init looks at the
// first line, as it does with a document that stands alone.
const (
	ContentTypeDetect      = "text/plain"
	ContentTypeCloudConfig = "text/cloud-config"
	ContentTypeScript      = "text/x-shellscript"
	ContentTypeBoothook    = "text/cloud-boothook"
	ContentTypeJinja       = "text/jinja2"
)

// Part is one document of a [Multipart]. A document that is itself MIME, also
// a compressed one, becomes a nested part with the headers it has: then
// ContentType and Filename say nothing.
type Part struct {
	// ContentType is one of the constants, or any other type that
	// cloud-init has a handler for. Empty means ContentTypeDetect.
	ContentType string

	// Filename names a script in the guest: letters, digits and . _ -
	// only. Empty leaves the name to cloud-init.
	Filename string

	// Content reaches cloud-init byte for byte, but that a compressed
	// document with ContentTypeDetect is unpacked: inside a part cloud-init
	// would not look whether it is compressed.
	Content []byte
}

// Multipart puts documents into one MIME document, in their order. The
// boundary is a hash of the parts. Plain ASCII stays readable, everything else
// is base64.
//
// An error tells all that is wrong: a content type or file name with other
// characters than such names have, or a nested MIME document that is not
// UTF-8, which cloud-init cannot read.
func Multipart(parts ...Part) ([]byte, error) {
	var p check.Problems
	var bodies [][]byte
	for i, part := range parts {
		part.check(&p, fmt.Sprintf("parts[%d].", i))
		bodies = append(bodies, part.body())
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	boundary := boundaryOf(bodies)
	var b bytes.Buffer
	// cloud-init looks for the first header among the first 4096 bytes.
	fmt.Fprintf(&b, "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"%s\"\n\n", boundary)
	for _, body := range bodies {
		fmt.Fprintf(&b, "--%s\n%s\n", boundary, body)
	}
	fmt.Fprintf(&b, "--%s--\n", boundary)
	return b.Bytes(), nil
}

// boundaryOf derives a line that no part holds: a part with the hash of itself
// in it cannot be made.
func boundaryOf(bodies [][]byte) string {
	h := sha256.New()
	for _, body := range bodies {
		fmt.Fprintf(h, "%d\n", len(body))
		h.Write(body)
	}
	return "part-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// check notes what is wrong with one part.
func (p Part) check(errs *check.Problems, path string) {
	main, sub, ok := strings.Cut(p.ContentType, "/")
	if p.ContentType != "" && (!ok || !isName(main, "-.+") || !isName(sub, "-.+")) {
		errs.Add(path+"contentType", p.ContentType, "not a media type; write it as text/cloud-config")
	}
	if p.Filename != "" && !isName(p.Filename, "._-") {
		errs.Add(path+"filename", p.Filename, "not a plain file name; use letters, digits, dots, underscores and hyphens")
	}
	if m := mimeDocument(p.Content); m != nil && !utf8.Valid(m) {
		errs.Add(path+"content", fmt.Sprintf("%d bytes", len(m)), "a MIME document that is not UTF-8, which cloud-init cannot read; encode its parts as base64")
	}
}

// body renders the part: its headers, an empty line, its content. A line end
// before the boundary belongs to the boundary.
func (p Part) body() []byte {
	if m := mimeDocument(p.Content); m != nil {
		return m
	}
	contentType, raw := p.ContentType, p.Content
	if contentType == "" || contentType == ContentTypeDetect {
		contentType, raw = ContentTypeDetect, gunzip(p.Content)
	}
	charset, encoding, content := "us-ascii", "7bit", string(raw)
	if !isPlainText(raw) {
		charset, encoding, content = "utf-8", "base64", base64Lines(raw)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "Content-Type: %s; charset=\"%s\"\nContent-Transfer-Encoding: %s\n", contentType, charset, encoding)
	if p.Filename != "" {
		fmt.Fprintf(&b, "Content-Disposition: attachment; filename=\"%s\"\n", p.Filename)
	}
	fmt.Fprintf(&b, "\n%s", content)
	return b.Bytes()
}

// base64Lines encodes b in lines of 76 characters, as mail does.
func base64Lines(b []byte) string {
	const width = 76
	encoded := base64.StdEncoding.EncodeToString(b)
	var lines []string
	for len(encoded) > width {
		lines = append(lines, encoded[:width])
		encoded = encoded[width:]
	}
	return strings.Join(append(lines, encoded), "\n")
}

// mimeDocument returns content, unpacked where it is compressed, if cloud-init
// would take it for a MIME document, else nil. Inside a part cloud-init does
// not look for one, so such a document must be nested.
func mimeDocument(content []byte) []byte {
	content = gunzip(content)
	head := content[:min(len(content), 4096)]
	if !bytes.Contains(bytes.ToLower(head), []byte("mime-version:")) {
		return nil
	}
	return content
}

// maxUnpacked bounds what a compressed document may unpack to, in bytes.
const maxUnpacked = 64 << 20

// gunzip unpacks b, and returns it as it is when that cannot be done.
func gunzip(b []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return b
	}
	out, err := io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	if err != nil || len(out) > maxUnpacked {
		return b
	}
	return out
}
