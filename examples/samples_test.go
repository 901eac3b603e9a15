package examples_test

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/registry"
)

const (
	sampleFile = "providers.yaml"
	manual     = "../docs/kvm.md"
	gcpManual  = "../docs/gcp.md"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// commented matches what stands before a field that is commented out.
var commented = regexp.MustCompile(`(?m)^( *)#((?:- )?[a-zA-Z0-9]+:)`)

// uncommented is the sample with every optional field in use. What is left out
// of a line keeps its column.
func uncommented(text string) string { return commented.ReplaceAllString(text, "$1$2") }

func TestTheSampleLoads(t *testing.T) {
	text := read(t, sampleFile)
	for name, c := range map[string]struct {
		text  string
		names []string
	}{
		"as it is":           {text, []string{"rack-1"}},
		"with every comment": {uncommented(text), []string{"rack-1", "cloud-1", "dev"}},
	} {
		t.Run(name, func(t *testing.T) {
			providers, err := registry.Parse([]byte(c.text), setup.Types(setup.Hooks{}))
			require.NoError(t, err)
			defer providers.Close()
			assert.NoError(t, providers.Err())
			assert.Equal(t, c.names, providers.Names())
		})
	}
}

// TestTheSampleHasEveryField says which field the sample lacks.
func TestTheSampleHasEveryField(t *testing.T) {
	var file struct {
		Providers []map[string]any `json:"providers"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(uncommented(read(t, sampleFile))), &file))
	have := map[string]bool{}
	for _, p := range file.Providers {
		for _, kind := range []string{"kvm", "gcp", "local"} {
			note(have, kind, p[kind])
		}
	}
	for _, field := range slices.Concat(
		fieldsOf("kvm", reflect.TypeFor[kvm.Config]()), fieldsOf("gcp", reflect.TypeFor[gcp.Config]()), fieldsOf("local", reflect.TypeFor[local.Config]()),
	) {
		assert.True(t, have[field], "%s lacks the field %s", sampleFile, field)
	}
}

// note takes the paths of the fields in a value of YAML. Keys of a map that the
// user chooses are written KEY.
func note(have map[string]bool, path string, value any) {
	have[path] = true
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if path == "kvm.images" || path == "kvm.machineTypes" {
				key = "KEY"
			}
			note(have, path+"."+key, inner)
		}
	case []any:
		for _, inner := range v {
			note(have, path+"[]", inner)
		}
	}
}

// fieldsOf are the paths of a configuration's fields in a file.
func fieldsOf(path string, t reflect.Type) []string {
	switch {
	case t.Kind() == reflect.Struct:
		var all []string
		for f := range structFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.IsExported() && name != "-" {
				all = append(all, fieldsOf(path+"."+name, f.Type)...)
			}
		}
		return all
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return fieldsOf(path+"[]", t.Elem())
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct:
		return fieldsOf(path+".KEY", t.Elem())
	}
	return []string{path}
}

func structFields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// column are the first columns of the tables in a section of a manual, where
// they are code.
func column(t *testing.T, manual, section string) []string {
	t.Helper()
	_, text, found := strings.Cut(read(t, manual), "\n## "+section+"\n")
	require.True(t, found, "%s has no section %q", manual, section)
	text, _, _ = strings.Cut(text, "\n## ")
	var all []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

func TestTheManualsHaveEveryField(t *testing.T) {
	for manual, fields := range map[string][]string{
		manual:    fieldsOf("", reflect.TypeFor[kvm.Config]()),
		gcpManual: fieldsOf("", reflect.TypeFor[gcp.Config]()),
	} {
		var want []string
		for _, field := range fields {
			want = append(want, strings.TrimPrefix(field, "."))
		}
		assert.ElementsMatch(t, want, column(t, manual, "Configuration"), manual)
	}
}

func TestTheManualsHaveEveryCode(t *testing.T) {
	for manual, code := range map[string]string{manual: kvmSources(t), gcpManual: sources(t, "../gcp/*.go")} {
		codes := map[string]bool{"Collision": true, "MalformedID": true, "Unconfigured": true, "InvalidRequest": true, "Terminal": true}
		found := regexp.MustCompile(`(?m)^(?:\t|const )[cC]ode\w+ += "(\w+)"`).FindAllStringSubmatch(code, -1)
		require.Greater(t, len(found), 5, manual)
		if manual == gcpManual {
			codes["InFlight"] = true
		}
		for _, m := range found {
			codes[m[1]] = true
		}
		var have []string
		for _, code := range column(t, manual, "Errors") {
			if !strings.HasPrefix(code, "Err") { // those are libvirt's
				have = append(have, code)
			}
		}
		assert.ElementsMatch(t, slices.Collect(maps.Keys(codes)), have, manual)
	}
}

func TestTheManualsHaveEveryLogLine(t *testing.T) {
	for manual, code := range map[string]string{manual: kvmSources(t), gcpManual: sources(t, "../gcp/*.go")} {
		lines := column(t, manual, "Log lines")
		var want []string
		for _, m := range regexp.MustCompile(`\.Info\("([^"]+)"`).FindAllStringSubmatch(code, -1) {
			want = append(want, m[1])
		}
		require.Greater(t, len(want), 3, manual)
		assert.Subset(t, lines, want, "%s lacks lines", manual)
		assert.Subset(t, want, lines, "%s has lines that are no more", manual)
	}
}

// kvmSources are the files of package kvm, and of the one whose errors it passes on.
func kvmSources(t *testing.T) string {
	t.Helper()
	return sources(t, "../kvm/*.go", "../internal/diskimage/*.go")
}

// sources are the files that match, but for tests.
func sources(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				all.WriteString(read(t, f))
			}
		}
	}
	return all.String()
}
