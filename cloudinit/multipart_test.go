package cloudinit_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"net/textproto"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/cloudinit"
)

// processed is a part as cloud-init's handlers get it.
type processed struct {
	Type, Filename string
	Content        []byte
}

// processUserData runs a document through cloud-init's own processor, that is
// through all it does between reading the file and calling the handlers.
func processUserData(t *testing.T, document []byte) []processed {
	t.Helper()
	var parts []processed
	cloudInitPython(t, &parts, `
import base64, json, sys
from cloudinit import helpers, user_data, util
paths = helpers.Paths({"cloud_dir": sys.argv[2], "run_dir": sys.argv[2]})
message = user_data.UserDataProcessor(paths).process(open(sys.argv[1], "rb").read())
parts = []
for part in message.walk():
    if user_data.is_skippable(part):
        continue
    content = util.fully_decoded_payload(part)
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    parts.append({"Type": part.get_content_type(), "Filename": part.get_filename(),
                  "Content": base64.b64encode(content).decode()})
print(json.dumps(parts))
`, tempFile(t, "document", document), t.TempDir())
	return parts
}

// sniffed are the types cloud-init finds in documents that do not name one.
var sniffed = map[string]string{
	"cloud-config": "text/cloud-config", "UTF-8": "text/cloud-config", "trailing spaces": "text/cloud-config",
	"jinja": "text/jinja2", "script": "text/x-shellscript", "no final line end": "text/x-shellscript",
	"CRLF": "text/x-shellscript", "ends in CR": "text/x-shellscript", "long line": "text/x-shellscript",
}

func TestMultipartThroughCloudInit(t *testing.T) {
	for name, data := range userDataKinds {
		if name == "gzip" || name == "binary" {
			continue // see TestMultipartBinaryThroughCloudInit
		}
		t.Run(name, func(t *testing.T) {
			document, err := cloudinit.WithGuestAgent(data)
			require.NoError(t, err)
			parts := processUserData(t, document)
			assert.Equal(t, processed{"text/x-shellscript", scriptName(data), cloudinit.GuestAgentScript()}, parts[0])
			if len(data) == 0 {
				assert.Len(t, parts, 1)
				return
			}
			require.Len(t, parts, 2)
			assert.Equal(t, string(data), string(parts[1].Content))
			if want := sniffed[name]; want != "" {
				assert.Equal(t, want, parts[1].Type)
			}
		})
	}
}

// scriptName is what the agent's script is called: alone it has no headers.
func scriptName(vendorData []byte) string {
	if len(vendorData) == 0 {
		return "part-001"
	}
	return "install-guest-agent"
}

func TestMultipartBinaryThroughCloudInit(t *testing.T) {
	for _, name := range []string{"gzip", "binary"} {
		document, err := cloudinit.Multipart(cloudinit.Part{ContentType: "application/x-custom", Content: userDataKinds[name]})
		require.NoError(t, err)
		parts := processUserData(t, document)
		require.Len(t, parts, 1)
		assert.Equal(t, userDataKinds[name], parts[0].Content, name)
	}
}

func TestMultipartCompressedVendorData(t *testing.T) {
	document, err := cloudinit.WithGuestAgent(userDataKinds["gzip"])
	require.NoError(t, err)
	parts := processUserData(t, document)
	require.Len(t, parts, 2)
	assert.Equal(t, "text/cloud-config", parts[1].Type)
	assert.Equal(t, "#cloud-config\nruncmd: [reboot]\n", string(parts[1].Content))
}

func TestMultipartNestsMIME(t *testing.T) {
	inner, err := cloudinit.Multipart(
		cloudinit.Part{Content: []byte("#cloud-config\na: 1\n")},
		cloudinit.Part{ContentType: cloudinit.ContentTypeScript, Filename: "x.sh", Content: []byte("#!/bin/sh\n")},
	)
	require.NoError(t, err)
	for _, vendorData := range [][]byte{inner, gzipped(string(inner))} {
		document, err := cloudinit.WithGuestAgent(vendorData)
		require.NoError(t, err)
		parts := processUserData(t, document)
		require.Len(t, parts, 3)
		assert.Equal(t, processed{"text/cloud-config", "part-002", []byte("#cloud-config\na: 1\n")}, parts[1])
		assert.Equal(t, processed{"text/x-shellscript", "x.sh", []byte("#!/bin/sh\n")}, parts[2])
	}
}

func TestMultipartRefusesWhatBreaksIt(t *testing.T) {
	_, err := cloudinit.Multipart(
		cloudinit.Part{ContentType: "text/plain\nX: y", Filename: "../x"},
		cloudinit.Part{Content: []byte("MIME-Version: 1.0\n\n\xff")},
	)
	require.Error(t, err)
	golden(t, "multipart.errors.txt", []byte(err.Error()+"\n"))
}

func TestMultipartGolden(t *testing.T) {
	document, err := cloudinit.WithGuestAgent([]byte("#cloud-config\nfinal_message: grüß\n"))
	require.NoError(t, err)
	assert.True(t, bytes.HasPrefix(document, []byte("MIME-Version:")))
	golden(t, "vendor-data.mime", document)
}

func TestWithGuestAgentKeepsItsInput(t *testing.T) {
	in := []byte("#cloud-config\n")
	out, err := cloudinit.WithGuestAgent(in)
	require.NoError(t, err)
	clear(out)
	assert.Equal(t, "#cloud-config\n", string(in))
	clear(cloudinit.GuestAgentScript())
	assert.Contains(t, string(cloudinit.GuestAgentScript()), "#!/bin/sh")
}

// FuzzMultipart takes a document apart again. A part has its content, a compressed one
// what is in it, and one that is MIME is there as it is, so that all that is in it comes
// in its place.
func FuzzMultipart(f *testing.F) {
	for _, data := range userDataKinds {
		f.Add(data, []byte("second"))
		f.Add(nest(data, gzipped("second")), nest(nest(data)))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		contents := [][]byte{unpacked(first), unpacked(second)}
		unreadable := false
		for _, c := range contents {
			unreadable = unreadable || isMIME(c) && !utf8.Valid(c)
		}
		document, err := cloudinit.Multipart(cloudinit.Part{Content: first}, cloudinit.Part{Content: second})
		require.Equal(t, unreadable, err != nil, "%v", err)
		if err != nil {
			return
		}
		pieces := piecesOf(t, document)
		require.Len(t, pieces, 2)
		want, readable := []string{}, true
		for i, c := range contents {
			if isMIME(c) {
				require.Equal(t, string(c), pieces[i])
				leaves, err := leavesOf(c)
				want, readable = append(want, leaves...), readable && err == nil
				continue
			}
			part, err := mail.ReadMessage(strings.NewReader(pieces[i]))
			require.NoError(t, err)
			raw, err := io.ReadAll(part.Body)
			require.NoError(t, err)
			require.Equal(t, string(c), string(decoded(t, part.Header.Get("Content-Transfer-Encoding"), raw)))
			want = append(want, string(raw))
		}
		if !readable {
			return // to Go, that is: cloud-init takes more for MIME
		}
		got, err := leavesOf(document)
		require.NoError(t, err)
		require.Equal(t, strings.Join(want, "\x00"), strings.Join(got, "\x00"))
	})
}

// nest puts contents into a document, as far as they may be in one.
func nest(contents ...[]byte) []byte {
	parts := make([]cloudinit.Part, 0, len(contents))
	for _, c := range contents {
		parts = append(parts, cloudinit.Part{Content: c})
	}
	document, _ := cloudinit.Multipart(parts...)
	return document
}

// unpacked undoes gzip, where that is what data is, as cloud-init does.
func unpacked(data []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return data
	}
	out, err := io.ReadAll(io.LimitReader(r, 64<<20+1))
	if err != nil || len(out) > 64<<20 {
		return data
	}
	return out
}

// isMIME tells what cloud-init takes for a document in MIME.
func isMIME(data []byte) bool {
	head := data[:min(len(data), 4096)]
	return strings.Contains(strings.ToLower(string(head)), "mime-version:")
}

// piecesOf is what stands between the boundaries, whatever it is.
func piecesOf(t *testing.T, document []byte) []string {
	t.Helper()
	msg, err := mail.ReadMessage(bytes.NewReader(document))
	require.NoError(t, err)
	_, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	require.NoError(t, err)
	body, err := io.ReadAll(msg.Body)
	require.NoError(t, err)
	pieces := strings.Split("\n"+string(body), "\n--"+params["boundary"])
	require.Empty(t, pieces[0])
	require.Equal(t, "--\n", pieces[len(pieces)-1])
	pieces = pieces[1 : len(pieces)-1]
	for i, p := range pieces {
		require.True(t, strings.HasPrefix(p, "\n"))
		pieces[i] = p[1:]
	}
	return pieces
}

// leavesOf reads a document, and all that are in it, and returns what is no document, as
// it is encoded.
func leavesOf(document []byte) ([]string, error) {
	r := bufio.NewReader(bytes.NewReader(document))
	header, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	return leaves(header.Get("Content-Type"), r)
}

func leaves(contentType string, body io.Reader) ([]string, error) {
	kind, params, _ := mime.ParseMediaType(contentType)
	if !strings.HasPrefix(kind, "multipart/") {
		content, err := io.ReadAll(body)
		return []string{string(content)}, err
	}
	var all []string
	for r := multipart.NewReader(body, params["boundary"]); ; {
		part, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		inner, err := leaves(part.Header.Get("Content-Type"), part)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
}

// decoded undoes a transfer encoding.
func decoded(t *testing.T, encoding string, content []byte) []byte {
	t.Helper()
	if encoding != "base64" {
		return content
	}
	b, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(content)))
	require.NoError(t, err)
	return b
}
