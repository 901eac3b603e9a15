package fakecompute

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const project = "/compute/v1/projects/test-project"

// The document refuses what its schema has not, before the server sees it.
func TestTheDiscoveryDocumentIsKept(t *testing.T) {
	d, err := LoadDiscovery()
	if err != nil {
		t.Skipf("needs the module google.golang.org/api with its discovery documents: %v", err)
	}
	var mu sync.Mutex
	var problems []string
	s := New(Config{Zones: []string{"europe-west1-b"}, Discovery: d, Refused: func(p string) {
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, p)
	}})
	const insert = project + "/zones/europe-west1-b/instances"
	for name, c := range map[string]struct{ verb, path, body, want string }{
		"an insert":                 {"POST", insert, `{"name":"proxy-1","machineType":"m"}`, ""},
		"a bad name":                {"POST", insert, `{"name":"Proxy_1"}`, "pattern"},
		"an unknown field":          {"POST", insert, `{"name":"a","colour":"red"}`, "unknown field colour"},
		"an unknown field, deep":    {"POST", insert, `{"name":"a","disks":[{"initializeParams":{"size":"1"}}]}`, "disks[0].initializeParams: unknown field size"},
		"the server's own field":    {"POST", insert, `{"name":"a","status":"RUNNING"}`, "the server's to write"},
		"a value of no enumeration": {"POST", insert, `{"name":"a","scheduling":{"provisioningModel":"CHEAP"}}`, "is none of"},
		"an int64 as a number":      {"POST", insert, `{"name":"a","disks":[{"initializeParams":{"diskSizeGb":10}}]}`, "is no string"},
		"an int64 that is none":     {"POST", insert, `{"name":"a","disks":[{"initializeParams":{"diskSizeGb":"ten"}}]}`, "is no number"},
		"a text for a switch":       {"POST", insert, `{"name":"a","canIpForward":"yes"}`, "is no boolean"},
		"a list for an object":      {"POST", insert, `{"name":"a","labels":[]}`, "is no object"},
		"a label that is no text":   {"POST", insert, `{"name":"a","labels":{"x":1}}`, "is no string"},
		"no body":                   {"POST", insert, ``, "body is missing"},
		"a body for a get":          {"GET", insert + "/proxy-1", `{}`, "takes no body"},
		"a parameter that went":     {"GET", project + "/aggregated/instances?returnPartialSuccess=true", "", `unknown parameter "returnPartialSuccess"`},
		"a parameter of all":        {"GET", project + "/aggregated/instances?prettyPrint=false&maxResults=5", "", ""},
		"a bad zone in the path":    {"GET", project + "/zones/Europe/instances/a", "", "no such method"},
		"no method":                 {"PUT", insert, `{}`, "no such method"},
	} {
		t.Run(name, func(t *testing.T) {
			problems = nil
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(c.verb, c.path, strings.NewReader(c.body)))
			if c.want == "" {
				assert.Empty(t, problems)
				return
			}
			require.NotEmpty(t, problems)
			assert.Contains(t, problems[0], c.want)
			assert.Equal(t, http.StatusBadRequest, w.Code)
		})
	}
}

func TestFilters(t *testing.T) {
	v := map[string]any{"name": "a", "labels": map[string]any{"x": "1", "y-z": "2"}, "status": "DONE"}
	for text, want := range map[string]bool{
		``:                                      true,
		`name = "a"`:                            true,
		`name="b"`:                              false,
		`labels.x = "1" AND labels.y-z = "2"`:   true,
		`(labels.x = "1") AND (labels.x = "2")`: false,
		`(name = "b") OR (status = "DONE")`:     true,
		`(name = "a") AND ((status = "X") OR (status = "DONE"))`: true,
		`labels.none = "x"`: false,
		`labels = "x"`:      false,
	} {
		f, err := parseFilter(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, f(v), text)
	}
	for _, text := range []string{`name`, `(name = "a"`, `name = "a" name = "b"`, `name eq a`} {
		_, err := parseFilter(text)
		assert.Error(t, err, text)
	}
}

// Both of a filter and an order are more than the API can do.
func TestOperationsAreNotFilteredAndSorted(t *testing.T) {
	s := New(Config{Zones: []string{"europe-west1-b"}})
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, project+"/zones/europe-west1-b/operations?filter=x%3D%22y%22&orderBy=name", nil))
	body, _ := io.ReadAll(w.Body)
	assert.Equal(t, http.StatusBadRequest, w.Code, "%s", body)
}
