// Package archtest holds the structure of the module: which package may import
// what, and what each one drags into a user's build.
package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/egressfleet/egress"

// rule is what a package may import of this module, and the modules of others
// that it may bring into a build, directly or not.
type rule struct {
	imports []string
	modules []string
}

var (
	sshModules = []string{"github.com/skeema/knownhosts", "golang.org/x/crypto", "golang.org/x/sys"}
	kvmModules = append([]string{
		"github.com/digitalocean/go-libvirt", "github.com/go-logr/logr", "github.com/klauspost/compress", "github.com/ulikunitz/xz",
		"libvirt.org/go/libvirtxml",
	}, sshModules...)
	// gcpModules are what the client of Compute Engine brings: Google's own, and the
	// telemetry of its transport.
	gcpModules = []string{
		"cloud.google.com/go/auth", "cloud.google.com/go/auth/oauth2adapt", "cloud.google.com/go/compute", "cloud.google.com/go/compute/metadata",
		"github.com/cespare/xxhash/v2", "github.com/felixge/httpsnoop", "github.com/go-logr/logr", "github.com/go-logr/stdr", "github.com/google/s2a-go",
		"github.com/google/uuid", "github.com/googleapis/enterprise-certificate-proxy", "github.com/googleapis/gax-go/v2", "go.opentelemetry.io/auto/sdk",
		"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/log",
		"go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace", "golang.org/x/crypto", "golang.org/x/net", "golang.org/x/oauth2",
		"golang.org/x/sys", "golang.org/x/text", "google.golang.org/api", "google.golang.org/genproto", "google.golang.org/genproto/googleapis/api",
		"google.golang.org/genproto/googleapis/rpc", "google.golang.org/grpc", "google.golang.org/protobuf",
	}
	prometheusModules = []string{
		"github.com/beorn7/perks", "github.com/cespare/xxhash/v2", "github.com/munnerz/goautoneg", "github.com/prometheus/client_golang",
		"github.com/prometheus/client_model", "github.com/prometheus/common", "github.com/prometheus/procfs", "golang.org/x/sys", "google.golang.org/protobuf",
	}
)

// rules name every public package. Arrows point down only: fleet knows no
// implementation, health and lease know neither providers nor each other, and
// provider knows nothing.
var rules = map[string]rule{
	"cloudinit":                {imports: []string{"internal/check"}},
	"endpoint":                 {imports: []string{"internal/check"}},
	"provider":                 {imports: []string{"internal/check"}},
	"provider/local":           {imports: []string{"endpoint", "internal/check", "internal/connectproxy", "provider"}},
	"provider/registry":        {imports: []string{"internal/check", "provider"}, modules: []string{"go.yaml.in/yaml/v2", "sigs.k8s.io/json", "sigs.k8s.io/yaml"}},
	"provider/providermetrics": {imports: []string{"provider"}, modules: prometheusModules},
	"provider/providertest":    {imports: []string{"provider"}},
	"health":                   {imports: []string{"endpoint", "internal/alarm", "internal/check"}, modules: []string{"github.com/go-logr/logr"}},
	"lease":                    {imports: []string{"endpoint", "internal/alarm", "internal/check"}, modules: []string{"github.com/go-logr/logr"}},
	"lease/leasehttp":          {imports: []string{"endpoint", "internal/check", "lease"}, modules: []string{"github.com/go-logr/logr"}},
	"lease/leasetest":          {imports: []string{"endpoint", "lease"}, modules: []string{"github.com/go-logr/logr"}},
	"lease/leasemetrics":       {imports: []string{"lease"}, modules: append([]string{"github.com/go-logr/logr"}, prometheusModules...)},
	"health/healthmetrics":     {imports: []string{"endpoint", "health"}, modules: append([]string{"github.com/go-logr/logr"}, prometheusModules...)},
	"fleet/fleetmetrics":       {imports: []string{"endpoint", "fleet"}, modules: append([]string{"github.com/go-logr/logr"}, prometheusModules...)},
	"fleet":                    {imports: []string{"endpoint", "health", "internal/check", "lease", "provider"}, modules: []string{"github.com/go-logr/logr"}},
	"gcp":                      {imports: []string{"internal/check", "internal/lifetime", "provider"}, modules: gcpModules},
	"kvm":                      {imports: []string{"cloudinit", "internal/check", "internal/diskimage", "internal/lifetime", "internal/virtstream", "provider"}, modules: kvmModules},
}

// pkg is what go list tells.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
	Module     *struct{ Path string }
}

func goList(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps,Standard,Module"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err, "go list")
	var all []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

func TestArrowsPointDownOnly(t *testing.T) {
	for _, p := range goList(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasPrefix(name, "internal/") {
			continue
		}
		allowed, known := rules[name]
		if !assert.True(t, known, "package %s has no rule: add one, and say what it may import", name) {
			continue
		}
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
				assert.Contains(t, allowed.imports, ours, "%s must not import %s", name, ours)
			}
		}
	}
}

// Internal packages serve the public ones, not the other way round.
func TestInternalPackagesKnowNoProvider(t *testing.T) {
	for _, p := range goList(t, "./internal/...") {
		for _, imported := range p.Imports {
			for _, above := range []string{"fleet", "kvm", "gcp", "provider/local", "provider/registry"} {
				assert.NotEqual(t, module+"/"+above, imported, "%s must not import it", p.ImportPath)
			}
		}
	}
}

// What a user of one package compiles is on a reviewed list.
func TestABuildBringsOnlyReviewedModules(t *testing.T) {
	owner := map[string]string{}
	for _, p := range goList(t, "-deps", "./...") {
		if p.Module != nil && !p.Standard {
			owner[p.ImportPath] = p.Module.Path
		}
	}
	for _, p := range goList(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, dep := range p.Deps {
			from, third := owner[dep]
			if third && from != module && !strings.HasPrefix(name, "internal/") {
				assert.Contains(t, rules[name].modules, from, "%s compiles %s", name, dep)
			}
		}
	}
}

// Each package says in one place what it is for, and shows it by examples.
func TestEveryPackageHasOneCommentAndPublicOnesExamples(t *testing.T) {
	for _, dir := range goDirs(t) {
		comments, examples := 0, 0
		for _, file := range parseDir(t, dir) {
			if file.Doc != nil {
				comments++
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Example") {
					examples++
				}
			}
		}
		name, err := filepath.Rel("../..", dir)
		require.NoError(t, err)
		assert.Equal(t, 1, comments, "%s: package comments", name)
		if _, public := rules[name]; public {
			assert.Positive(t, examples, "%s: no Example function", name)
		}
	}
}

// goDirs are the directories of this module with Go files, tests included.
func goDirs(t *testing.T) []string {
	t.Helper()
	var dirs []string
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		nested, _ := filepath.Glob(filepath.Join(path, "go.mod"))
		if d.IsDir() && path != "../.." && (len(nested) > 0 || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if dir := filepath.Dir(path); strings.HasSuffix(path, ".go") && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		return nil
	})
	require.NoError(t, err)
	require.NotContains(t, dirs, "../..", "the root holds no package")
	return dirs
}

func parseDir(t *testing.T, dir string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	files := make([]*ast.File, 0, len(names))
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, file)
	}
	return files
}
