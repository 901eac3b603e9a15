// Package registry makes named providers from a file.
//
// The file is YAML or JSON. Each entry names a provider and its type, and holds
// the configuration under the name of the type:
//
//	providers:
//	  - name: rack-1
//	    type: kvm
//	    kvm:
//	      sshKeyFile: /etc/egress/id_ed25519
//	      hosts: [...]
//	  - name: dev
//	    type: local
//	    local: {bootDelay: 1s}
//
// The types are passed in, so that a program links only the backends that it
// names, its own among them:
//
//	providers, err := registry.Load("providers.yaml", registry.Types{
//		"local": registry.For(func(name string, cfg local.Config) (*local.Provider, error) {
//			cfg.Name = name
//			return local.New(cfg)
//		}),
//	})
//
// A file of the wrong shape is refused whole, with every unknown field and its
// path. A provider that cannot be made of a well-formed entry is reported, and
// the others work.
package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/provider"
)

// Types maps the name of a type in the file to what makes its providers.
type Types map[string]Type

// Type makes providers of one type. Get one from [For].
type Type struct {
	decode func(config []byte) (build func(name string) (provider.Provider, error), err error)
}

// For returns the Type whose configuration is C, a struct with JSON tags. build
// gets the entry's name and its configuration, and makes the provider.
func For[C any, P provider.Provider](build func(name string, cfg C) (P, error)) Type {
	return Type{decode: func(config []byte) (func(string) (provider.Provider, error), error) {
		var cfg C
		if err := strict(config, &cfg); err != nil {
			return nil, err
		}
		return func(name string) (provider.Provider, error) { return build(name, cfg) }, nil
	}}
}

// Registry holds named providers.
type Registry struct {
	names     []string
	providers map[string]provider.Provider
	failed    map[string]error
}

// Load reads the file and makes its providers.
func Load(path string, types Types) (*Registry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("providers file: %w", err)
	}
	r, err := Parse(data, types)
	if err != nil {
		return nil, fmt.Errorf("providers file %s:\n%w", path, err)
	}
	return r, nil
}

// Parse makes the providers of a file's content.
func Parse(data []byte, types Types) (*Registry, error) {
	entries, err := parse(data, types)
	if err != nil {
		return nil, err
	}
	r := &Registry{providers: map[string]provider.Provider{}, failed: map[string]error{}}
	for _, e := range entries {
		r.names = append(r.names, e.name)
		p, err := e.build(e.name)
		if err != nil {
			r.failed[e.name] = fmt.Errorf("provider %s: %w", e.name, err)
			continue
		}
		r.providers[e.name] = p
	}
	return r, nil
}

// oneDocument refuses a second YAML document, which would be ignored.
func oneDocument(data []byte) error {
	content := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n\t ")
		switch {
		case content && (line == "---" || strings.HasPrefix(line, "--- ")):
			return errors.New("the file must be one YAML document: there is a second one behind ---")
		case line != "" && line != "---" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "%"):
			content = true
		}
	}
	return nil
}

// entry is a well-formed entry of the file.
type entry struct {
	name  string
	build func(name string) (provider.Provider, error)
}

func parse(data []byte, types Types) ([]entry, error) {
	if err := oneDocument(data); err != nil {
		return nil, err
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var file struct {
		Providers []map[string]json.RawMessage `json:"providers"`
	}
	if string(text) != "null" {
		if err := strict(text, &file); err != nil {
			return nil, err
		}
	}
	var problems check.Problems
	problems.Require(len(file.Providers) > 0, "providers", "list at least one provider")
	seen := map[string]bool{}
	entries := make([]entry, 0, len(file.Providers))
	for i, fields := range file.Providers {
		e, err := parseEntry(fields, types)
		if err == nil && seen[e.name] {
			err = fmt.Errorf("name: %q: is used twice", e.name)
		}
		problems.Within(fmt.Sprintf("providers[%d]", i), err)
		seen[e.name] = true
		entries = append(entries, e)
	}
	return entries, problems.Err()
}

func parseEntry(fields map[string]json.RawMessage, types Types) (entry, error) {
	var problems check.Problems
	name, kind := text(fields, "name", &problems), text(fields, "type", &problems)
	if name != "" {
		problems.Within("name", provider.ValidIDPart(name))
	}
	made, known := types[kind]
	if kind != "" && !known {
		problems.Add("type", kind, fmt.Sprintf("must be one of %q", slices.Sorted(maps.Keys(types))))
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key != "name" && key != "type" && key != kind {
			problems.Missing(key, "unknown field")
		}
	}
	e := entry{name: name}
	if known {
		config := fields[kind]
		if config == nil {
			config = []byte("{}")
		}
		var err error
		e.build, err = made.decode(config)
		problems.Within(kind, err)
	}
	return e, problems.Err()
}

// text returns a field that must be a string that is not empty.
func text(fields map[string]json.RawMessage, key string, problems *check.Problems) string {
	var s string
	if err := json.Unmarshal(fields[key], &s); err != nil || s == "" {
		problems.Missing(key, "must be a string that is not empty")
	}
	return s
}

// Names returns the names of all entries, in the file's order.
func (r *Registry) Names() []string { return slices.Clone(r.names) }

// Get returns the named provider, or the error that kept it from being made.
func (r *Registry) Get(name string) (provider.Provider, error) {
	if p, ok := r.providers[name]; ok {
		return p, nil
	}
	if err, ok := r.failed[name]; ok {
		return nil, err
	}
	return nil, fmt.Errorf("no provider is named %q: the file has %q", name, r.names)
}

// Err returns why providers could not be made, joined, or nil.
func (r *Registry) Err() error {
	var errs []error
	for _, name := range r.names {
		errs = append(errs, r.failed[name])
	}
	return errors.Join(errs...)
}

// Close closes the providers that are an io.Closer.
func (r *Registry) Close() error {
	var errs []error
	for _, name := range r.names {
		if c, ok := r.providers[name].(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
