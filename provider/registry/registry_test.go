package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nested is the configuration of a user's own provider.
type nested struct {
	Hosts []struct {
		Address string            `json:"address"`
		Wait    provider.Duration `json:"wait"`
	} `json:"hosts"`
}

var types = registry.Types{
	"local": registry.For(func(name string, cfg local.Config) (*local.Provider, error) {
		cfg.Name = name
		return local.New(cfg)
	}),
	"own": registry.For(func(_ string, cfg nested) (provider.Provider, error) {
		if len(cfg.Hosts) == 0 {
			return nil, errors.New("hosts: list at least one")
		}
		return local.New(local.Config{})
	}),
}

func TestAFileOfProviders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "providers.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
providers:
  - name: dev
    type: local
    local: {bootDelay: 1s, capacity: 1}
  - {name: bare, type: local}
  - name: mine
    type: own
    own:
      hosts: [{address: a, wait: 5s}]
`), 0o600))
	r, err := registry.Load(path, types)
	require.NoError(t, err)
	defer r.Close()
	assert.Equal(t, []string{"dev", "bare", "mine"}, r.Names())
	assert.NoError(t, r.Err())
	p, err := r.Get("dev")
	require.NoError(t, err)
	_, err = p.Get(t.Context(), "nonsense")
	assert.ErrorContains(t, err, "dev Get")
	_, err = r.Get("other")
	assert.EqualError(t, err, `no provider is named "other": the file has ["dev" "bare" "mine"]`)
}

func TestAFileOfTheWrongShapeIsRefusedWhole(t *testing.T) {
	_, err := registry.Parse([]byte(`
providers:
  - {name: "a/b", type: local}
  - {name: dev, type: lokal}
  - name: dev
    type: own
    own:
      hosts: [{address: a, adress: b}, {wait: soon}]
  - name: more
    type: own
    kvm: {}
    own:
      host: []
      hosts: [{}, {adress: b}]
  - {type: local}
  - {name: more, type: local, local: {capacity: 1}}
`), types)
	for _, want := range []string{
		`providers[0].name: "a/b": becomes a part of provider IDs`,
		`providers[1].type: "lokal": must be one of ["local" "own"]`,
		`providers[2].own.hosts[0].adress: unknown field`,
		`providers[2].own.hosts[1].wait: "soon" is no duration`,
		`providers[3].kvm: unknown field`,
		`providers[3].own.host: unknown field`,
		`providers[3].own.hosts[1].adress: unknown field`,
		`providers[4].name: must be a string that is not empty`,
		`providers[5].name: "more": is used twice`,
	} {
		assert.ErrorContains(t, err, want)
	}
	for text, want := range map[string]string{
		"":              "list at least one provider",
		"providers: []": "list at least one provider",
		"providers: {}": "providers: must be a list",
		"[]":            "must be an object",
		"providers: [{name: a, type: local, local: {username: 1, capacity: x, resolve: []}}]": "providers[0].local.username: must be a string",
		"providers: [{name: a, type: local, local: {bootDelay: soon}}]":                       `providers[0].local.bootDelay: "soon" is no duration`,
		"providers: [{name: a, type: local}]\n---\nproviders: []":                             "must be one YAML document",
		"provider: []":                 "provider: unknown field",
		"providers: [":                 "did not find expected node content",
		"providers: []\nproviders: []": "already set in map",
	} {
		_, err := registry.Parse([]byte(text), types)
		assert.ErrorContains(t, err, want)
	}
	_, err = registry.Load(filepath.Join(t.TempDir(), "absent.yaml"), types)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestOneThatCannotBeMadeLeavesTheOthers(t *testing.T) {
	r, err := registry.Parse([]byte(`
providers:
  - {name: broken, type: own}
  - {name: dev, type: local}
`), types)
	require.NoError(t, err)
	defer r.Close()
	assert.EqualError(t, r.Err(), "provider broken: hosts: list at least one")
	_, err = r.Get("broken")
	assert.ErrorContains(t, err, "list at least one")
	_, err = r.Get("dev")
	assert.NoError(t, err)
}

// recorded are types that note what is made: the names, each with its type.
func recorded(made *[]string) registry.Types {
	return registry.Types{
		"local": registry.For(func(name string, cfg local.Config) (*local.Provider, error) {
			*made = append(*made, name+" of local")
			cfg.Name = name
			return local.New(cfg)
		}),
		"own": registry.For(func(name string, _ nested) (provider.Provider, error) {
			*made = append(*made, name+" of own")
			return nil, errors.New("it is never made")
		}),
	}
}

// parsed are the names of a file that is taken, and what was made of it.
func parsed(t *testing.T, data []byte) (names, made []string, err error) {
	t.Helper()
	r, err := registry.Parse(data, recorded(&made))
	if err != nil {
		assert.Nil(t, r)
		assert.Empty(t, made, "a file that is refused is refused whole")
		return nil, nil, err
	}
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	for _, name := range r.Names() {
		p, err := r.Get(name)
		assert.NotEqual(t, p == nil, err == nil, "%s is a provider or an error", name)
	}
	return r.Names(), made, nil
}

// planted is a file with a password, as of several types, before what is fuzzed.
const planted = "hunter2-is-planted"

var plants = []string{
	"password: '" + planted + "'", "password: ['" + planted + "']", "password: {'x': '" + planted + "'}",
	"passwrd: '" + planted + "'", "Password: '" + planted + "'",
}

// unprintable is what JSON writes as it is and YAML wants escaped.
var unprintable = regexp.MustCompile(`[\x{7f}-\x{9f}\x{feff}\x{fffe}\x{ffff}]`)

func escaped(char []byte) []byte { return fmt.Appendf(nil, `\u%04x`, []rune(string(char))[0]) }

// FuzzParse holds of any file: names that are taken are valid and unique, and all
// are made, in the file's order and by their types. The same file as JSON is the
// same. An error never has a password that stands in the file.
func FuzzParse(f *testing.F) {
	f.Add([]byte("providers: [{name: dev, type: local, local: {bootDelay: 1s}}]"))
	f.Add([]byte("    bootDelay: soon\n- {name: dev, type: own, own: {hosts: [{wait: 1s}]}}"))
	f.Add([]byte(`providers: [{name: dev, type: local, local: {resolve: {"\x7f": "\uFEFF"}}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, plant := range plants {
			file := append([]byte("providers:\n- name: planted\n  type: local\n  local:\n    "+plant+"\n"), data...)
			if _, _, err := parsed(t, file); err != nil {
				assert.NotContains(t, err.Error(), planted)
			}
		}
		names, made, err := parsed(t, data)
		if err != nil {
			return
		}
		text, err := yaml.YAMLToJSONStrict(data)
		require.NoError(t, err)
		var file struct {
			Providers []map[string]any `json:"providers"`
		}
		require.NoError(t, json.Unmarshal(text, &file))
		want := make([]string, 0, len(names))
		seen := map[string]bool{}
		for i, entry := range file.Providers {
			name, _ := entry["name"].(string)
			require.NoError(t, provider.ValidIDPart(name))
			require.False(t, seen[name], name)
			seen[name] = true
			require.Equal(t, name, names[i])
			want = append(want, fmt.Sprintf("%s of %v", name, entry["type"]))
		}
		require.Len(t, names, len(want))
		require.Equal(t, want, made)
		if len(text) > 1024 {
			return // YAML takes no longer keys as JSON writes them
		}
		again, madeAgain, err := parsed(t, unprintable.ReplaceAllFunc(text, escaped))
		require.NoError(t, err)
		require.Equal(t, names, again)
		require.Equal(t, made, madeAgain)
	})
}

func ExampleParse() {
	file := `
providers:
  - name: dev
    type: local
    local:
      bootDelay: 1s
      bootdelay: 2s
`
	_, err := registry.Parse([]byte(file), registry.Types{
		"local": registry.For(func(name string, cfg local.Config) (*local.Provider, error) {
			cfg.Name = name
			return local.New(cfg)
		}),
	})
	fmt.Println(err)
	// Output: providers[0].local.bootdelay: unknown field
}
