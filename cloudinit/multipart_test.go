package cloudinit_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"

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

func FuzzMultipart(f *testing.F) {
	for _, data := range userDataKinds {
		f.Add(data, []byte("second"))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		document, err := cloudinit.Multipart(cloudinit.Part{Content: first}, cloudinit.Part{Content: second})
		if err != nil || hasMIME(first) || hasMIME(second) {
			return
		}
		msg, err := mail.ReadMessage(bytes.NewReader(document))
		require.NoError(t, err)
		_, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
		require.NoError(t, err)
		r := multipart.NewReader(msg.Body, params["boundary"])
		for _, want := range [][]byte{first, second} {
			part, err := r.NextPart()
			require.NoError(t, err)
			require.Equal(t, string(want), string(decoded(t, part)))
		}
		_, err = r.NextPart()
		require.ErrorIs(t, err, io.EOF)
	})
}

// hasMIME reports whether data is nested as it is, which the fuzzer skips.
func hasMIME(data []byte) bool {
	return strings.Contains(strings.ToLower(string(data)), "mime-version:") || bytes.HasPrefix(data, []byte{0x1f, 0x8b})
}

// decoded reads a part and undoes its transfer encoding.
func decoded(t *testing.T, part *multipart.Part) []byte {
	var r io.Reader = part
	if part.Header.Get("Content-Transfer-Encoding") == "base64" {
		r = base64.NewDecoder(base64.StdEncoding, part)
	}
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return b
}
