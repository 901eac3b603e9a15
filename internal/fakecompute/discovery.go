package fakecompute

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Discovery is what discovery documents allow.
type Discovery struct {
	methods []*apiMethod
}

// apiMethod is one method of a document.
type apiMethod struct {
	ID         string               `json:"id"`
	HTTPMethod string               `json:"httpMethod"`
	FlatPath   string               `json:"flatPath"`
	Parameters map[string]parameter `json:"parameters"`
	Request    *schema              `json:"request"`
	Response   *schema              `json:"response"`

	doc *document
	// path is FlatPath, with what comes before it.
	path    string
	pattern func() *regexp.Regexp
}

type parameter struct {
	Location string   `json:"location"`
	Pattern  string   `json:"pattern"`
	Enum     []string `json:"enum"`
}

// schema is a type, or a field with its type.
type schema struct {
	Ref        string             `json:"$ref"`
	Type       string             `json:"type"`
	Format     string             `json:"format"`
	Pattern    string             `json:"pattern"`
	Enum       []string           `json:"enum"`
	ReadOnly   bool               `json:"readOnly"`
	Properties map[string]*schema `json:"properties"`
	Additional *schema            `json:"additionalProperties"`
	Items      *schema            `json:"items"`
}

type resource struct {
	Methods   map[string]*apiMethod `json:"methods"`
	Resources map[string]resource   `json:"resources"`
}

type document struct {
	ServicePath string               `json:"servicePath"`
	Parameters  map[string]parameter `json:"parameters"`
	Schemas     map[string]*schema   `json:"schemas"`
	Resources   map[string]resource  `json:"resources"`
}

// LoadDiscovery reads the documents that the module google.golang.org/api brings,
// in the version that go.mod selects. An error means that there are none to be
// had, as in a vendored tree.
func LoadDiscovery() (*Discovery, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	d := &Discovery{}
	for _, file := range []string{"compute/v1/compute-api.json", "cloudresourcemanager/v1/cloudresourcemanager-api.json"} {
		if err := d.load(filepath.Join(strings.TrimSpace(string(dir)), file)); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Discovery) load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	doc := &document{}
	if err := json.Unmarshal(text, doc); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, r := range doc.Resources {
		d.addAll(doc, r)
	}
	return nil
}

func (d *Discovery) addAll(doc *document, r resource) {
	for _, m := range r.Methods {
		m.doc = doc
		m.path = "/" + doc.ServicePath + m.FlatPath
		m.pattern = sync.OnceValue(m.pathPattern)
		d.methods = append(d.methods, m)
	}
	for _, inner := range r.Resources {
		d.addAll(doc, inner)
	}
}

// placeholder is a parameter in a path.
var placeholder = regexp.MustCompile(`\\\{([a-zA-Z]+)\\\}`)

func (m *apiMethod) pathPattern() *regexp.Regexp {
	text := placeholder.ReplaceAllStringFunc(regexp.QuoteMeta(m.path), func(p string) string {
		pattern := m.Parameters[placeholder.FindStringSubmatch(p)[1]].Pattern
		if pattern == "" {
			pattern = `[^/]+`
		}
		return "(?:" + strings.Trim(pattern, "^$") + ")"
	})
	return regexp.MustCompile("^" + text + "$")
}

// serves tells whether a request is for the method. Comparing the fixed parts first
// spares most of the patterns.
func (m *apiMethod) serves(verb, path string) bool {
	if m.HTTPMethod != verb {
		return false
	}
	want, have := strings.Split(m.path, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return false
	}
	for i, part := range want {
		if !strings.Contains(part, "{") && part != have[i] {
			return false
		}
	}
	return m.pattern().MatchString(path)
}

// method is the one that a request is for; nil for none.
func (d *Discovery) method(r *http.Request) *apiMethod {
	for _, m := range d.methods {
		if m.serves(r.Method, r.URL.Path) {
			return m
		}
	}
	return nil
}

// CheckAnswer returns what is wrong with the body of an answer: a fake that writes
// what the API has not would hide mistakes of its client.
func (d *Discovery) CheckAnswer(r *http.Request, body []byte) []string {
	m := d.method(r)
	var v any
	if err := json.Unmarshal(body, &v); m == nil || m.Response == nil || err != nil {
		return []string{fmt.Sprintf("%s %s: no answer of the document: %v", r.Method, r.URL.Path, err)}
	}
	return checker{m.doc, true}.check(m.ID, m.Response, v)
}

// Check returns what is wrong with a request: nothing if it is allowed.
func (d *Discovery) Check(r *http.Request, body []byte) (problems []string) {
	m := d.method(r)
	if m == nil {
		return []string{fmt.Sprintf("%s %s: no such method, or a parameter in the path that has not its pattern", r.Method, r.URL.Path)}
	}
	for key, values := range r.URL.Query() {
		p, ok := m.Parameters[key]
		if !ok || p.Location != "query" {
			p, ok = m.doc.Parameters[key]
		}
		if !ok {
			problems = append(problems, fmt.Sprintf("%s: unknown parameter %q", m.ID, key))
		}
		if len(p.Enum) > 0 && !slices.Contains(p.Enum, values[0]) {
			problems = append(problems, fmt.Sprintf("%s: parameter %s: %q is none of %q", m.ID, key, values[0], p.Enum))
		}
	}
	return append(problems, m.checkBody(body)...)
}

func (m *apiMethod) checkBody(body []byte) []string {
	if len(body) == 0 {
		if m.Request != nil {
			return []string{m.ID + ": the body is missing"}
		}
		return nil
	}
	if m.Request == nil {
		return []string{m.ID + ": takes no body"}
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return []string{m.ID + ": " + err.Error()}
	}
	return checker{m.doc, false}.check(m.ID, m.Request, v)
}

// checker compares values with the schemas of a document.
type checker struct {
	*document
	// server says that the server wrote the value.
	server bool
}

// check returns what is wrong with a value.
func (d checker) check(path string, s *schema, v any) []string {
	if s.Ref != "" {
		s = d.Schemas[s.Ref]
	}
	wrong := func(format string, args ...any) []string { return []string{path + ": " + fmt.Sprintf(format, args...)} }
	switch v := v.(type) {
	case map[string]any:
		return d.checkObject(path, s, v)
	case []any:
		if s.Type != "array" {
			return wrong("is no %s", s.Type)
		}
		var problems []string
		for i, item := range v {
			problems = append(problems, d.check(fmt.Sprintf("%s[%d]", path, i), s.Items, item)...)
		}
		return problems
	case string:
		return s.checkString(v, wrong)
	case bool:
		if s.Type != "boolean" {
			return wrong("is no %s", s.Type)
		}
	case float64:
		if s.Type != "integer" && s.Type != "number" {
			return wrong("is no %s", s.Type)
		}
	default:
		return wrong("is %v", v)
	}
	return nil
}

func (d checker) checkObject(path string, s *schema, v map[string]any) (problems []string) {
	if s.Type != "object" {
		return []string{path + ": is no " + s.Type}
	}
	for _, key := range slices.Sorted(maps.Keys(v)) {
		field, ok := s.Properties[key]
		if !ok {
			field = s.Additional
		}
		switch {
		case field == nil:
			problems = append(problems, path+": unknown field "+key)
		case field.ReadOnly && !d.server:
			problems = append(problems, path+"."+key+": is the server's to write")
		default:
			problems = append(problems, d.check(path+"."+key, field, v[key])...)
		}
	}
	return problems
}

var digits = regexp.MustCompile(`^-?[0-9]+$`)

func (s *schema) checkString(v string, wrong func(string, ...any) []string) []string {
	switch {
	case s.Type != "string":
		return wrong("is no %s", s.Type)
	case strings.HasSuffix(s.Format, "int64") && !digits.MatchString(v):
		return wrong("%q is no number", v)
	case len(s.Enum) > 0 && !slices.Contains(s.Enum, v):
		return wrong("%q is none of %q", v, s.Enum)
	case s.Pattern != "":
		if pattern, err := regexp.Compile("^(?:" + s.Pattern + ")$"); err == nil && !pattern.MatchString(v) {
			return wrong("%q has not the pattern %s", v, s.Pattern)
		}
	}
	return nil
}
