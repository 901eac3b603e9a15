package cloudinit_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files under testdata")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// golden compares got with a file under testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "make it with: go test ./cloudinit -update")
	require.Equal(t, string(want), string(got), "if this is meant, renew it with: go test ./cloudinit -update")
}

// tool finds a program, or skips the test and says how to get it.
func tool(t *testing.T, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath(filepath.Join("/usr/sbin", name))
	}
	if err != nil {
		t.Skipf("SKIPPED: %s is not here, and this test needs it: apt-get install --no-install-recommends %s", name, debianPackage)
	}
	return path
}

// run runs a program and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// tempFile writes content into a new file and returns its path.
func tempFile(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// cloudInitPython runs a Python program that imports cloud-init's own modules,
// and decodes the JSON it prints.
func cloudInitPython(t *testing.T, result any, program string, args ...string) {
	t.Helper()
	const python = "/usr/bin/python3" // where Debian's modules are found
	if err := exec.Command(python, "-c", "import cloudinit").Run(); err != nil {
		t.Skip("SKIPPED: cloud-init's Python modules are not here, and this test needs them: apt-get install --no-install-recommends cloud-init")
	}
	cmd := exec.Command(python, append([]string{"-c", program}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.NoError(t, json.Unmarshal(out, result), string(out))
}

// decodeBase64 decodes s.
func decodeBase64(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	require.NoError(t, err)
	return b
}
