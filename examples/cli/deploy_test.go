package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func readDeploy(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("deploy/" + name)
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), "\\\n", " ")
}

// checkCommand has the real command read the arguments of a file.
func checkCommand(t *testing.T, args []string) *pflag.FlagSet {
	t.Helper()
	require.NotEmpty(t, args)
	root := newApp(nil, nil, nil).rootCommand()
	var ran *cobra.Command
	for _, cmd := range root.Commands() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { ran = cmd; return nil }
	}
	root.SetArgs(args)
	require.NoError(t, root.Execute())
	require.NotNil(t, ran)
	assert.Equal(t, "serve", ran.Name())
	f := &serveFlags{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.register(set)
	ran.LocalNonPersistentFlags().Visit(func(flag *pflag.Flag) { assert.NoError(t, set.Set(flag.Name, flag.Value.String())) })
	assert.NoError(t, f.check(set), "what needs no files is in order")
	return ran.Flags()
}

func TestTheUnitStartsTheRealCommand(t *testing.T) {
	text := readDeploy(t, "egressctl-serve.service")
	m := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/egressctl (.*)$`).FindStringSubmatch(text)
	require.NotNil(t, m)
	flags := checkCommand(t, strings.Fields(m[1]))
	for _, m := range regexp.MustCompile(`\$\{CREDENTIALS_DIRECTORY\}/(\S+)`).FindAllStringSubmatch(m[1], -1) {
		assert.Contains(t, text, "LoadCredential="+m[1]+":", "the credential is loaded")
	}
	drain, err := flags.GetDuration("drain")
	require.NoError(t, err)
	assert.Contains(t, text, "TimeoutStopSec=4min")
	assert.Less(t, drain.Minutes(), 4.0, "systemd waits longer than the drain")
}

// What docs/egressctl.md has installed, in a folder that stands for the root, is all that
// the unit names.
func TestTheUnitFindsWhatTheManualInstalls(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	checkout, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	script, _, _ := strings.Cut(manualBlock(t, "install -m 755 egressctl"), "systemctl")
	for _, m := range regexp.MustCompile(`(?m)^install -m \d+ (.*) /`).FindAllStringSubmatch(script, -1) {
		for _, name := range strings.Fields(m[1]) {
			if !strings.HasPrefix(name, "CHECKOUT/") {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
			}
		}
	}
	root := filepath.Join(dir, "root")
	for _, there := range []string{"/usr/local/bin", "/etc/systemd/system"} {
		require.NoError(t, os.MkdirAll(root+there, 0o755))
	}
	cmd := exec.CommandContext(t.Context(), bash, "-euo", "pipefail", "-c", strings.NewReplacer(" /", " "+root+"/", "CHECKOUT", checkout).Replace(script))
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.FileExists(t, root+"/etc/systemd/system/egressctl-serve.service")
	named := regexp.MustCompile(`(?:/usr/local/bin|/etc/egress)/[\w.]+`).FindAllString(readDeploy(t, "egressctl-serve.service"), -1)
	require.Greater(t, len(named), 5)
	for _, path := range append(named, "/etc/egress/known_hosts") {
		assert.FileExists(t, root+path)
	}
}

func TestTheContainerStartsTheRealCommand(t *testing.T) {
	text := readDeploy(t, "Containerfile")
	m := regexp.MustCompile(`(?m)^CMD (\[.*\])$`).FindStringSubmatch(text)
	require.NotNil(t, m)
	var args []string
	require.NoError(t, json.Unmarshal([]byte(m[1]), &args))
	checkCommand(t, args)
	assert.Contains(t, text, `ENTRYPOINT ["/usr/local/bin/egressctl"]`)
	assert.Contains(t, text, "USER 65532:65532")
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))[1]
	assert.Contains(t, text, "golang:"+version+" ", "the Go version of the module")
}

func TestThePoolsFileLoads(t *testing.T) {
	all, err := readPools("deploy/pools.yaml")
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, "kvm1", all[1].Zone)
	assert.Equal(t, "24h0m0s", all[1].MaxAge.String())
	assert.Equal(t, "cheap", all[0].Attributes["class"])
}
