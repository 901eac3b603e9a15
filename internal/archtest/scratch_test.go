package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user's own module compiles what it names and no more: the weight of one
// backend is not that of another's users.
func TestAUsersModuleCompilesOnlyWhatItNames(t *testing.T) {
	cloud := []string{"cloud.google.com/", "google.golang.org/api", "google.golang.org/grpc", "google.golang.org/protobuf", "go.opentelemetry.io/"}
	ssh := []string{"golang.org/x/crypto/ssh", "github.com/digitalocean/go-libvirt", "libvirt.org/"}
	for _, c := range []struct {
		uses      string
		forbidden [][]string
		wanted    string // so that the test cannot pass by listing nothing
	}{
		{"kvm", [][]string{cloud}, "golang.org/x/crypto/ssh"},
		{"lease", [][]string{cloud, ssh}, "github.com/go-logr/logr"},
		{"fleet", [][]string{cloud, ssh}, "github.com/go-logr/logr"},
		{"gcp", [][]string{ssh}, "cloud.google.com/go/compute/apiv1"},
	} {
		t.Run(c.uses, func(t *testing.T) {
			deps := scratchDeps(t, c.uses)
			assert.Contains(t, deps, c.wanted)
			for _, dep := range deps {
				for _, prefixes := range c.forbidden {
					for _, prefix := range prefixes {
						assert.False(t, strings.HasPrefix(dep, prefix), "a user of %s compiles %s", c.uses, dep)
					}
				}
			}
		})
	}
}

// scratchDeps makes a module that imports one package, and returns all that its
// build compiles.
func scratchDeps(t *testing.T, uses string) []string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("go.mod", "module scratch.test/user\n\ngo 1.26.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+root+"\n")
	write("main.go", "package main\n\nimport _ \""+module+"/"+uses+"\"\n\nfunc main() {}\n")
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	write("go.sum", string(sums))
	cmd := exec.Command("go", "list", "-mod=mod", "-deps", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go list: %s", out)
	return strings.Fields(string(out))
}
