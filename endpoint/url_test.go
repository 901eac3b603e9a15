package endpoint_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
)

func TestParseURLAccepts(t *testing.T) {
	for raw, want := range map[string]string{
		"http://192.0.2.7:3128":             "http://192.0.2.7:3128",
		"HTTP://proxy.example:80/":          "http://proxy.example:80",
		"https://[2001:db8::7]:3129":        "https://[2001:db8::7]:3129",
		"http://[fe80::1%25eth0]:3128":      "http://[fe80::1%25eth0]:3128",
		"socks5://u:p@192.0.2.7:1080":       "socks5://u:p@192.0.2.7:1080",
		"socks5h://192.0.2.7:1080":          "socks5h://192.0.2.7:1080",
		"http://u:p@ss@192.0.2.7:3128":      "http://u:p%40ss@192.0.2.7:3128",
		"http://u:a:b@192.0.2.7:3128":       "http://u:a%3Ab@192.0.2.7:3128",
		"http://u:%23%25%2F%3F@192.0.2.7:1": "http://u:%23%25%2F%3F@192.0.2.7:1",
		"http://token@192.0.2.7:3128":       "http://token:@192.0.2.7:3128",
	} {
		t.Run(raw, func(t *testing.T) {
			u, err := endpoint.ParseURL(raw)
			require.NoError(t, err)
			assert.Equal(t, want, u.Reveal())
			again, err := endpoint.ParseURL(u.Reveal())
			require.NoError(t, err)
			assert.True(t, again.Equal(u), "what Reveal returns parses to the same")
		})
	}
}

func TestParseURLRefusesAndSaysWhatToDo(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                  "no scheme",
		"192.0.2.7:3128":                    "write it like http://",
		"socks4://192.0.2.7:1080":           `"socks4" is not supported: use http, https or socks5`,
		"ftp://192.0.2.7:21":                "is not supported",
		"http://192.0.2.7":                  "give host and port",
		"http://192.0.2.7:0":                "from 1 to 65535",
		"http://192.0.2.7:99999":            "from 1 to 65535",
		"http://:3128":                      "must be an ASCII name",
		"http://bücher.example:3128":        "punycode",
		"http://2001:db8::7:3128":           "put an IPv6 address in brackets",
		"http://[2001:db8::zz]:3128":        "must be an ASCII name",
		"http://[fe80::1%eth 0]:3128":       "must be an ASCII name",
		"http://[fe80::1%25eth%2f]:3128":    "must be an ASCII name",
		"http://192.0.2.7:3128/path":        "without a path",
		"http://u:p#w@192.0.2.7:3128":       "'#' as %23",
		"http://u:p/w@192.0.2.7:3128":       "'/' as %2F",
		"http://u:p%ss@192.0.2.7:3128":      "'%' as %25",
		"http://a%3Ab:p@192.0.2.7:3128":     "colon",
		"http://u:p%0D%0A@192.0.2.7:1":      "control characters",
		"socks5://:p@192.0.2.7:1080":        "1 to 255 bytes",
		"http://***@192.0.2.7:3128":         "use the original",
		"http://crawler:hunter2":            "the port must be a number",
		"crawler:hun://ter2@192.0.2.7:3128": "its scheme is not supported",
	} {
		t.Run(raw, func(t *testing.T) {
			_, err := endpoint.ParseURL(raw)
			for _, secret := range []string{"hunter2", "hun", "ter2"} {
				assert.NotContains(t, err.Error(), secret)
			}
			assert.ErrorContains(t, err, want)
		})
	}
}

// A printer that reads the fields by reflection must not find the secret.
type holder struct{ hidden endpoint.URL }

func TestURLNeverPrintsItsCredentials(t *testing.T) {
	u, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "hunter2")
	require.NoError(t, err)
	e := endpoint.Endpoint{ID: "a", URL: u}
	encoded, err := json.Marshal(e)
	require.NoError(t, err)

	var texts []string
	for _, v := range []any{u, &u, e, &e, []endpoint.URL{u}, holder{u}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			texts = append(texts, fmt.Sprintf(verb, v))
		}
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "url", u, "endpoint", e)
	for _, text := range append(texts, string(encoded), log.String()) {
		assert.NotContains(t, text, "hunter2")
		assert.NotContains(t, text, "crawler")
		assert.NotContains(t, text, fmt.Sprintf("%x", "hunter2"))
	}
	assert.Equal(t, "http://***@192.0.2.7:3128", u.String())
	assert.JSONEq(t, `{"id":"a","url":"http://***@192.0.2.7:3128"}`, string(encoded))
}

func TestEndpointValidateReportsAll(t *testing.T) {
	assert.EqualError(t, endpoint.Endpoint{}.Validate(),
		"id: give the endpoint an ID\nurl: give the proxy's URL, such as http://192.0.2.7:3128")
}

func FuzzParseURL(f *testing.F) {
	f.Add("http://", "user", "p@:#%ss", "192.0.2.7:3128")
	f.Add("", "", "", "")
	f.Add("http://", "0", "0", "\xff:1")
	f.Fuzz(func(t *testing.T, scheme, user, password, host string) {
		secret := "S3CR3T" + password
		u, err := endpoint.ParseURL(scheme + user + ":" + secret + "@" + host)
		if err != nil {
			assert.NotContains(t, err.Error(), "S3CR3T")
			return
		}
		again, err := endpoint.ParseURL(u.Reveal())
		require.NoError(t, err)
		assert.True(t, u.Equal(again))
		if !strings.Contains(host, "S3CR3T") {
			assert.NotContains(t, u.String(), "S3CR3T")
		}
	})
}
