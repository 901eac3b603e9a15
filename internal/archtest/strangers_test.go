package archtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	modmodule "golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/egressfleet/egress/internal/mdtest"
)

const strangersVersion = "v0.1.0"

// TestStrangersUseTheModule publishes the module in a folder, as a module proxy serves
// it, and runs programs that have nothing of this repository but what comes from there.
func TestStrangersUseTheModule(t *testing.T) {
	if os.Getenv("EGRESS_STRANGERS") == "" {
		t.Skip("needs EGRESS_STRANGERS=1, and some minutes: make strangers")
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	proxy, cache := t.TempDir(), t.TempDir()
	publish(t, proxy, module, root, nil)
	publish(t, proxy, module+"/lease/redislease", filepath.Join(root, "lease", "redislease"), func(mod string) string {
		mod = strings.ReplaceAll(mod, module+" v0.0.0", module+" "+strangersVersion)
		before, _, _ := strings.Cut(mod, "\nreplace ")
		return before + "\n"
	})
	for name, says := range map[string]string{
		"crawler":  "200 /page/9",
		"cli":      "Running proxy-",
		"operator": "404 through crawl/proxy-1\n0 held, true",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			source, err := os.ReadFile(filepath.Join("testdata", "strangers", name, "main.go"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), source, 0o600))
			goRun(t, dir, proxy, cache, "mod", "init", "stranger.test/"+name)
			goRun(t, dir, proxy, cache, "mod", "tidy")
			mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			require.NoError(t, err)
			assert.Contains(t, string(mod), module+" "+strangersVersion)
			assert.NotContains(t, string(mod), "replace")
			assert.Contains(t, goRun(t, dir, proxy, cache, "run", "."), says)
		})
	}
}

// What the README says of a checkout, as it stands there.
func TestStrangersUseACheckout(t *testing.T) {
	if os.Getenv("EGRESS_STRANGERS") == "" {
		t.Skip("needs EGRESS_STRANGERS=1: make strangers")
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("needs a checkout of git")
	}
	dir := t.TempDir()
	bash := func(script string) string {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, text)
		return string(text)
	}
	require.NoError(t, os.CopyFS(filepath.Join(dir, "your-module"), os.DirFS("testdata/strangers/crawler")))
	bash("cd your-module && go mod init stranger.test/checkout")
	block := mdtest.Find(t, root, "README.md", "git clone ").Text
	out := bash(strings.Replace(block, "<this repository>", root, 1) + "go run .")
	assert.Contains(t, out, "200 /page/9")
}

// publish writes a module into the folder, in the form of the GOPROXY protocol.
func publish(t *testing.T, proxy, path, dir string, amend func(mod string) string) {
	t.Helper()
	versions := filepath.Join(proxy, path, "@v")
	require.NoError(t, os.MkdirAll(versions, 0o700))
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	if amend != nil { // a released go.mod names released versions
		mod = []byte(amend(string(mod)))
		copied := t.TempDir()
		require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
		require.NoError(t, os.WriteFile(filepath.Join(copied, "go.mod"), mod, 0o600))
		dir = copied
	}
	write := func(ext string, text []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(versions, strangersVersion+ext), text, 0o600))
	}
	write(".mod", mod)
	write(".info", fmt.Appendf(nil, `{"Version": %q}`, strangersVersion))
	require.NoError(t, os.WriteFile(filepath.Join(versions, "list"), []byte(strangersVersion+"\n"), 0o600))
	f, err := os.Create(filepath.Join(versions, strangersVersion+".zip"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, zip.CreateFromDir(f, modmodule.Version{Path: path, Version: strangersVersion}, dir))
}

// goRun runs the go command with that proxy before the machine's own, and a folder for
// what comes from it: another time the same version is something else.
func goRun(t *testing.T, dir, proxy, cache string, args ...string) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOPROXY", "GOMODCACHE").Output()
	require.NoError(t, err)
	env := strings.Fields(string(out))
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		// Ours from the folder, and all else from what this machine has already.
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(env[1], "cache", "download")+","+env[0],
		"GOMODCACHE="+cache, "GONOSUMDB="+module, "GOFLAGS=-mod=mod -modcacherw", "GOWORK=off",
	)
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "go %s: %s", args, text)
	return string(text)
}
